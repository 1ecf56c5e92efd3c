package holdlock

import (
	"context"
	"slices"
	"time"
)

// Renewals are sent by workers, each with one call under way, for many leases where the store can. Part of a store may hang while the rest
// is well, as a node of a Cluster, and nobody tells which leases are on it. So that they do not hold up the others,
//
//   - a worker whose call does not come back soon counts no more, so that another one is started. Where that goes on, the calls that
//     have lasted longest are ended, as if they had failed;
//   - leases whose renewal has failed have workers of their own, or their tries would take up all of those;
//   - leases share a call with those alone that can wait as long as they can.
const (
	maxWorkers   = 4 // of each crew
	maxLate      = 16
	workerIsLate = 100 * time.Millisecond
	batchSize    = 256
)

// A crew is leases that are due and those who renew them. The keeper's mutex guards it.
type crew struct {
	queue   []*Lease
	workers []*worker
	late    int // of those
}

// A worker is one goroutine.
type worker struct {
	since time.Time // its call is under way
	late  bool
	end   context.CancelFunc // ends it
}

// busy says that no more workers may be started.
func (c *crew) busy() bool { return len(c.workers)-c.late >= maxWorkers }

// startWorkers starts as many workers as there is work for and the bounds allow. Those that run already may be stuck with a call, so
// they do not count as help. It is called twice in a margin at least. Called with mu held.
func (k *keeper) startWorkers(now time.Time) {
	for _, w := range k.fresh.workers {
		if !w.late && k.fresh.late < maxLate && now.Sub(w.since) >= workerIsLate {
			w.late = true
			k.fresh.late++
		}
	}
	for _, c := range []*crew{&k.fresh, &k.failing} {
		for due := len(c.queue); due > 0 && !c.busy(); due -= k.batch() {
			w := &worker{since: now, end: func() {}}
			c.workers = append(c.workers, w)
			k.wg.Go(func() { k.work(c, w) })
		}
	}
	if len(k.fresh.queue) > 0 && k.fresh.busy() {
		k.fresh.makeRoom()
	}
}

// makeRoom ends the oldest calls if there are as many late ones as may be.
func (c *crew) makeRoom() {
	if c.late < maxLate {
		return
	}
	late := slices.DeleteFunc(slices.Clone(c.workers), func(w *worker) bool { return !w.late })
	slices.SortFunc(late, func(a, b *worker) int { return a.since.Compare(b.since) })
	for _, w := range late[:maxWorkers] {
		w.end()
	}
}

// batch is how many renewals are sent in one call.
func (k *keeper) batch() int {
	if k.c.batch != nil {
		return batchSize
	}
	return 1
}

// work sends renewals until there are none to send, or enough others do.
func (k *keeper) work(c *crew, w *worker) {
	for more := true; more; {
		ctx, end := context.WithCancel(k.ctx)
		var leases []*Lease
		if leases, more = k.next(c, w, end); more {
			k.renewBatch(ctx, leases)
		}
		end()
	}
}

// next returns what a worker is to send in its next call, which end ends, or that it has ended itself.
func (k *keeper) next(c *crew, w *worker, end context.CancelFunc) (leases []*Lease, more bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	replaced := w.late && c.busy()
	if w.late {
		w.late = false
		c.late--
	}
	if len(c.queue) == 0 || replaced || k.ctx.Err() != nil {
		i := slices.Index(c.workers, w)
		c.workers = slices.Delete(c.workers, i, i+1)
		return nil, false
	}
	w.since, w.end = time.Now(), end
	return c.take(k.batch()), true
}

// take takes the leases of one call out of the queue, at most n. A call may last for a quarter of the longest TTL of them, and their answers
// come together, so none has less than half of that TTL.
func (c *crew) take(n int) []*Lease {
	leases, rest := make([]*Lease, 0, min(n, len(c.queue))), c.queue[:0]
	shortest := c.queue[0].lock.opts.TTL
	longest := shortest
	for i, l := range c.queue {
		if len(leases) == n {
			rest = append(rest, c.queue[i:]...)
			break
		}
		ttl := l.lock.opts.TTL
		if max(longest, ttl)/2 > min(shortest, ttl) {
			rest = append(rest, l)
			continue
		}
		shortest, longest = min(shortest, ttl), max(longest, ttl)
		leases = append(leases, l)
	}
	clear(c.queue[len(rest):])
	c.queue = rest
	return leases
}
