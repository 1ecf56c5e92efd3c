package drivertest

import "github.com/holdlock/holdlock/driver"

// R4: Release ends one term and never touches another one.
var releaseCases = []testCase{
	{"R4/ReleaseFreesAtOnce", func(r *rig) {
		a, b := r.open(), r.open()
		r.release(r.acquire(a, "k", r.long))
		r.acquire(b, "k", r.long)
	}},
	{"R4/ReleaseTwiceIsGone", func(r *rig) {
		d := r.open()
		t := r.acquire(d, "k", r.long)
		r.release(t)
		r.gone("the second Release", d.Release(r.ctx, &driver.ReleaseRequest{Ref: t.ref}))
		r.acquire(d, "k", r.long)
	}},
	{"R4/ReleaseOfWhatNeverWasIsGone", func(r *rig) {
		d := r.open()
		ref := driver.Ref{Key: "k", Nonce: newNonce()}
		r.gone("Release of a key that never was", d.Release(r.ctx, &driver.ReleaseRequest{Ref: ref}))
		r.gone("Release with KeepFor of a key that never was",
			d.Release(r.ctx, &driver.ReleaseRequest{Ref: ref, KeepFor: r.long}))
		r.acquire(d, "k", r.long)
	}},
	{"R4/ReleaseAfterExpiryIsGone", func(r *rig) {
		d := r.open()
		t := r.acquire(d, "k", r.short)
		r.lapse(t)
		r.gone("Release after expiry", d.Release(r.ctx, &driver.ReleaseRequest{Ref: t.ref, KeepFor: r.long}))
		if next := r.acquire(d, "k", r.long); next.Previous != driver.Lapsed {
			r.Errorf("Previous = %v after a term that lapsed and was released too late, want lapsed", next.Previous)
		}
	}},
	{"R4/ReleaseMatchesTheNonce", func(r *rig) {
		// The commonest fault of hand-written locks: the holder overran, and its release frees the key of its successor.
		a, b := r.open(), r.open()
		stale := r.acquire(a, "k", r.short)
		r.lapse(stale)
		rival := r.acquire(b, "k", r.long)
		before := r.look(b, "k")
		for _, d := range []driver.Driver{a, b} {
			r.gone("Release by the stale nonce", d.Release(r.ctx, &driver.ReleaseRequest{Ref: stale.ref}))
			r.gone("Release with KeepFor by the stale nonce",
				d.Release(r.ctx, &driver.ReleaseRequest{Ref: stale.ref, KeepFor: r.short}))
		}
		r.unchanged(before, r.look(b, "k"))
		r.refused(a, "k")
		r.renew(&rival, r.long)
	}},
}
