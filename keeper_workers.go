package holdlock

import (
	"slices"
	"time"
)

// Renewals are sent by workers, each with one call under way, for many leases where the store can. Part of a store may hang while the rest
// is well, as a node of a Cluster, and nobody tells which leases are on it. So that they hold up the others for a moment only,
//
//   - a worker whose call does not come back soon counts no more, and another one is started;
//   - the more of those there are, the longer the next one waits, for more leases to take along. A call lasts for a quarter of a TTL at most,
//     so there are some twenty in the end. Whoever can fill a call waits for nothing;
//   - leases share a call with those alone that can wait as long as they can.
const (
	maxWorkers   = 4
	workerIsLate = 100 * time.Millisecond
	maxLate      = 128
	lateGap      = 20 * time.Millisecond // for each late one
	batchSize    = 256
)

// A worker is one goroutine. The keeper's mutex guards it.
type worker struct {
	since time.Time // its call is under way
	late  bool
}

// startWorkers starts as many workers as there is work for and the rules allow. Those that run already may be stuck with a call, so
// they do not count as help. It is called twice in a margin at least, so nobody who may not be started now waits for long. Called with mu held.
func (k *keeper) startWorkers(now time.Time) {
	for _, w := range k.workers {
		if !w.late && k.late < maxLate && now.Sub(w.since) >= workerIsLate {
			w.late = true
			k.late++
		}
	}
	for due := len(k.queue); due > 0; due -= k.batch() {
		enough := len(k.workers)-k.late >= maxWorkers
		soon := now.Sub(k.started) < time.Duration(k.late)*lateGap
		if enough || soon && due < k.batch() {
			return
		}
		k.started = now
		w := &worker{since: now}
		k.workers = append(k.workers, w)
		k.wg.Go(func() { k.work(w) })
	}
}

// batch is how many renewals are sent in one call.
func (k *keeper) batch() int {
	if k.c.batch != nil {
		return batchSize
	}
	return 1
}

// work sends renewals until there are none, or a call has been late.
func (k *keeper) work(w *worker) {
	for {
		leases := k.next(w)
		if leases == nil {
			return
		}
		k.renewBatch(leases)
	}
}

// next returns what a worker is to send, or nil if it has ended.
func (k *keeper) next(w *worker) []*Lease {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	late := w.late || now.Sub(w.since) >= workerIsLate
	if len(k.queue) == 0 || late || k.ctx.Err() != nil {
		i := slices.Index(k.workers, w)
		k.workers = slices.Delete(k.workers, i, i+1)
		if w.late {
			k.late--
		}
		if len(k.queue) > 0 {
			k.poke() // there is room for another one
		}
		return nil
	}
	w.since = now
	return k.take()
}

// take takes the leases of one call out of the queue. A call may last for a quarter of the longest TTL of them, and their answers come
// together, so none has less than half of that TTL.
func (k *keeper) take() []*Lease {
	n := min(k.batch(), len(k.queue))
	leases, rest := make([]*Lease, 0, n), k.queue[:0]
	shortest := k.queue[0].lock.opts.TTL
	longest := shortest
	for i, l := range k.queue {
		if len(leases) == n {
			rest = append(rest, k.queue[i:]...)
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
	clear(k.queue[len(rest):])
	k.queue = rest
	return leases
}
