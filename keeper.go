package holdlock

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// keeper watches over all leases of a client with one goroutine and one timer. That goroutine never talks to the store:
// renewals are sent by a few workers, so a store that hangs cannot delay the end of anybody's trust.
//
//	trust ends at  sent + TTL − margin,  on the worse of two clocks        (instant.sub, Lease.left)
type keeper struct {
	c      *Client
	ctx    context.Context // of renewals; ended by stop
	cancel context.CancelFunc
	wake   chan struct{}

	mu      sync.Mutex
	running bool
	heap    alarms
	wakeAt  time.Time     // when the goroutine wakes by itself
	tick    time.Duration // it wakes at least this often, to notice that the machine was suspended
	added   bool          // since it has looked
	queue   []*Lease      // due for renewal
	workers []*worker     // who send them
	late    int           // of those
	started time.Time     // the last of them
	wg      sync.WaitGroup
}

const (
	idle      = time.Hour
	driftStep = 5 * time.Millisecond // more than reading two clocks one after the other can show
)

func newKeeper(c *Client) *keeper {
	ctx, cancel := context.WithCancel(context.Background())
	return &keeper{c: c, ctx: ctx, cancel: cancel, wake: make(chan struct{}, 1), tick: idle}
}

// add puts a lease under watch. It reports false if the keeper is stopped: nobody would end the lease.
func (k *keeper) add(l *Lease) bool {
	next := l.renewal.due
	if l.lock.opts.Renew == RenewOff {
		next = l.confirmed.mono.Add(l.trust)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ctx.Err() != nil {
		return false
	}
	l.alarm.at = next
	heap.Push(&k.heap, l)
	k.added = true
	// Timers stand still while the machine is suspended. Two looks per margin catch it before the store gives the key away.
	if half := margin(l.lock.opts.TTL) / 2; half < k.tick {
		k.tick = half
		next = time.Time{} // look at the clock again
	}
	if !k.running {
		k.running = true
		k.wg.Go(k.run)
	} else if next.Before(k.wakeAt) {
		k.poke()
	}
	return true
}

// remove takes a lease that has ended out of watch.
func (k *keeper) remove(l *Lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.alarm.index > 0 {
		heap.Remove(&k.heap, l.alarm.index-1)
	}
}

// reschedule looks at a lease again after an answer to its renewal.
func (k *keeper) reschedule(l *Lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.alarm.index > 0 {
		l.alarm.at = time.Time{} // at once
		heap.Fix(&k.heap, l.alarm.index-1)
		k.poke()
	}
}

// poke wakes the goroutine. A poke that is already pending will do.
func (k *keeper) poke() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

func (k *keeper) run() {
	timer := time.NewTimer(idle)
	defer timer.Stop()
	base := k.c.clock.now()
	for k.ctx.Err() == nil {
		now := k.c.clock.now()
		suspended := now.drift(base) > driftStep
		if suspended {
			base = now
		}
		timer.Reset(time.Until(k.pass(now, suspended)))
		select {
		case <-timer.C:
		case <-k.wake:
		case <-k.ctx.Done():
		}
	}
}

// pass does what is due, for all leases if the machine was suspended, and returns when to look again.
func (k *keeper) pass(now instant, all bool) (wakeAt time.Time) {
	type ending struct {
		lease *Lease
		why   *LostError
	}
	var ended []ending
	k.mu.Lock()
	if all {
		for _, l := range k.heap {
			l.alarm.at = now.mono
		}
		heap.Init(&k.heap)
	}
	for len(k.heap) > 0 && !k.heap[0].alarm.at.After(now.mono) {
		l := k.heap[0]
		v, next, why := l.judge(now)
		switch v {
		case over, lose:
			heap.Pop(&k.heap)
			if v == lose {
				ended = append(ended, ending{l, why})
			}
			continue
		case renew:
			k.queue = append(k.queue, l)
		}
		l.alarm.at = next
		heap.Fix(&k.heap, 0)
	}
	k.startWorkers(now.mono)
	sleep := k.tick
	switch {
	case len(k.heap) > 0:
		sleep = min(k.tick, k.heap[0].alarm.at.Sub(now.mono))
	case !k.added: // else there will be more, and to be woken for each of those would cost more than the lease
		k.tick, sleep = idle, idle
	}
	k.added = false
	wakeAt = now.mono.Add(sleep)
	k.wakeAt = wakeAt
	k.mu.Unlock()
	for _, e := range ended { // contexts are cancelled and observers called without the mutex
		e.lease.lose(e.why)
	}
	return wakeAt
}

// endAll ends every lease because the client is shut down, and returns how many there were.
func (k *keeper) endAll() int {
	k.mu.Lock()
	leases := append([]*Lease(nil), k.heap...)
	k.mu.Unlock()
	for _, l := range leases {
		l.lose(l.lostError(LossShutdown, nil))
	}
	return len(leases)
}

// stop ends the goroutine and waits for it and for the workers.
func (k *keeper) stop() {
	k.mu.Lock() // so that add does not start the goroutine after this
	k.cancel()
	k.mu.Unlock()
	k.wg.Wait()
}

// alarm is when the keeper looks at a lease next.
type alarm struct {
	at    time.Time
	index int // 1 + position in the heap; 0 if it is not there
}

// alarms is a heap of leases by time of alarm.
type alarms []*Lease

func (a alarms) Len() int           { return len(a) }
func (a alarms) Less(i, j int) bool { return a[i].alarm.at.Before(a[j].alarm.at) }
func (a alarms) Swap(i, j int) {
	a[i], a[j] = a[j], a[i]
	a[i].alarm.index, a[j].alarm.index = i+1, j+1
}

// Push is part of heap.Interface.
func (a *alarms) Push(x any) {
	l := x.(*Lease)
	*a = append(*a, l)
	l.alarm.index = len(*a)
}

// Pop is part of heap.Interface.
func (a *alarms) Pop() any {
	old := *a
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*a = old[:len(old)-1]
	l.alarm.index = 0
	return l
}
