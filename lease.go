package holdlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/unused"
)

// A Lease is one term of holding one lock, from its grant to its release or loss. It is never used again afterwards.
// Its methods are safe for concurrent use.
type Lease struct {
	lock  *Lock
	ref   driver.Ref
	token Token
	began instant     // when the acquire was sent, or the hand-over arrived
	first first       // what the grant alone was worth
	job   *driver.Job // that it is a run of; nil if it is none

	mu        sync.Mutex
	confirmed instant       // when the last confirmed request was sent: trust counts from here
	trust     time.Duration // how long that is worth: TTL − margin, less after a hand-over
	margin    time.Duration // for how much longer the store keeps the key, by clocks that run alike
	err       error         // nil while the lease lasts, else why it ended
	done      chan struct{} // closed when err is set; made for the first who asks
	released  bool          // Release was called
	renewal   renewal
	works     map[*work]struct{}

	tokenRead atomic.Bool // reviews ask whether a fence that is declared is ever used

	alarm alarm // the keeper's, guarded by the keeper's mutex
}

// work is one context that ends with the lease.
type work struct{ cancel context.CancelCauseFunc }

// granted makes the lease of a grant that lasts for some time from sent on, and puts it under the keeper's eye. The caller
// has counted it with begin.
func (l *Lock) granted(ref driver.Ref, began, sent instant, lasts time.Duration, g driver.Grant, start time.Time, contended bool) *Lease {
	lease := &Lease{
		lock: l, ref: ref, token: g.Token, job: g.Job,
		began: began, first: first{sent, lasts - margin(lasts)}, trust: lasts - margin(lasts), margin: margin(lasts), confirmed: sent,
		renewal: renewal{due: sent.mono.Add(lasts / 3)},
	}
	if lasts < l.opts.TTL { // a hand-over: work that is over before the claim is costs no renewal
		lease.renewal.due = sent.mono.Add(lasts * 3 / 5)
	}
	watched := l.c.keeper.add(lease)
	e := Event{Kind: Granted, Name: l.name, Key: l.key, Token: g.Token, Waited: time.Since(start), Contended: contended, TTL: l.opts.TTL, Shadow: l.opts.Mode == Shadow}
	l.c.emit(e)
	if g.Previous == driver.Lapsed || g.Previous == driver.Broken {
		e.Kind, e.Ending, e.Prior = Lapsed, g.Previous, g.Prior
		l.c.emit(e)
	}
	switch {
	case !watched:
		lease.lose(lease.lostError(LossShutdown, nil))
	case l.c.losses != nil: // after the rest, because the loss may have come already
		l.c.losses.NotifyLoss(lease.ref, func(err error) { lease.lose(lease.lostError(LossDisconnected, err)) })
	}
	return lease
}

// Name returns the lock's name.
func (l *Lease) Name() string { return l.lock.name }

// Key returns the key, or "" for a lock without one.
func (l *Lease) Key() string { return l.lock.key }

// Token returns the fencing token: larger than that of every earlier lease of this key, as far as Traits.Fencing
// promises, and the same as long as the lease lasts. Send it with every effect to a resource that can compare it. As
// text it is a decimal number.
func (l *Lease) Token() Token {
	l.tokenRead.Store(true)
	return l.token
}

// Ref returns what proves ownership of the lease. It is a secret: whoever has it can end the lease. It is for handing to
// another process of yours that gives the lease back when this one has died, and for nothing else.
func (l *Lease) Ref() driver.Ref { return l.ref }

// Deadline returns the time at which trust ends unless a renewal succeeds first. Do not compare it with a wall clock of
// another machine; to ask whether there is time for an effect, use Check.
func (l *Lease) Deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.lock.c.clock.now()
	return now.mono.Add(l.left(now))
}

// left is how much trust is left. It is negative when trust has ended. Called with mu held.
func (l *Lease) left(now instant) time.Duration {
	if l.shadow() {
		return maxTTL
	}
	return l.trust - now.sub(l.confirmed)
}

// Check returns nil if the lease is ours for at least need longer. Call it right before each effect that must not happen
// twice, with the longest that the effect can take. It compares clocks and does not talk to the store, so it is right
// even in the first instruction after a pause, when contexts still look alive. The errors are ErrLost, ErrReleased, and
// ErrShort if the lease is ours for less than need.
//
// It does not promise that the effect happens in time: the process can still be paused between Check and the effect.
// Only a resource that compares Token can refuse what comes too late.
func (l *Lease) Check(need time.Duration) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	now := l.lock.c.clock.now()
	switch left := l.left(now); {
	case left <= 0:
		return l.lossOf(now) // the alarm is on its way
	case left < need:
		return fmt.Errorf("%w: lock %s (token %d) is ours for %s more, %s needed",
			ErrShort, describe(l.lock.name, l.lock.key), l.token, round(left), need)
	}
	return nil
}

// Done returns a channel that is closed when the lease ends, by release or loss.
func (l *Lease) Done() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done == nil {
		l.done = make(chan struct{})
		if l.err != nil {
			close(l.done)
		}
	}
	return l.done
}

// Err returns nil while the lease lasts, then why it ended: ErrReleased or a *LostError. A nil is not a promise that the
// lease still holds: after a pause the alarm may be late. See Check.
func (l *Lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// WithContext returns a child of ctx that also ends when the lease ends, with Err as its cause. Call cancel when the work
// is done, as with any context.
func (l *Lease) WithContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		cancel(l.err)
		return ctx, func() {}
	}
	w := &work{cancel}
	if l.works == nil {
		l.works = make(map[*work]struct{}, 1)
	}
	l.works[w] = struct{}{}
	return ctx, func() {
		l.mu.Lock()
		delete(l.works, w)
		l.mu.Unlock()
		cancel(context.Canceled)
	}
}

// Release gives the lease back. Call it when the work has stopped, never before. It works after ctx has ended: ctx gives
// values only, and CallTimeout bounds the call. Further calls return ErrReleased, or the loss again.
//
// nil: given back, or over in due time after the work had ended. ErrLost: the lease had ended before this call, or the
// store had given the key away; work may have overlapped. ErrUnknown or ErrUnreachable: the store did not confirm it, and
// it is tried again in the background until the TTL has passed.
func (l *Lease) Release(ctx context.Context) error {
	c := l.lock.c
	l.mu.Lock()
	if l.released {
		defer l.mu.Unlock()
		return l.err
	}
	l.released = true
	if l.job != nil {
		defer c.end() // what Claim began
	}
	lost, now := l.err, c.clock.now()
	if lost == nil && l.left(now) <= 0 {
		lost = l.lossOf(now) // the alarm is on its way: whether the work overlapped is decided by trust, not by it
	}
	l.mu.Unlock()

	if lost == nil {
		if l.shadow() { // whoever watches gives the term back
			if l.finish(ErrReleased) {
				c.end()
			}
			return nil
		}
		if l.finish(ErrReleased) {
			defer c.end() // after the store was told, so that Shutdown does not close it before
			e, err := l.giveBack(ctx, now)
			c.emit(e)
			return err
		}
		lost = l.Err() // lost between the two lines above
	} else if l.finish(lost) {
		defer c.end()
	}
	l.outlived(lost, now)
	var loss *LostError
	if errors.As(lost, &loss) && loss.Reason != LossGone {
		// The work is over: its key need not wait for the TTL. That it is given back is no second end of the lease.
		if e, _ := l.giveBack(ctx, now); e.Kind == Unreleased {
			e.Held, e.TTL, e.TokenRead = 0, 0, false // that has been told
			c.emit(e)
		}
	}
	return lost
}

// outlived tells that the work of a lease which was lost is over.
func (l *Lease) outlived(lost error, now instant) {
	var loss *LostError
	if errors.As(lost, &loss) {
		l.lock.c.emit(Event{
			Kind: Outlived, Name: l.lock.name, Key: l.lock.key, Token: l.token, Reason: loss.Reason,
			TTL: l.lock.opts.TTL, Held: now.sub(l.began), TokenRead: l.tokenRead.Load(),
		})
	}
}

// giveBack tells the store, once now and if need be again in the background. The event says how it went.
func (l *Lease) giveBack(ctx context.Context, now instant) (Event, error) {
	c, name, key := l.lock.c, l.lock.name, l.lock.key
	idle, keepUntil := unused.Is(ctx), l.began.mono.Add(l.lock.opts.MinHold)
	if idle {
		keepUntil = time.Time{}
	}
	_, err := call(context.WithoutCancel(ctx), c, c.timeout, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, c.drv.Release(ctx, &driver.ReleaseRequest{Ref: l.ref, KeepFor: max(0, time.Until(keepUntil)), Undo: idle, Answered: idle})
	}, discard)
	e := Event{Name: name, Key: key, Token: l.token, TTL: l.lock.opts.TTL, Held: now.sub(l.began), TokenRead: l.tokenRead.Load()}
	switch {
	case err == nil:
		e.Kind = Released
	case errors.Is(err, driver.ErrGone):
		l.mu.Lock()
		due := l.left(c.clock.now()) <= 0
		l.mu.Unlock()
		if due { // it arrived late, and the term had ended by itself after the work had
			if ends := l.over(now); !ends.IsZero() && !time.Now().Before(ends) {
				c.undoer.abandon(&undo{lock: l.lock, nonce: l.ref.Nonce, ends: ends, doubt: l.forgettable(now)})
			}
			e.Kind, err = Released, nil
			break
		}
		lost := l.goneError(err)
		e.Kind, e.Reason, e.Err, err = Lost, lost.Reason, lost, lost
	default:
		c.undoer.addRelease(l, keepUntil, now, idle)
		err = l.lock.storeError("release", err)
		e.Kind, e.Err = Unreleased, err
	}
	return e, err
}

// over returns when the store may let the term end by itself, if the work of a lease that is given back had ended before, at now;
// else zero. Then nobody can have run beside it, whoever finds the term lapsed. On paper:
//
//	sent ── trust ends ── half the margin ── TTL: the store may give the key away
//
// What is released in time ended within trust. Work that was told of a loss, because trust ended or MaxHold came, needs a moment to stop.
// The margin is for that and for clocks that run at different rates; half of it is left for the clocks, which is more than any
// are apart. It is counted on the worse of both clocks from the last request that the store is known to have got, so that an
// answer that was lost only makes the term longer; and after a hand-over from what that was worth. Nothing follows from time where
// the term did not last until then: the store has forgotten it, an operator has broken it, or it lived on a connection, which the
// server may have ended at any moment.
func (l *Lease) over(now instant) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if errors.Is(l.err, ErrReleased) {
		return l.confirmed.mono.Add(l.trust)
	}
	var loss *LostError
	if !errors.As(l.err, &loss) || l.lock.c.losses != nil {
		return time.Time{}
	}
	switch until := l.trust + l.margin/2; loss.Reason {
	case LossUnreachable, LossPaused, LossExpired, LossMaxHold:
		if now.sub(l.confirmed) < until {
			return l.confirmed.mono.Add(until)
		}
	}
	return time.Time{}
}

// first is trust in a grant before any renewal.
type first struct {
	sent  instant
	trust time.Duration
}

// forgettable says that work which has ended, at now, depended on a renewal, and that the store may have forgotten that one, in a failover
// or a restart: then the term may have ended before the work had, and nobody knows. A store that forgets the grant as well forgets whose term it was.
func (l *Lease) forgettable(now instant) bool {
	forgets := l.lock.c.traits.Forgets
	return (forgets == driver.OnRestart || forgets == driver.OnFailover) && now.sub(l.first.sent) >= l.first.trust
}

// goneError is the loss of a lease whose term the store no longer has.
func (l *Lease) goneError(err error) *LostError {
	if errors.Is(err, driver.ErrBroken) {
		return l.lostError(LossBroken, err)
	}
	return l.lostError(LossGone, nil)
}

// finish ends the lease with err, unless it has ended. It reports whether it did; the caller then owes the client an end.
func (l *Lease) finish(err error) bool {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return false
	}
	l.err = err
	works := l.works
	l.works = nil
	if l.done != nil {
		close(l.done)
	}
	l.mu.Unlock()

	for w := range works {
		w.cancel(err)
	}
	c := l.lock.c
	c.keeper.remove(l)
	var lost *LostError
	if errors.As(err, &lost) {
		c.emit(Event{
			Kind: Lost, Name: l.lock.name, Key: l.lock.key, Token: l.token, Reason: lost.Reason, Err: lost,
			TTL: l.lock.opts.TTL, Held: c.clock.now().sub(l.began), TokenRead: l.tokenRead.Load(),
		})
	}
	return true
}

func (l *Lease) lostError(r LossReason, err error) *LostError {
	return &LostError{Name: l.lock.name, Key: l.lock.key, Token: l.token, Reason: r, Err: err}
}
