package drivertest

import (
	"errors"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// R3: tokens strictly rise from one term of a key to the next, and do not change within a term.
var tokenCases = []testCase{
	{"R3/TokensRiseOverRelease", func(r *rig) {
		drivers := []driver.Driver{r.open(), r.open(), r.open()}
		var last term
		for i := range 12 {
			last = r.above(last, r.acquire(drivers[i%3], "k", r.long))
			r.release(last)
		}
	}},
	{"R3/TokensRiseOverExpiry", func(r *rig) {
		a, b := r.open(), r.open()
		last := r.acquire(a, "k", r.short)
		r.lapse(last)
		r.above(last, r.acquire(b, "k", r.long))
	}},
	{"R3/TokensRiseOverReopen", func(r *rig) {
		first := r.acquire(r.open(), "k", r.long)
		if err := first.d.Close(); err != nil {
			r.Fatalf("Close: %v", err)
		}
		again := r.open()
		first.d = again
		r.renew(&first, r.long) // Close has not touched it
		r.release(first)
		if err := again.Close(); err != nil {
			r.Fatalf("Close: %v", err)
		}
		r.above(first, r.acquire(r.open(), "k", r.long))
	}},
	{"R3/TokenIsConstantWithinATerm", func(r *rig) {
		d := r.open()
		t := r.acquire(d, "k", r.long)
		first := t.Token
		for range 3 {
			r.renew(&t, r.long) // fails if the token is another one
		}
		if s := r.look(d, "k"); s.Token != first {
			r.Errorf("R3: the term is shown with token %d, granted with %d", s.Token, first)
		}
		if s := r.refused(d, "k"); s.Token != first {
			r.Errorf("R3: *HeldError shows token %d, granted was %d", s.Token, first)
		}
	}},
	{"R3/TokensAreNotBehindTheClock", func(r *rig) {
		// So that a store that lost its counters does not start again from 1.
		t := r.acquire(r.open(), "k", r.long)
		if low := driver.TokenAt(t.sent.Add(-clockSkew)); r.fenced() && t.Token < low {
			r.Errorf("R3: the first token %d is below the clock's %d", t.Token, low)
		}
	}},
	{"R3/FloorAheadIsKept", func(r *rig) {
		// A caller whose clock, or whose quorum, is a little ahead is followed exactly.
		req := r.request("k", r.long)
		req.Floor = driver.TokenAt(time.Now().Add(time.Second - clockSkew))
		if t := r.grant(r.open(), req); r.fenced() && t.Token < req.Floor {
			r.Errorf("R3: token %d is below the floor %d", t.Token, req.Floor)
		}
	}},
	{"R3/FloorFarAheadIsClamped", func(r *rig) {
		// A caller with a wrong clock must not use up the numbers.
		d := r.open()
		req := r.request("k", r.long)
		req.Floor = driver.MaxToken
		t := r.grant(d, req)
		if high := driver.TokenAt(t.heard.Add(time.Second + clockSkew)); t.Token > high {
			r.Errorf("R3: token %d is more than a second ahead of the clock (%d)", t.Token, high)
		}
		r.release(t)
		r.above(t, r.acquire(d, "k", r.long))
	}},
	{"R3/FloorBehindIsHarmless", func(r *rig) {
		d := r.open()
		t := r.acquire(d, "k", r.long)
		r.release(t)
		req := r.request("k", r.long)
		req.Floor = 1
		r.above(t, r.grant(d, req))
	}},
	{"R3/RenewRaisesToExactlyTheFloor", func(r *rig) {
		d := r.open()
		t := r.acquire(d, "k", r.long)
		if !r.fenced() {
			_, err := d.Renew(r.ctx, &driver.RenewRequest{Ref: t.ref, TTL: r.long, Floor: 7})
			if err == nil || errors.Is(err, driver.ErrGone) {
				r.Errorf("R3: a store without tokens answered a Renew with a floor by %v; want a refusal", err)
			}
			return
		}
		// The order is exact, however far ahead: a quorum has already agreed on this number.
		floor := t.Token + 3_600_000_000
		for range 2 { // the second time it is there already
			r.renewTo(&t, r.long, floor)
			if t.Token != floor {
				r.Errorf("R3: Renew to the floor %d gave %d", floor, t.Token)
			}
		}
		r.renew(&t, r.long) // the raised token lasts
		if s := r.look(d, "k"); s.Token != floor {
			r.Errorf("R3: the term is shown with token %d after it was raised to %d", s.Token, floor)
		}
		r.release(t)
		r.above(t, r.acquire(d, "k", r.long))
	}},
	{"R3/APassedFloorChangesNothing", func(r *rig) {
		d := r.open()
		t := r.acquire(d, "k", r.long/2)
		if !r.fenced() {
			return
		}
		before := r.look(d, "k")
		_, err := d.Renew(r.ctx, &driver.RenewRequest{Ref: t.ref, TTL: r.long, Floor: t.Token - 1})
		if !errors.Is(err, driver.ErrTokenPassed) || errors.Is(err, driver.ErrGone) {
			r.Errorf("R3: Renew to a floor below the token: want ErrTokenPassed, got %v", err)
		}
		r.unchanged(before, r.look(d, "k"))
		r.renew(&t, r.long)
	}},
}

// above checks that the token of a term is above that of the one before, and returns the term.
func (r *rig) above(before, t term) term {
	r.Helper()
	switch {
	case r.traits.Fencing == driver.NoTokens:
		if t.Token != 0 {
			r.Errorf("R3: Traits.Fencing is NoTokens, but a grant has token %d", t.Token)
		}
	case t.Token <= before.Token:
		r.Errorf("R3: token %d does not follow %d", t.Token, before.Token)
	case t.Token > driver.MaxToken:
		r.Errorf("R3: token %d is above MaxToken", t.Token)
	}
	return t
}
