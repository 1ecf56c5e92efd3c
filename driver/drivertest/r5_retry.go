package drivertest

import "time"

// R5: Acquire is idempotent per nonce. A caller who did not hear the answer asks again.
var retryCases = []testCase{
	{"R5/AlreadyMineGivesTheSameGrant", func(r *rig) {
		a, b := r.open(), r.open()
		r.release(r.acquire(a, "k", r.long))
		req := r.request("k", r.long)
		first := r.grant(a, req)
		r.same("the same request again", first, r.grant(a, req))
		r.same("the same request by another connection", first, r.grant(b, req))
		r.release(first)
		r.acquire(b, "k", r.long)
	}},
	{"R5/AlreadyMineAfterALapseGivesTheSameGrant", func(r *rig) {
		d := r.open()
		r.lapse(r.acquire(d, "k", r.short))
		req := r.request("k", r.long)
		r.same("the same request again", r.grant(d, req), r.grant(d, req))
	}},
	{"R5/AlreadyMineRearmsTTL", func(r *rig) {
		a, b := r.open(), r.open()
		req := r.request("k", 3*r.short)
		r.waitHalf(r.grant(a, req))
		t := r.grant(a, req) // or a new term, if this came too late: then it has a full TTL as well
		r.passes(b, "k", t.earliest(), r.latest(t))
	}},
	{"R5/AlreadyMineRearmsMinHold", func(r *rig) {
		a, b := r.open(), r.open()
		req := r.request("k", r.short)
		req.MinHold = 3 * r.short
		r.waitHalf(r.grant(a, req))
		t := r.grant(a, req)
		r.passes(b, "k", t.earliest(), r.latest(t))
	}},
	{"R5/AnUnheardGrantCanBeUndone", func(r *rig) {
		a, b := r.open(), r.open()
		req := r.request("k", r.long)
		r.grant(a, req)
		r.release(term{d: b, ref: req.Ref}) // by nonce alone
		r.acquire(a, "k", r.long)
	}},
}

// same checks that two answers to one request are one grant.
func (r *rig) same(what string, first, second term) {
	r.Helper()
	if second.Token != first.Token {
		r.Errorf("R5: %s has token %d, first %d", what, second.Token, first.Token)
	}
	if second.Previous != first.Previous || (second.Prior == nil) != (first.Prior == nil) {
		r.Errorf("R5: %s says Previous = %v, Prior = %v, first %v, %v",
			what, second.Previous, second.Prior, first.Previous, first.Prior)
	}
}

// waitHalf lets about half of the time of a term pass.
func (r *rig) waitHalf(t term) { time.Sleep(time.Until(t.sent.Add(t.ttl / 2))) }
