package drivertest

import (
	"errors"
	"strings"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// R4: Break ends the term that the operator saw, and never its successor.
var breakCases = []testCase{
	{"R4/BreakMarks", func(r *rig) {
		a, b := r.open(), r.open()
		op := r.breaker(b)
		if op == nil {
			return
		}
		t := r.acquire(a, "k", r.long/2)
		before := r.look(b, "k")
		r.mustBreak(op, &driver.BreakRequest{Ref: t.ref, By: "ops: stuck"})
		_, err := a.Renew(r.ctx, &driver.RenewRequest{Ref: t.ref, TTL: r.long})
		r.broken("Renew of a broken term", err)
		// A retry of the acquire must not bring the time back either.
		if _, err := a.Acquire(r.ctx, &driver.AcquireRequest{Ref: t.ref, TTL: r.long, Holder: me()}); err == nil {
			r.Errorf("R4: Acquire granted a broken term again")
		}
		// The holder may be at work as long as it thinks that it holds.
		before.Broken = "ops: stuck"
		r.unchanged(before, r.look(b, "k"))
		if s := r.refused(b, "k"); s.Broken != "ops: stuck" {
			r.Errorf("R10: the broken term is shown with Broken = %q", s.Broken)
		}
	}},
	{"R4/ABrokenTermPassesAtItsEnd", func(r *rig) {
		a, b := r.open(), r.open()
		op := r.breaker(b)
		if op == nil {
			return
		}
		t := r.acquire(a, "k", 2*r.short)
		for op.Break(r.ctx, &driver.BreakRequest{Ref: t.ref, By: "ops: stuck"}) != nil {
			if time.Now().Before(t.earliest()) {
				r.Fatalf("R4: a term could not be broken before its end")
			}
			t = r.acquire(a, "k", 2*r.short) // the store is slow today
		}
		r.broke(t, r.passes(b, "k", t.earliest(), r.latest(t)), "ops: stuck")
	}},
	{"R4/BreakNowFreesAtOnce", func(r *rig) {
		a, b := r.open(), r.open()
		op := r.breaker(b)
		if op == nil {
			return
		}
		t := r.acquire(a, "k", r.long)
		r.mustBreak(op, &driver.BreakRequest{Ref: t.ref, By: "ops: now", Now: true})
		_, err := a.Renew(r.ctx, &driver.RenewRequest{Ref: t.ref, TTL: r.long})
		r.broken("Renew of a term that was broken at once", err)
		r.gone("Release of a term that was broken at once", a.Release(r.ctx, &driver.ReleaseRequest{Ref: t.ref}))
		next := r.acquire(b, "k", r.long)
		r.broke(t, next, "ops: now")
		_, err = a.Renew(r.ctx, &driver.RenewRequest{Ref: t.ref, TTL: r.long})
		r.broken("Renew of a broken term that has a successor", err)
		if err != nil && !strings.Contains(err.Error(), "ops: now") {
			r.Errorf("R10: the error does not say who broke it: %v", err)
		}
		r.renew(&next, r.long)
	}},
	{"R4/ABrokenTermCanBeReleased", func(r *rig) {
		a, b := r.open(), r.open()
		op := r.breaker(b)
		if op == nil {
			return
		}
		t := r.acquire(a, "k", r.long)
		r.mustBreak(op, &driver.BreakRequest{Ref: t.ref, By: "ops"})
		r.release(t) // its holder has stopped and says so: nobody needs to wait for the end of the term
		next := r.acquire(b, "k", r.long)
		if next.Previous != driver.Released && next.Previous != driver.Broken {
			r.Errorf("Previous = %v after a broken term was released", next.Previous)
		}
	}},
	{"R4/BreakMatchesTheNonce", func(r *rig) {
		d := r.open()
		op := r.breaker(d)
		if op == nil {
			return
		}
		stale := r.acquire(d, "k", r.short)
		r.lapse(stale)
		r.gone("Break of a term that has lapsed", op.Break(r.ctx, &driver.BreakRequest{Ref: stale.ref, By: "ops"}))
		rival := r.acquire(d, "k", r.long)
		before := r.look(d, "k")
		for _, now := range []bool{false, true} {
			for _, ref := range []driver.Ref{stale.ref, {Key: "k", Nonce: newNonce()}} {
				r.gone("Break of a term that is not the current one",
					op.Break(r.ctx, &driver.BreakRequest{Ref: ref, By: "ops", Now: now}))
			}
		}
		never := driver.Ref{Key: "never", Nonce: newNonce()}
		r.gone("Break of a key that never was", op.Break(r.ctx, &driver.BreakRequest{Ref: never, By: "ops"}))
		r.unchanged(before, r.look(d, "k"))
		r.renew(&rival, r.long)
	}},
	{"R4/BreakTakesTheNonceThatIsShown", func(r *rig) {
		// The operator's way: Inspect tells which term is meant, Break ends that one.
		a, b := r.open(), r.open()
		op := r.breaker(b)
		if op == nil {
			return
		}
		r.acquire(a, "k", r.long)
		seen := r.look(b, "k")
		r.mustBreak(op, &driver.BreakRequest{Ref: driver.Ref{Key: "k", Nonce: seen.Nonce}, By: "ops", Now: true})
		r.acquire(b, "k", r.long)
	}},
}

// breaker returns nil if the store cannot break terms.
func (r *rig) breaker(d driver.Driver) driver.Breaker {
	r.Helper()
	op, ok := driver.As[driver.Breaker](d)
	if !ok {
		return nil
	}
	if _, lists := driver.As[driver.Lister](d); !lists {
		r.Fatalf("the store is a Breaker and not a Lister: nobody could find out the nonce of the term to break")
	}
	return op
}

func (r *rig) mustBreak(op driver.Breaker, req *driver.BreakRequest) {
	r.Helper()
	if err := op.Break(r.ctx, req); err != nil {
		r.Fatalf("Break of the current term of %q: %v", req.Ref.Key, err)
	}
}

func (r *rig) broken(what string, err error) {
	r.Helper()
	r.gone(what, err)
	if !errors.Is(err, driver.ErrBroken) {
		r.Errorf("R10: %s: want ErrBroken, got %v", what, err)
	}
}

// broke checks what the successor of a broken term is told.
func (r *rig) broke(t, next term, by string) {
	r.Helper()
	switch {
	case next.Previous != driver.Broken:
		r.Errorf("Previous = %v after a broken term, want broken", next.Previous)
	case next.Prior == nil:
		r.Errorf("Prior is nil just after a broken term")
	case next.Prior.Broken != by || next.Prior.Token != t.Token || next.Prior.Holder != me():
		r.Errorf("Prior = %+v after a term with token %d that was broken by %q", *next.Prior, t.Token, by)
	}
	r.above(t, next)
}
