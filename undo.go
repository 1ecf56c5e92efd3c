package holdlock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// undoer gives back, in the background, what an unclear acquire may have won and what an unclear release may have kept.
// It tries until the store answers or the term would have ended anyway. One goroutine serves all, and only while there
// is something to do.
type undoer struct {
	c      *Client
	ctx    context.Context // ended by stop
	cancel context.CancelFunc
	mu     sync.Mutex
	queue  []undo
	done   chan struct{} // closed when the goroutine has ended; nil if none runs
}

type undo struct {
	lock      *Lock
	ref       driver.Ref
	acquire   bool           // what is unclear is its acquire, which may still be on its way
	record    *driver.Record // of a run whose end is unclear, or nil
	keepUntil time.Time      // the key stays taken until then (MinHold)
	until     time.Time      // the term has ended by itself by then
	over      time.Time      // if work under it has ended: when the store may let the term end by itself; else zero
}

const (
	maxUndos  = 10_000 // beyond this, terms are left to expire
	undoPause = 100 * time.Millisecond
)

func newUndoer(c *Client) *undoer {
	ctx, cancel := context.WithCancel(context.Background())
	return &undoer{c: c, ctx: ctx, cancel: cancel}
}

// addAcquire gives back a term that may exist, or may come to exist when a request arrives late. There was no work under
// it, so it does not keep its key.
func (u *undoer) addAcquire(l *Lock, ref driver.Ref) { u.add(undo{lock: l, ref: ref, acquire: true}) }

// addRelease gives back a term under which the work has ended.
func (u *undoer) addRelease(l *Lock, ref driver.Ref, keepUntil, over time.Time) {
	u.add(undo{lock: l, ref: ref, keepUntil: keepUntil, over: over})
}

// addRecord gives back a term under which a run has ended, and records that.
func (u *undoer) addRecord(l *Lock, ref driver.Ref, keepUntil, over time.Time, rec *driver.Record) {
	u.add(undo{lock: l, ref: ref, keepUntil: keepUntil, over: over, record: rec})
}

func (u *undoer) add(job undo) {
	opts := &job.lock.opts
	job.until = time.Now().Add(max(opts.TTL, opts.MinHold))
	u.mu.Lock()
	if u.ctx.Err() != nil || len(u.queue) >= maxUndos {
		u.mu.Unlock()
		u.abandon(job)
		return
	}
	defer u.mu.Unlock()
	u.queue = append(u.queue, job)
	if u.done == nil {
		u.done = make(chan struct{})
		go u.run(u.done)
	}
}

func (u *undoer) run(done chan struct{}) {
	defer close(done)
	for {
		u.mu.Lock()
		if len(u.queue) == 0 || u.ctx.Err() != nil {
			left := u.queue
			u.queue, u.done = nil, nil
			u.mu.Unlock()
			for _, job := range left {
				u.abandon(job)
			}
			return
		}
		next := u.queue[0]
		u.queue = u.queue[1:]
		u.mu.Unlock()
		u.do(next)
	}
}

// do makes one try and puts the job back in the queue if the store failed.
func (u *undoer) do(job undo) {
	// One that hangs must not hold up the others for longer than their terms last.
	budget := min(u.c.timeout, max(job.lock.opts.TTL/4, 100*time.Millisecond))
	_, err := call(u.ctx, u.c, budget, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, u.c.drv.Release(ctx, &driver.ReleaseRequest{
			Ref: job.ref, KeepFor: max(0, time.Until(job.keepUntil)), Undo: job.acquire, Record: job.record,
		})
	}, discard)
	switch {
	case errors.Is(err, driver.ErrGone) && !time.Now().Before(job.over): // it has ended by itself before we got through, as far as we know
		u.abandon(job)
		return
	case err == nil || errors.Is(err, driver.ErrGone):
		return
	case errors.Is(err, driver.ErrClosed):
		u.abandon(job)
		return
	}
	if job.record != nil && unrecordable(err) { // then at least its lock is given back
		job.record = nil
	}
	u.c.emit(Event{Kind: Unreleased, Name: job.lock.name, Key: job.lock.key, Err: job.lock.storeError("release", err)})
	if time.Now().Add(undoPause).After(job.until) {
		u.abandon(job)
		return
	}
	select {
	case <-time.After(jitter(undoPause)):
	case <-u.ctx.Done():
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.queue = append(u.queue, job)
}

var errLeftToExpire = errors.New("the store has not confirmed it in time; the term ends by its TTL")

// abandon tells that a term under which work had ended is left to end by itself: whoever comes next would take its holder for dead.
func (u *undoer) abandon(job undo) {
	if !job.over.IsZero() {
		u.c.emit(Event{Kind: Unreleased, Name: job.lock.name, Key: job.lock.key, Abandoned: true, Err: job.lock.storeError("release", errLeftToExpire)})
	}
}

// stop lets the queue drain until ctx ends, and then waits for the goroutine. Nothing is accepted afterwards.
func (u *undoer) stop(ctx context.Context) {
	u.mu.Lock()
	done := u.done
	u.mu.Unlock()
	if done != nil {
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	u.cancel()
	if done != nil {
		<-done
	}
}
