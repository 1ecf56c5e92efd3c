package drivertest

import (
	"time"

	"github.com/holdlock/holdlock/driver"
)

// R1, for keys that stay taken longer than their holder needs: MinHold and KeepFor.
var stayTakenCases = []testCase{
	{"R1/MinHoldOutlivesTTL", func(r *rig) {
		// A job that has to run once per interval, and whose holder dies at once, must not run again within the interval.
		a, b := r.open(), r.open()
		req := r.request("k", r.short)
		req.MinHold = 3 * r.short
		t := r.grant(a, req)
		r.passes(b, "k", t.sent.Add(req.MinHold), t.heard.Add(req.MinHold+r.traits.TTLStep))
	}},
	{"R1/MinHoldBelowTTLChangesNothing", func(r *rig) {
		a, b := r.open(), r.open()
		req := r.request("k", r.short)
		req.MinHold = r.short / 2
		t := r.grant(a, req)
		r.passes(b, "k", t.earliest(), r.latest(t))
	}},
	{"R1/RenewalKeepsMinHold", func(r *rig) {
		a, b := r.open(), r.open()
		req := r.request("k", r.short)
		req.MinHold = 3 * r.short
		t := r.grant(a, req)
		first := t
		r.renew(&t, r.short)
		r.passes(b, "k", first.earliest(), r.latest(first))
	}},
	{"R1/MinHoldEndsByRelease", func(r *rig) {
		// It is the caller who asks for the rest of it by KeepFor; the undoing of an unclear acquire does not.
		d := r.open()
		req := r.request("k", r.short)
		req.MinHold = r.long
		r.release(r.grant(d, req))
		r.acquire(d, "k", r.long)
	}},
	{"R1/KeepForCools", func(r *rig) {
		a, b := r.open(), r.open()
		t := r.acquire(a, "k", r.long)
		sent := time.Now()
		if err := a.Release(r.ctx, &driver.ReleaseRequest{Ref: t.ref, KeepFor: r.short}); err != nil {
			r.Fatalf("Release with KeepFor: %v", err)
		}
		earliest, latest := sent.Add(r.short), time.Now().Add(r.short+r.traits.TTLStep)
		next := r.passes(b, "k", earliest, latest)
		if next.Previous != driver.Released {
			r.Errorf("after cooling Previous = %v, want released", next.Previous)
		}
		if r.fenced() && next.Token <= t.Token {
			r.Errorf("R3: token %d after cooling is not above %d", next.Token, t.Token)
		}
	}},
	{"R1/CoolingHasNoHolder", func(r *rig) {
		a, b := r.open(), r.open()
		t := r.acquire(a, "k", r.long)
		if err := a.Release(r.ctx, &driver.ReleaseRequest{Ref: t.ref, KeepFor: r.long / 2}); err != nil {
			r.Fatalf("Release with KeepFor: %v", err)
		}
		sights := []sight{r.refused(b, "k"), r.look(b, "k")}
		for _, s := range sights {
			if !s.Cooling || s.Holder != (driver.Holder{}) {
				r.Errorf("R10: a cooling key is shown with Cooling = %v, Holder = %+v", s.Cooling, s.Holder)
			}
		}
		// The term has ended all the same.
		_, err := a.Renew(r.ctx, &driver.RenewRequest{Ref: t.ref, TTL: r.short})
		r.gone("Renew of a cooling term", err)
		r.gone("Release of a cooling term", a.Release(r.ctx, &driver.ReleaseRequest{Ref: t.ref}))
		r.unchanged(sights[1], r.look(b, "k"))
	}},
}
