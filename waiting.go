package holdlock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// stand waits in the store's line until the lock is ours or ctx ends.
func (a *attempt) stand(ctx context.Context) (lease *Lease, err error) {
	c := a.lock.c
	if err := c.begin(); err != nil {
		return nil, err
	}
	defer c.end()
	a.line = true
	waited := false
	defer func() { a.report(ctx, err, waited) }()
	var held, failed error // the last answer about the lock itself, and of the store if that failed since
	pause := backStop{}
	for {
		var got atomic.Pointer[place] // a call that was abandoned may set it at any time
		asked := time.Now()
		lease, err = a.try(ctx, func(ctx context.Context, sent instant, req *driver.AcquireRequest) (driver.Grant, error) {
			p, g, err := c.line.enqueue(ctx, sent, req)
			got.Store(p)
			return g, err
		})
		a.giveUp() // an unclear place is not taken up again: the next try has a nonce of its own
		switch {
		case err == nil:
			return lease, nil
		case errors.Is(err, ErrHeld):
			held, failed = err, nil
		case held == nil:
			return nil, err
		case a.counts(ctx, asked, err):
			a.failing(failed, err)
			failed = err
		}
		waited = true
		if p := got.Load(); p == nil || !errors.Is(err, ErrHeld) { // the store failed
			sleepUntil(ctx, c.closing, pause.next(err))
		} else if lease, err = a.await(ctx, p); err == nil {
			return lease, nil
		} else if errors.As(err, new(*StoreError)) {
			failed = err
		}
		if why := a.ended(ctx); why != nil {
			return nil, gaveUpWaiting(held, failed, why)
		}
	}
}

// errPassed is that a place came to nothing: the store forgot it, skipped it as dead, or its grant came too late.
var errPassed = errors.New("the place in line was lost")

// await waits for the outcome of the place that the last try has got. However it ends, the place is no more. It returns a
// *StoreError if the store has failed since it last answered about the place, else errPassed.
func (a *attempt) await(ctx context.Context, p *place) (*Lease, error) {
	c := a.lock.c
	select {
	case <-p.settled:
		o := *p.outcome
		if o.granted && ctx.Err() == nil {
			return a.take(ctx, p, o)
		}
		if !o.granted {
			return nil, errPassed
		}
	case <-ctx.Done():
	case <-c.closing:
	}
	// Given up. If the key is ours by now or will be in the same moment, this gives it back.
	failure := c.line.drop(p)
	c.undoer.addPlace(a.lock, p.req.Ref)
	if failure != nil {
		return nil, a.lock.placeError(failure)
	}
	return nil, errPassed
}

// placeError is the failure of the store for a place in line. The place may have become the term since the store was last heard.
func (l *Lock) placeError(err error) *StoreError {
	failed := l.storeError("acquire", err)
	failed.Unclear = true
	return failed
}

// take makes a lease of a grant in line, after a renewal where the grant alone is not enough.
func (a *attempt) take(ctx context.Context, p *place, o outcome) (*Lease, error) {
	l, c := a.lock, a.lock.c
	if err := c.begin(); err != nil {
		c.undoer.addPlace(l, p.req.Ref)
		return nil, err
	}
	began := c.clock.now()
	if left := o.lasts - margin(o.lasts) - began.sub(o.sent); left < o.lasts/2 || o.pushed && l.needsAll() {
		full := max(l.opts.TTL, l.opts.MinHold)
		o.sent, o.lasts = began, l.opts.TTL
		_, err := call(ctx, c, min(c.timeout, l.opts.TTL-margin(l.opts.TTL)), func(ctx context.Context) (driver.Grant, error) {
			return c.drv.Renew(ctx, &driver.RenewRequest{Ref: p.req.Ref, TTL: full})
		}, discard)
		if got := c.clock.now(); err == nil && (ctx.Err() != nil || got.sub(o.sent) >= o.lasts-margin(o.lasts)) {
			err = fmt.Errorf("the confirmation came too late: %w", errPassed)
		}
		if err != nil {
			c.end()
			c.undoer.addPlace(l, p.req.Ref)
			if ctx.Err() != nil || errors.Is(err, errPassed) || errors.Is(err, driver.ErrGone) || errors.Is(err, driver.ErrBroken) {
				return nil, errPassed
			}
			return nil, l.placeError(err)
		}
	}
	return l.granted(p.req.Ref, began, o.sent, min(o.lasts, l.opts.TTL), o.grant, a.start, true), nil
}

// needsAll says whether a lease of this lock has to begin with its whole TTL: it is not renewed, the key has to stay taken if
// its holder dies at once, or a push may come from a server that has been replaced.
func (l *Lock) needsAll() bool {
	return l.c.confirm || l.opts.Renew == RenewOff || l.opts.MinHold > 0
}

func sleepUntil(ctx context.Context, closing <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	case <-closing:
	}
}
