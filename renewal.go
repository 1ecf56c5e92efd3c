package holdlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// renewal is the state of keeping one lease alive since its last confirmation.
type renewal struct {
	due      time.Time // when the next try is to be sent
	inFlight bool
	lastErr  error // of the last try that failed
}

// A verdict is what the keeper has to do about a lease now.
type verdict uint8

const (
	sleep verdict = iota // nothing until next
	renew                // send a renewal
	lose                 // end it
	over                 // it has ended: forget it
)

// judge decides what is due for the lease, and when to ask again. It is the whole life of a lease in one place:
//
//	sent ── TTL/3: renew, and again while tries fail ── TTL − margin: lose ── TTL: the store may give the key away
//
// Trust comes first: a renewal that is due does not matter once trust has ended, and one that is in flight does not delay
// the end.
func (l *Lease) judge(now instant) (v verdict, next time.Time, loss *LostError) {
	l.mu.Lock()
	defer l.mu.Unlock()
	opts := &l.lock.opts
	left := l.left(now)
	switch {
	case l.err != nil:
		return over, time.Time{}, nil
	case left <= 0:
		return lose, time.Time{}, l.lossOf(now)
	case opts.Renew == RenewOff:
		return sleep, now.mono.Add(left), nil
	case now.sub(l.began) >= opts.MaxHold:
		return lose, time.Time{}, l.lostError(LossMaxHold, nil)
	}
	next = now.mono.Add(min(left, opts.MaxHold-now.sub(l.began)))
	if l.renewal.inFlight {
		return sleep, next, nil
	}
	if !now.mono.Before(l.renewal.due) {
		l.renewal.inFlight = true
		return renew, next, nil
	}
	if l.renewal.due.Before(next) {
		next = l.renewal.due
	}
	return sleep, next, nil
}

// lossOf says why trust ran out. Called with mu held.
func (l *Lease) lossOf(now instant) *LostError {
	switch r := &l.renewal; {
	case l.lock.opts.Renew == RenewOff:
		return l.lostError(LossExpired, nil)
	case r.lastErr != nil:
		return l.lostError(LossUnreachable, r.lastErr)
	case r.inFlight:
		return l.lostError(LossUnreachable, fmt.Errorf("no answer to a renewal for %s", round(now.mono.Sub(r.due))))
	default: // it was due and nobody got round to sending it
		return l.lostError(LossPaused, fmt.Errorf("a renewal was due %s before and could not be sent", round(now.mono.Sub(r.due))))
	}
}

// renewed takes the answer to a renewal that was sent at sent. It returns the loss that follows from it, if any. An
// answer never revives: what arrives after trust has ended, or after the lease was released, changes nothing.
func (l *Lease) renewed(sent, now instant, err error) *LostError {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return nil
	}
	ttl := l.lock.opts.TTL
	switch {
	case l.left(now) <= 0:
		return l.lossOf(now)
	case err == nil:
		l.confirmed, l.trust, l.margin = sent, ttl-margin(ttl), margin(ttl)
		l.renewal = renewal{due: sent.mono.Add(ttl / 3)}
		return nil
	case errors.Is(err, driver.ErrBroken):
		return l.lostError(LossBroken, err)
	case errors.Is(err, driver.ErrGone):
		return l.lostError(LossGone, err)
	}
	l.renewal = renewal{due: now.mono.Add(jitter(min(ttl, l.trust) / 12)), lastErr: err}
	return nil
}

// renewBatch sends one renewal for each lease, together if the store can, and hands out the answers.
func (k *keeper) renewBatch(leases []*Lease) {
	c := k.c
	reqs := make([]*driver.RenewRequest, len(leases))
	var budget time.Duration
	sent := c.clock.now()
	for i, l := range leases {
		reqs[i] = &driver.RenewRequest{Ref: l.ref, TTL: l.lock.opts.TTL}
		l.mu.Lock()
		// Bounded by the trust that is left, not by a fresh TTL, and short enough for another try.
		budget = max(budget, min(l.left(sent), l.lock.opts.TTL/4, c.timeout))
		l.mu.Unlock()
	}
	results, err := call(k.ctx, c, budget, func(ctx context.Context) ([]driver.RenewResult, error) {
		if c.batch != nil {
			return c.batch.RenewBatch(ctx, reqs), nil
		}
		results := make([]driver.RenewResult, len(reqs))
		for i, req := range reqs {
			results[i].Grant, results[i].Err = c.drv.Renew(ctx, req)
		}
		return results, nil
	}, discard)
	now := c.clock.now()
	for i, l := range leases {
		e := err
		if e == nil {
			e = results[i].Err
		}
		ev := Event{Kind: Renewed, Name: l.lock.name, Key: l.lock.key, Token: l.token}
		if e != nil {
			ev.Kind, ev.Err = RenewFailed, e
		}
		lost := l.renewed(sent, now, e)
		c.emit(ev) // after the deadline has moved, so that an observer can read it
		if lost != nil {
			l.lose(lost)
			continue
		}
		k.reschedule(l)
	}
}

// lose ends the lease before its release.
func (l *Lease) lose(why *LostError) {
	if l.finish(why) {
		l.lock.c.end()
	}
}
