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
	{"R3/ASeedKeepsItsToken", func(r *rig) {
		if !r.seeds() {
			return
		}
		d := r.open()
		before := r.acquire(d, "k", r.long)
		r.release(before)
		time.Sleep(20 * time.Millisecond) // the clock is past what is asked for
		req := r.request("k", r.long)
		req.Seed, req.Since = before.Token+1, time.Now().Add(-time.Hour).Truncate(time.Microsecond)
		t := r.grant(d, req)
		if t.Token != req.Seed {
			r.Errorf("R3: a term was given with token %d, and has %d", req.Seed, t.Token)
		}
		r.shown(d, t, req.Seed)
		if s := r.look(d, "k"); !s.Acquired.Equal(req.Since) {
			r.Errorf("R3: a term that began elsewhere at %v is shown as of %v", req.Since, s.Acquired)
		}
		if again := r.grant(d, req); again.Token != req.Seed {
			r.Errorf("R5: given with token %d, and again with %d", req.Seed, again.Token)
		}
		r.release(t)
		r.lapses(d, t.Token+1)
	}},
	{"R3/ASeedThatIsPassed", func(r *rig) {
		if !r.seeds() {
			return
		}
		// An attempt that has failed elsewhere has used up a later token here. The term gets one that is past that, and is shown with its own.
		d := r.open()
		before := r.acquire(d, "k", r.long)
		r.release(before)
		req := r.request("k", r.long)
		req.Seed = before.Token
		t := r.above(before, r.grant(d, req))
		r.shown(d, t, req.Seed)
		// Once its token is raised it is shown with that.
		floor := t.Token + 1000
		r.renewTo(&t, r.long, floor)
		r.shown(d, t, floor)
		r.release(t)
		r.lapses(d, t.Token)
	}},
}

// seeds says whether a term can be given to the store with the token that it has elsewhere.
func (r *rig) seeds() bool { return r.traits.Seeds && r.traits.Fencing != driver.NoTokens }

// lapses lets a term run out that was given with a token, and checks of which one its successor is told.
func (r *rig) lapses(d driver.Driver, seed driver.Token) {
	r.Helper()
	req := r.request("k", r.short)
	req.Seed = seed
	t := r.grant(d, req)
	r.lapse(t)
	again := r.grant(d, req) // it stands elsewhere, and comes back here
	if t.Token == seed && again.Token != seed {
		r.Errorf("R3: a term with token %d has run out, was given again, and has %d", seed, again.Token)
	}
	t = again
	r.lapse(t)
	next := r.above(t, r.acquire(d, "k", r.long))
	if next.Previous != driver.Lapsed || next.Prior == nil || next.Prior.Token != seed {
		r.Errorf("R3: the successor is told that it is %v, %+v; want the lapse of token %d", next.Previous, next.Prior, seed)
	}
}

// shown checks with which token a term that stands is shown.
func (r *rig) shown(d driver.Driver, t term, want driver.Token) {
	r.Helper()
	if s := r.look(d, t.ref.Key); s.Token != want {
		r.Errorf("R3: a term with token %d is shown with %d", want, s.Token)
	}
	if s := r.refused(d, t.ref.Key); s.Token != want {
		r.Errorf("R3: *HeldError shows token %d of a term with %d", s.Token, want)
	}
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
