package drivertest

import (
	"errors"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// R5: Acquire is idempotent per nonce. A caller who did not hear the answer asks again.
var retryCases = []testCase{
	{"R5/AlreadyMineGivesTheSameGrant", func(r *rig) {
		a, b := r.open(), r.open()
		r.release(r.acquire(a, "k", r.long))
		req := r.request("k", r.long)
		first := r.grant(a, req)
		r.same("the same request again", first, r.grant(a, req))
		r.calm() // a node that had not heard of it would give another token to whoever does not know the first
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
	{"R5/AnUndoneAcquireThatArrivesLate", func(r *rig) {
		a, b := r.open(), r.open()
		// It arrives for the first time,
		req := r.request("k", r.long)
		r.gone("an undo of what has not arrived", r.undo(a, req.Ref))
		r.late(b, req)
		// for the second time, after the first was undone,
		req = r.request("k", r.long)
		r.grant(a, req)
		if err := r.undo(b, req.Ref); err != nil {
			r.Fatalf("R5: undo of a term that stands: %v", err)
		}
		r.late(a, req)
		// or while another holds the key, who is not concerned.
		req = r.request("k", r.long)
		r.gone("an undo of what has not arrived", r.undo(a, req.Ref))
		other := r.acquire(b, "k", r.long)
		if other.Previous == driver.Lapsed {
			r.Errorf("R5: after an undone term the successor is told %v", other.Previous)
		}
		if _, err := r.try(a, req); err == nil {
			r.Errorf("R1: an undone acquire was granted a taken key")
		}
		r.refused(a, "k")
		r.release(other)
		r.late(a, req)
		r.acquire(b, "k", r.long)
	}},
	{"R5/AnUndoConcernsItsOwnNonce", func(r *rig) {
		a, b := r.open(), r.open()
		req := r.request("k", r.long)
		t := r.grant(a, req)
		before := r.look(b, "k")
		r.gone("an undo of another nonce", r.undo(b, driver.Ref{Key: "k", Nonce: newNonce()}))
		r.unchanged(before, r.look(b, "k"))
		r.same("the same request again", t, r.grant(a, req))
		r.renew(&t, r.long)
		r.release(t)
	}},
}

func (r *rig) undo(d driver.Driver, ref driver.Ref) error {
	return d.Release(r.ctx, &driver.ReleaseRequest{Ref: ref, Undo: true})
}

// late lets an acquire arrive that has been undone, while the key is free.
func (r *rig) late(d driver.Driver, req *driver.AcquireRequest) {
	r.Helper()
	t, err := r.try(d, req)
	var held *driver.HeldError
	switch {
	case err == nil && r.h.Overtaken:
		r.Errorf("R5: an acquire that arrived after its undo was granted, to nobody")
		r.release(t)
	case err == nil:
		r.release(t)
	case errors.As(err, &held) || !errors.Is(err, driver.ErrNotApplied):
		r.Errorf("R10: an acquire that was undone: want an error that wraps ErrNotApplied, got %v", err)
	}
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
