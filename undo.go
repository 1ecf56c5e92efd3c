package holdlock

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// undoer gives back, in the background, what an unclear acquire may have won, what an unclear release may have kept, and the
// places in line that are given up. A term is tried until the store answers or it would have ended anyway. A place has no such
// end, for it lasts as long as its process sends heartbeats for others: it is tried until the store answers, or the process
// has been silent for so long that its places are skipped.
//
// Several are sent at once. While the store fails it is one at a time, with a pause, and as soon as it answers anything all are
// due. What is due first is new, or has been granted: a key that is ours for nobody.
type undoer struct {
	c      *Client
	ctx    context.Context // ended by stop
	cancel context.CancelFunc
	wake   chan struct{}

	mu      sync.Mutex
	queue   []*undo
	sending int
	failing bool          // the last try found the store failing
	pause   time.Time     // no try before, while it fails
	last    time.Time     // by when places are over too: set by stop, else zero
	done    chan struct{} // closed when the goroutine has ended; nil if none runs
}

type undo struct {
	lock      *Lock
	ref       driver.Ref
	acquire   bool           // what is unclear is its acquire, which may still be on its way
	place     bool           // it may stand in line
	record    *driver.Record // of a run whose end is unclear, or nil
	keepUntil time.Time      // the key stays taken until then (MinHold)
	until     time.Time      // the term has ended by itself by then; nothing for a place
	ends      time.Time      // if work under it has ended: when the store may let the term end by itself; else zero
	due       time.Time
	tries     int
	sent      bool // and not answered yet
}

const (
	maxUndos    = 10_000 // beyond this, terms are left to expire, and places to be granted to nobody
	undosAtOnce = 16     // of the calls that a store which ignores its contexts can cost, see maxHung
	undoPause   = 100 * time.Millisecond
	undoLast    = time.Second // the pause doubles until then
)

func newUndoer(c *Client) *undoer {
	ctx, cancel := context.WithCancel(context.Background())
	return &undoer{c: c, ctx: ctx, cancel: cancel, wake: make(chan struct{}, 1)}
}

// addAcquire gives back a term that may exist, or may come to exist when a request arrives late, or likewise a place in line.
// There was no work under it, so it does not keep its key.
func (u *undoer) addAcquire(l *Lock, ref driver.Ref, place bool) {
	u.add(&undo{lock: l, ref: ref, acquire: true, place: place})
}

// addPlace gives back a place that the store has listed, or the term that it has become.
func (u *undoer) addPlace(l *Lock, ref driver.Ref) { u.add(&undo{lock: l, ref: ref, place: true}) }

// addRelease gives back a term under which the work has ended.
func (u *undoer) addRelease(l *Lock, ref driver.Ref, keepUntil, ends time.Time) {
	u.add(&undo{lock: l, ref: ref, keepUntil: keepUntil, ends: ends})
}

// addRecord gives back a term under which a run has ended, and records that.
func (u *undoer) addRecord(l *Lock, ref driver.Ref, keepUntil, ends time.Time, rec *driver.Record) {
	u.add(&undo{lock: l, ref: ref, keepUntil: keepUntil, ends: ends, record: rec})
}

func (u *undoer) add(job *undo) {
	opts := &job.lock.opts
	job.until = time.Now().Add(max(opts.TTL, opts.MinHold))
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ctx.Err() != nil || len(u.queue) >= maxUndos {
		return
	}
	u.queue = append(u.queue, job)
	if u.done == nil {
		u.done = make(chan struct{})
		go u.run(u.done)
		return
	}
	u.poke()
}

func (u *undoer) poke() {
	select {
	case u.wake <- struct{}{}:
	default:
	}
}

// answers says that the store does, so that all are due. nonce is what it has granted, or "": if that is to be given back, it
// is due before the others. It is not to be if it is not here, since a nonce that somebody waits for or has is not.
func (u *undoer) answers(nonce string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.failing {
		u.recovered()
	}
	if nonce == "" {
		return
	}
	if i := slices.IndexFunc(u.queue, func(job *undo) bool { return job.ref.Nonce == nonce }); i >= 0 {
		job := u.queue[i]
		job.due = time.Time{}
		u.queue = slices.Insert(slices.Delete(u.queue, i, i+1), 0, job)
		u.poke()
	}
}

// recovered makes all due. Called with mu held.
func (u *undoer) recovered() {
	u.failing, u.pause = false, time.Time{}
	for _, job := range u.queue {
		job.due, job.tries = time.Time{}, min(job.tries, 1)
	}
	u.poke()
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
	now, stopped := time.Now(), u.ctx.Err() != nil
	u.queue = slices.DeleteFunc(u.queue, func(job *undo) bool {
		if job.sent || !stopped && !job.over(now, u.last) {
			return false
		}
		left = append(left, job)
		return true
	})
	if len(u.queue) == 0 || stopped {
		u.queue, u.done = nil, nil
		return next, false, left
	}
	next = now.Add(undoLast) // or when one is answered
	if u.failing && now.Before(u.pause) {
		return u.pause, true, left
	}
	for _, job := range u.queue {
		if u.sending >= undosAtOnce || u.failing && u.sending > 0 {
			break
		}
		switch {
		case job.sent:
		case job.due.After(now):
			if job.due.Before(next) {
				next = job.due
			}
		default:
			job.sent = true
			u.sending++
			sending.Go(func() { u.do(job) })
		}
	}
	return next, true, left
}

// over says whether there is nothing to give back any more.
func (job *undo) over(now, last time.Time) bool {
	switch {
	case job.place:
		return !last.IsZero() && now.After(last)
	case job.tries == 0:
		return now.After(job.until)
	}
	return now.Add(undoPause).After(job.until)
}

// do makes one try, and leaves the job in the queue if the store failed.
func (u *undoer) do(job *undo) {
	// One that hangs must not hold up the others for longer than their terms last.
	budget := max(job.lock.opts.TTL/4, 100*time.Millisecond)
	if job.place {
		budget = min(budget, undoLast) // it is tried again, and the store may answer by then
	}
	_, err := call(u.ctx, u.c, min(budget, u.c.timeout), func(ctx context.Context) (struct{}, error) {
		return struct{}{}, u.c.drv.Release(ctx, &driver.ReleaseRequest{
			Ref: job.ref, KeepFor: max(0, time.Until(job.keepUntil)), Undo: job.acquire, Record: job.record,
		})
	}, discard)
	told, left := u.judge(job, err)
	if told {
		u.c.emit(Event{Kind: Unreleased, Name: job.lock.name, Key: job.lock.key, Err: job.lock.storeError("release", err)})
	}
	if left {
		u.abandon(job)
	}
}

var errLeftToExpire = errors.New("the store has not confirmed it in time; the term ends by its TTL")

// abandon tells that a term under which work had ended is left to end by itself: whoever comes next would take its holder for dead.
func (u *undoer) abandon(job *undo) {
	if !job.ends.IsZero() {
		u.c.emit(Event{Kind: Unreleased, Name: job.lock.name, Key: job.lock.key, Abandoned: true, Left: &job.ref, Err: job.lock.storeError("release", errLeftToExpire)})
	}
}

// judge takes the outcome of a try, and says whether it is to be told, and whether the term is left to end by itself.
func (u *undoer) judge(job *undo, err error) (told, left bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	defer u.poke()
	u.sending--
	job.sent = false
	job.tries++
	gone, closed, stopped := errors.Is(err, driver.ErrGone), errors.Is(err, driver.ErrClosed), u.ctx.Err() != nil
	if err == nil || gone || closed || stopped {
		u.queue = slices.DeleteFunc(u.queue, func(other *undo) bool { return other == job })
	}
	if err == nil || gone || closed {
		if u.failing {
			u.recovered()
		}
		return false, closed || gone && !time.Now().Before(job.ends) // it has ended by itself before we got through, as far as we know
	}
	if job.record != nil && unrecordable(err) { // then at least its lock is given back
		job.record = nil
	}
	now, pause := time.Now(), undoPause
	if job.place { // it may be tried for very long
		pause = min(undoLast, undoPause<<min(job.tries-1, 10))
	}
	job.due = now.Add(jitter(pause))
	if !errors.Is(err, driver.ErrDamaged) { // else it has answered, about this one
		u.failing, u.pause = true, now.Add(jitter(undoPause))
	}
	return job.tries == 1 || !job.place, stopped
}

// stop lets the queue drain until ctx ends, and then waits for the goroutine. Nothing is accepted afterwards. It is called
// when no more heartbeats are sent, so places are over soon.
func (u *undoer) stop(ctx context.Context) {
	u.mu.Lock()
	u.last = time.Now().Add(driver.Alive)
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
