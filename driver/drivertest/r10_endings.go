package drivertest

import "github.com/holdlock/holdlock/driver"

// R10, of how the term before ended: a holder that was killed or paused can never report its own lapse.
var endingCases = []testCase{
	{"R10/NoneBeforeTheFirst", func(r *rig) {
		r.follows(r.acquire(r.open(), "k", r.long), driver.None)
	}},
	{"R10/ReleasedIsTold", func(r *rig) {
		a, b := r.open(), r.open()
		r.release(r.acquire(a, "k", r.long))
		t := r.acquire(b, "k", r.long)
		r.follows(t, driver.Released)
		r.release(t)
		r.follows(r.acquire(b, "k", r.long), driver.Released)
	}},
	{"R10/LapsedIsTold", func(r *rig) {
		a, b := r.open(), r.open()
		req := r.request("k", r.short)
		req.Holder = driver.Holder{Host: "dead", PID: 13, Label: "job", Purpose: "dies"}
		lapsed := r.grant(a, req)
		r.lapse(lapsed)
		r.calm()
		t := r.acquire(b, "k", r.long)
		r.follows(t, driver.Lapsed)
		if p := t.Prior; p == nil {
			r.Errorf("R10: Prior is nil just after a lapse")
		} else if p.Key != "k" || p.Token != lapsed.Token || p.Holder != req.Holder || p.Broken != "" {
			r.Errorf("R10: Prior = %+v after a lapse of token %d of %+v", *p, lapsed.Token, req.Holder)
		}
		// It is told once: the next one's predecessor has done nothing wrong.
		r.release(t)
		r.follows(r.acquire(a, "k", r.long), driver.Released)
	}},
	{"R10/AnUndoneTermLeavesTheEnding", func(r *rig) {
		// Whoever got the key after a lapse and gave it up unheard has done nothing: the lapse is still news to the next one.
		a, b := r.open(), r.open()
		lapsed := r.acquire(a, "k", r.short)
		r.lapse(lapsed)
		for range 2 {
			t := r.acquire(b, "k", r.long)
			r.follows(t, driver.Lapsed)
			if err := r.undo(b, t.ref); err != nil {
				r.Fatalf("R5: undo of a term that stands: %v", err)
			}
			r.calm()
		}
		t := r.acquire(b, "k", r.long)
		r.follows(t, driver.Lapsed)
		if t.Prior == nil || t.Prior.Token != lapsed.Token {
			r.Errorf("R10: Prior = %+v behind undone terms, want the one that lapsed, token %d", t.Prior, lapsed.Token)
		}
		r.release(t)
		r.follows(r.acquire(a, "k", r.long), driver.Released)
		// Nor has it taken anything away from a term that was released.
		t = r.acquire(b, "other", r.long)
		r.release(t)
		t = r.acquire(b, "other", r.long)
		if err := r.undo(b, t.ref); err != nil {
			r.Fatalf("R5: undo of a term that stands: %v", err)
		}
		r.follows(r.acquire(a, "other", r.long), driver.Released)
	}},
	{"R10/TheTokenOfAReleasedTerm", func(r *rig) {
		// It may be told, and then it is that of the last term that was not undone.
		a, b := r.open(), r.open()
		released := r.acquire(a, "k", r.long)
		r.release(released)
		for range 3 {
			r.calm()
			t := r.acquire(b, "k", r.long)
			r.follows(t, driver.Released)
			if t.PriorToken != 0 && t.PriorToken != released.Token {
				r.Errorf("R10: PriorToken = %d, want %d or none", t.PriorToken, released.Token)
			}
			if err := r.undo(b, t.ref); err != nil {
				r.Fatalf("R5: undo of a term that stands: %v", err)
			}
		}
	}},
	{"R10/ALapseAfterRenewalsIsTold", func(r *rig) {
		d := r.open()
		t := r.acquire(d, "k", r.short)
		r.renew(&t, r.short)
		r.lapse(t)
		r.follows(r.acquire(d, "k", r.long), driver.Lapsed)
	}},
	{"R10/EndingsAreToldPerKey", func(r *rig) {
		d := r.open()
		r.lapse(r.acquire(d, "k1", r.short))
		r.release(r.acquire(d, "k2", r.long))
		r.follows(r.acquire(d, "k3", r.long), driver.None)
		r.follows(r.acquire(d, "k2", r.long), driver.Released)
		r.follows(r.acquire(d, "k1", r.long), driver.Lapsed)
	}},
}

// follows checks how the term before t is said to have ended.
func (r *rig) follows(t term, want driver.Ending) {
	r.Helper()
	if t.Previous != want {
		r.Errorf("R10: Previous = %v, want %v", t.Previous, want)
	}
	if t.Prior != nil && (want == driver.None || want == driver.Released) {
		r.Errorf("R10: Prior = %+v, though the term before was %v", *t.Prior, want)
	}
}
