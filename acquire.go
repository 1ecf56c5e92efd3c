package holdlock

import (
	"context"
	crand "crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// attempt is one call of TryAcquire, Acquire or Do on its way to a lease.
type attempt struct {
	lock  *Lock
	start time.Time
	met   bool          // somebody else's term
	nonce string        // of the last try if its outcome is unclear, so that the next one may find itself; else ""
	idle  bool          // no hint has come: the next try is only in case that one got lost
	claim *driver.Claim // of a run of a job, or nil
	line  bool          // its tries take places in line
}

// newNonce returns 128 random bits. It is chosen before the request is sent, for one term only.
func newNonce() string {
	var b [16]byte
	_, _ = crand.Read(b[:]) // cannot fail: crypto/rand ends the program instead
	return hex.EncodeToString(b[:])
}

// once makes one try and gives back what an unclear one may have won.
func (a *attempt) once(ctx context.Context) (*Lease, error) {
	lease, err := a.try(ctx, a.ask)
	a.giveUp()
	a.report(ctx, err, false)
	return lease, err
}

// report tells how an attempt ended without a lease, once.
func (a *attempt) report(ctx context.Context, err error, waited bool) {
	e := Event{Name: a.lock.name, Key: a.lock.key, Waited: time.Since(a.start), Contended: a.met, Err: err}
	var held *HeldError
	switch {
	case err == nil, errors.As(err, new(*JobError)): // what a record answers has events of its own
		return
	case errors.As(err, &held):
		e.Kind, e.Token, e.Holder, e.GaveUp = Skipped, held.Token, holderOf(held), waited
	case waited || ctx.Err() == nil: // else the caller has gone before there was an answer
		e.Kind = Failed
	default:
		return
	}
	a.lock.c.emit(e)
}

// poll tries until the lock is ours or ctx ends: after a hint from the store, when the present term should be over, and
// now and then in any case, because hints can be lost and keys can be freed by hand.
func (a *attempt) poll(ctx context.Context) (*Lease, error) {
	lease, err := a.try(ctx, a.ask)
	if err == nil || !errors.Is(err, ErrHeld) && !errors.Is(err, driver.ErrAbstains) {
		a.giveUp()
		a.report(ctx, err, false)
		return lease, err
	}
	if err := a.lock.c.begin(); err != nil {
		return nil, err
	}
	defer a.lock.c.end()
	watch, stop := a.watch(ctx)
	defer stop()
	defer a.giveUp()
	var hints <-chan struct{} // none until the watch has begun: a store that hangs there must not hold up the tries
	var pause backStop
	timer := time.NewTimer(pause.next(err))
	defer timer.Stop()
	held, failed := err, error(nil) // the last answer about the lock itself, and of the store if that failed since
	if !errors.Is(err, ErrHeld) {
		held, failed = nil, err
	}
	for {
		a.idle = false
		select {
		case <-ctx.Done():
		case <-a.lock.c.closing:
		case hints = <-watch: // the key may have become free before it began
			watch, pause.pushed = nil, true
		case <-hints:
		case <-timer.C:
			a.idle = pause.pushed
		}
		if why := a.ended(ctx); why != nil {
			err := gaveUpWaiting(held, failed, why)
			a.report(ctx, err, true)
			return nil, err
		}
		asked := time.Now()
		lease, err = a.try(ctx, a.ask)
		switch {
		case err == nil:
			return lease, nil
		case errors.Is(err, ErrHeld):
			held, failed = err, nil
		case errors.As(err, new(*JobError)): // the record answers, for good
			return nil, err
		case a.counts(ctx, asked, err):
			a.failing(failed, err)
			failed = err
		}
		timer.Reset(pause.next(err))
	}
}

// answersIn is how long a store may be silent before the end of a wait, and not have failed.
const answersIn = time.Second

// counts says whether a failed call of a wait is a failure of the store: one that the end of the wait has cut off is only if it
// had been without an answer for long.
func (a *attempt) counts(ctx context.Context, asked time.Time, err error) bool {
	return errors.As(err, new(*StoreError)) && (ctx.Err() == nil || time.Since(asked) >= answersIn)
}

// failing tells, once, that a wait goes on although the store fails, and once more if it will not pass. before is its failure
// until now.
func (a *attempt) failing(before, err error) {
	if before == nil || lasts(err) && !lasts(before) {
		a.lock.c.emit(Event{Kind: WaitFailing, Name: a.lock.name, Key: a.lock.key, Err: err})
	}
}

// lasts says whether a failure of the store will not pass until somebody does something about it.
func lasts(err error) bool {
	return errors.Is(err, driver.ErrDenied) || errors.Is(err, driver.ErrDamaged)
}

// ended says why a wait must end now, or nil.
func (a *attempt) ended(ctx context.Context) error {
	if ctx.Err() != nil {
		return waitError(ctx)
	}
	select {
	case <-a.lock.c.closing:
		return ErrShutdown
	default:
		return nil
	}
}

// gaveUpWaiting says who holds the lock and why the wait ended. If the store has failed since it last said who does, that is
// what it says, and who held it then.
func gaveUpWaiting(held, failed, why error) error {
	var store *StoreError
	var h *HeldError
	known := errors.As(held, &h)
	if errors.As(failed, &store) && known {
		return fmt.Errorf("%w; last known of it: %s; gave up waiting: %w", store, h.state(), why)
	}
	if store != nil {
		return fmt.Errorf("%w; gave up waiting: %w", store, why)
	}
	out := *h
	out.Err = why
	return &out
}

// watch begins to watch, and hands out the hints when the store has. It ends with stop, or with ctx, whether it has begun or not.
func (a *attempt) watch(ctx context.Context) (begun <-chan (<-chan struct{}), stop func()) {
	c := a.lock.c
	if c.waiter == nil {
		return nil, func() {}
	}
	type watch struct {
		hints <-chan struct{}
		stop  func()
	}
	ctx, stop = context.WithCancel(ctx)
	out := make(chan (<-chan struct{}), 1)
	// Ending a watch is a call of the store, which whoever has just got the lock need not wait for.
	c.also(func() {
		w, err := call(ctx, c, c.timeout, func(ctx context.Context) (w watch, err error) {
			w.hints, w.stop, err = c.waiter.Watch(ctx, storeKey(a.lock.name, a.lock.key))
			return w, err
		}, func(w watch, err error) {
			if err == nil {
				w.stop()
			}
		})
		if err != nil {
			return // poll instead
		}
		out <- w.hints
		<-ctx.Done()
		w.stop()
	})
	return out, stop
}

// ask is the acquire of a store, for try.
func (a *attempt) ask(ctx context.Context, _ instant, req *driver.AcquireRequest) (driver.Grant, error) {
	return a.lock.c.drv.Acquire(ctx, req)
}

// try sends one acquire, by what is given, and judges the answer. What is given learns after which moment it is called.
func (a *attempt) try(
	ctx context.Context, acquire func(context.Context, instant, *driver.AcquireRequest) (driver.Grant, error),
) (*Lease, error) {
	l, c := a.lock, a.lock.c
	if err := c.begin(); err != nil {
		return nil, err
	}
	if err := c.undoer.full(); err != nil {
		c.end()
		return nil, l.storeError("acquire", err)
	}
	nonce, idle, first := a.nonce, a.idle, a.nonce == ""
	if first {
		nonce = newNonce()
	} else {
		idle = false // it must find out about itself
	}
	a.nonce = ""
	req := l.request(nonce)
	req.BackStop, req.First, req.Once = idle, first, a.claim
	trust := l.opts.TTL - margin(l.opts.TTL)
	undo := func() { c.undoer.addAcquire(a, req.Ref) }
	late := func() { // the one before with this nonce had no answer: it may still be on its way, and the nonce is not used any more
		if !first {
			undo()
		}
	}

	sent := c.clock.now() // before the first byte: the store starts to count later
	grant, err := call(ctx, c, min(c.timeout, trust),
		func(ctx context.Context) (driver.Grant, error) { return acquire(ctx, sent, req) },
		func(driver.Grant, error) { undo() })
	got := c.clock.now()

	if err == nil && ctx.Err() == nil && got.sub(sent) < trust {
		return l.granted(req.Ref, sent, sent, l.opts.TTL, grant, a.start, a.met), nil
	}
	defer c.end()
	var held *driver.HeldError
	var job *driver.JobError
	switch {
	case errors.As(err, &job):
		late()
		return nil, l.jobError(job)
	case err == nil && ctx.Err() != nil:
		undo() // an acquire that was cancelled never succeeds
		return nil, fmt.Errorf("acquire of lock %s: %w", describe(l.name, l.key), waitError(ctx))
	case errors.As(err, &held):
		late()
		a.met = true
		return nil, l.heldError(&held.Term, nil)
	case err == nil:
		undo()
		err = fmt.Errorf("the grant took %s to arrive, too long for a TTL of %s", round(got.sub(sent)), l.opts.TTL)
	}
	failed := l.storeError("acquire", err)
	if failed.Unclear && !errors.Is(err, errAbandoned) {
		a.nonce = nonce // the next try may find that this one won; an abandoned call undoes itself when it returns
	}
	return nil, failed
}

// request is what is asked of the store.
func (l *Lock) request(nonce string) *driver.AcquireRequest {
	req := &driver.AcquireRequest{
		Ref: driver.Ref{Key: storeKey(l.name, l.key), Nonce: nonce},
		TTL: l.opts.TTL, MinHold: l.opts.MinHold,
		Floor: driver.TokenAt(time.Now()), Holder: l.c.holder,
	}
	req.Holder.Purpose = l.opts.Purpose
	return req
}

func holderOf(h *HeldError) *Holder {
	if h.Cooling {
		return nil
	}
	return &h.Holder
}

// giveUp undoes the last try if it is unclear and will not be repeated.
func (a *attempt) giveUp() {
	if a.nonce != "" {
		a.lock.c.undoer.addAcquire(a, driver.Ref{Key: storeKey(a.lock.name, a.lock.key), Nonce: a.nonce})
		a.nonce = ""
	}
}

// backStop decides how long to wait before asking again without a hint.
type backStop struct {
	pushed bool // the store sends hints
	tries  int
}

const (
	pollFirst  = 25 * time.Millisecond // without hints: doubles from here
	pollLast   = time.Second
	pollPushed = 3 * time.Second      // with hints: only for those that get lost
	pollExpiry = 2 * time.Millisecond // after the end of a term
)

// next returns a jittered delay, shorter if the present term should be over by then. Everybody who waits learns of the
// end of a term at the same moment, so that is jittered as well.
func (b *backStop) next(last error) time.Duration {
	d := pollPushed
	if !b.pushed {
		d = min(pollLast, pollFirst<<min(b.tries, 10))
	}
	var store *StoreError
	if errors.As(last, &store) { // no hint will come while the store is down
		d = min(pollLast, pollFirst<<min(b.tries, 10))
	}
	b.tries++
	d = jitter(d)
	var held *HeldError
	if errors.As(last, &held) && held.FreeIn < d {
		in := max(0, held.FreeIn)
		d = in + pollExpiry + rand.N(min(in/20, 100*time.Millisecond)+pollExpiry)
	}
	return d
}

// jitter returns a duration between half of d and d.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d/2+1)
}
