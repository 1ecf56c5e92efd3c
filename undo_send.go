package holdlock

import (
	"container/heap"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// What is sent when. A key has one call under way, which takes along all that have come until it is made, up to leaveSize; where each is
// a call of its own, some. A call that has been under way for undoLate does not count any more, so that hanging ones keep up the
// others for a moment only, until there are maxCalls. To keep clear of those, the first try of a key is short, and those that fail may
// have maxRetries of them: each is tried after a pause that doubles, and together not more often than every undoGap. As soon as one of
// them is answered all of them are due, as if they had not failed.
const (
	undosAtOnce = 16
	undoLate    = 100 * time.Millisecond
	maxCalls    = 48 // of those that a store which hangs can cost, see maxHung
	maxRetries  = 8
	leaveSize   = 512

	undoPause = 100 * time.Millisecond
	undoLast  = time.Second // of the pauses, and of a call for places
	undoFirst = undoLast / 2
	undoGap   = 10 * time.Millisecond
)

// undoCall is a call under way.
type undoCall struct {
	of    *undos
	jobs  []*undo
	many  bool // by Leave
	retry bool
	since time.Time
}

func (u *undoer) run(done chan struct{}) {
	defer close(done)
	var sending sync.WaitGroup
	defer sending.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		next, more, left := u.send(&sending)
		for _, job := range left {
			u.abandon(job)
		}
		if !more {
			return
		}
		timer.Reset(time.Until(next))
		select {
		case <-timer.C:
		case <-u.wake:
		case <-u.ctx.Done():
		}
	}
}

// send sends what is due, as many as may be, and says when to look again, or that there is nothing to do. What is left is given up.
func (u *undoer) send(sending *sync.WaitGroup) (next time.Time, more bool, left []*undo) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	stopped := u.ctx.Err() != nil
	if stopped || now.Sub(u.swept) >= undoPause {
		u.swept = now
		left = u.sweep(now, stopped)
	}
	if len(u.keys) == 0 || stopped {
		u.done = nil
		return next, false, left
	}
	for {
		g, at := u.choose(now)
		if g == nil {
			return at, true, left
		}
		c := u.take(g, now)
		sending.Go(func() { u.do(c) })
	}
}

// choose returns the key that is to be sent now, or when to look again if nothing is answered before.
func (u *undoer) choose(now time.Time) (g *undos, next time.Time) {
	next = now.Add(undoPause) // to sweep
	soon := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	if len(u.calls) >= maxCalls {
		return nil, next
	}
	if n := len(u.calls) - undosAtOnce; n >= 0 {
		if late := u.calls[n].since.Add(undoLate); now.Before(late) {
			soon(late)
			return nil, next
		}
	}
	if len(u.failing) > 0 && u.retries < maxRetries {
		at := u.failing[0].due
		if at.Before(u.retry) {
			at = u.retry
		}
		if !now.Before(at) {
			u.retry = now.Add(undoGap)
			return u.failing[0], next
		}
		soon(at)
	}
	if len(u.ready) > 0 {
		if at := u.ready[0].due; now.Before(at) {
			soon(at)
		} else {
			return u.ready[0], next
		}
	}
	return nil, next
}

// take makes the next call of a key.
func (u *undoer) take(g *undos, now time.Time) *undoCall {
	c := &undoCall{of: g, retry: g.tries > 0, since: now}
	from := &g.terms
	if len(g.leaves) > 0 && (g.turn || len(g.terms) == 0) {
		from, c.many = &g.leaves, u.c.line != nil
	}
	g.turn = from == &g.terms
	n := 1
	if c.many {
		n = min(len(*from), leaveSize)
	}
	c.jobs = slices.Clone((*from)[:n])
	*from = slices.Delete(*from, 0, n)
	g.calls++
	if c.retry {
		u.retries++
	}
	u.calls = append(u.calls, c)
	u.put(g)
	return c
}

// put puts a key where it belongs by what there is to send of it.
func (u *undoer) put(g *undos) {
	if g.heap != nil {
		heap.Remove(g.heap, g.index)
		g.heap = nil
	}
	most := 1
	if u.c.line == nil && g.tries == 0 {
		most = undosAtOnce
	}
	switch {
	case len(g.terms)+len(g.leaves) == 0:
		if g.calls == 0 {
			delete(u.keys, g.key)
		}
		return
	case g.calls >= most:
		return
	case g.tries > 0:
		g.heap = &u.failing
	default:
		g.heap = &u.ready
	}
	heap.Push(g.heap, g)
}

// sweep drops what is over, or all if the undoer is stopped, and returns it. What is under way stays.
func (u *undoer) sweep(now time.Time, stopped bool) (left []*undo) {
	over := func(job *undo) bool {
		if !stopped && !job.over(now, u.last) {
			return false
		}
		u.forget(job)
		left = append(left, job)
		return true
	}
	for _, g := range u.keys {
		before := len(g.terms) + len(g.leaves)
		g.terms, g.leaves = slices.DeleteFunc(g.terms, over), slices.DeleteFunc(g.leaves, over)
		if len(g.terms)+len(g.leaves) != before {
			u.put(g)
		}
	}
	return left
}

func (u *undoer) forget(job *undo) {
	u.n.Add(-1)
	if job.place {
		delete(u.places, job.nonce)
	}
}

// over says whether there is nothing to give back any more.
func (job *undo) over(now, last time.Time) bool {
	switch {
	case job.place:
		return !last.IsZero() && now.After(last)
	case job.claim:
		return !last.IsZero() && now.After(last) && now.After(job.until)
	case job.tries == 0:
		return now.After(job.until)
	}
	return now.Add(undoPause).After(job.until)
}

// do makes one call, and leaves the jobs where they were if the store failed.
func (u *undoer) do(c *undoCall) {
	lock := c.jobs[0].lock
	budget := max(lock.opts.TTL/4, 100*time.Millisecond) // of a term: there has to be time for another try
	if c.many {
		budget = undoLast
	}
	if !c.retry {
		budget = min(budget, undoFirst)
	}
	_, err := call(u.ctx, u.c, min(budget, u.c.timeout), func(ctx context.Context) (struct{}, error) {
		return struct{}{}, u.ask(ctx, c)
	}, discard)
	told, left := u.judge(c, err)
	if told {
		verb := "release"
		switch {
		case c.jobs[0].place:
			verb = "leaving the line"
		case c.jobs[0].acquire:
			verb = "undoing an acquire"
		}
		u.c.emit(Event{Kind: Unreleased, Name: lock.name, Key: lock.key, Err: lock.storeError(verb, err)})
	}
	for _, job := range left {
		u.abandon(job)
	}
}

func (u *undoer) ask(ctx context.Context, c *undoCall) error {
	if c.many {
		left := make([]driver.Leaving, len(c.jobs))
		for i, job := range c.jobs {
			left[i] = driver.Leaving{Request: job.lock.request(job.nonce), Answered: !job.acquire}
		}
		return u.c.line.queue.Leave(ctx, c.of.key, left)
	}
	job := c.jobs[0]
	return u.c.drv.Release(ctx, &driver.ReleaseRequest{
		Ref: driver.Ref{Key: c.of.key, Nonce: job.nonce}, KeepFor: max(0, time.Until(job.keepUntil)), Undo: job.acquire, Record: job.record,
	})
}

// judge takes the outcome of a call, and says whether it is to be told, and which terms are left to end by themselves.
func (u *undoer) judge(c *undoCall, err error) (told bool, left []*undo) {
	u.mu.Lock()
	defer u.mu.Unlock()
	defer u.poke()
	g := c.of
	i := slices.Index(u.calls, c)
	u.calls = slices.Delete(u.calls, i, i+1)
	g.calls--
	if c.retry {
		u.retries--
	}
	for _, job := range c.jobs {
		job.tries++
	}
	gone, closed, stopped := errors.Is(err, driver.ErrGone), errors.Is(err, driver.ErrClosed), u.ctx.Err() != nil
	if err == nil || gone || closed || stopped {
		for _, job := range c.jobs {
			u.forget(job)
			if job.acquire && job.place {
				u.retired.add(job.nonce, job.lock)
			}
			if closed || gone && !time.Now().Before(job.ends) || stopped && err != nil && !gone { // it has ended by itself before we got through, as far as we know
				left = append(left, job)
			}
		}
		if err == nil || gone {
			if g.tries > 0 {
				u.recovered()
			}
			g.tries, g.told = 0, false
		}
		u.put(g)
		return stopped && err != nil && !gone && !closed && !g.told, left
	}
	now, pause := time.Now(), undoPause
	g.tries++
	if c.many {
		g.leaves = slices.Insert(g.leaves, 0, c.jobs...)
		told, g.told = !g.told, true
	} else {
		job := c.jobs[0]
		if job.record != nil && unrecordable(err) { // then at least its lock is given back
			job.record = nil
		}
		if job.acquire && !job.claim {
			g.leaves = append(g.leaves, job)
		} else {
			g.terms = append(g.terms, job)
		}
		told = !job.claim || !g.told
		g.told = g.told || job.claim
	}
	if c.many && len(g.terms) == 0 || c.jobs[0].claim { // it may be tried for very long
		pause = min(undoLast, undoPause<<min(g.tries-1, 10))
	}
	g.due = now.Add(jitter(pause))
	u.put(g)
	return told, nil
}

// recovered makes all due. Called with mu held.
func (u *undoer) recovered() {
	for len(u.failing) > 0 {
		g := u.failing[0]
		g.tries, g.due = 0, time.Time{}
		u.put(g)
	}
	u.poke()
}

// undoHeap is a heap of keys by when they are due.
type undoHeap []*undos

func (h undoHeap) Len() int           { return len(h) }
func (h undoHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }
func (h undoHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

// Push is part of heap.Interface.
func (h *undoHeap) Push(x any) {
	g := x.(*undos)
	g.index = len(*h)
	*h = append(*h, g)
}

// Pop is part of heap.Interface.
func (h *undoHeap) Pop() any {
	old := *h
	g := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return g
}
