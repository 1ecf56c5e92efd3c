package drivertest

import (
	"errors"
	"fmt"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// R4: Renew acts on one term, never on another one, and never creates one.
var renewCases = []testCase{
	{"R4/RenewExtends", func(r *rig) {
		a, b := r.open(), r.open()
		t := r.acquire(a, "k", r.long)
		r.release(t)
		t = r.acquire(a, "k", r.long/2)
		r.renew(&t, r.long)
		r.endsBetween(r.refused(b, "k"), t.earliest(), r.latest(t))
	}},
	{"R4/RenewExtendsToTheMoment", func(r *rig) {
		a, b := r.open(), r.open()
		_, t := r.renewed(a, 2*r.short, 3*r.short)
		r.passes(b, t.ref.Key, t.earliest(), r.latest(t))
	}},
	{"R4/RenewNeverShortens", func(r *rig) {
		a, b := r.open(), r.open()
		first, _ := r.renewed(a, 3*r.short, r.short)
		r.passes(b, first.ref.Key, first.earliest(), r.latest(first))
	}},
	{"R4/RenewNeverCreates", func(r *rig) {
		d := r.open()
		never := driver.Ref{Key: "never", Nonce: newNonce()}
		released := r.acquire(d, "released", r.long)
		r.release(released)
		lapsed := r.acquire(d, "lapsed", r.short)
		r.lapse(lapsed)
		for _, ref := range []driver.Ref{never, released.ref, lapsed.ref} {
			_, err := d.Renew(r.ctx, &driver.RenewRequest{Ref: ref, TTL: r.long})
			r.gone("Renew of a term that "+ref.Key, err)
			if errors.Is(err, driver.ErrBroken) {
				r.Errorf("R10: Renew of a term that %s says that an operator broke it", ref.Key)
			}
			r.acquire(d, ref.Key, r.long) // it is free
		}
	}},
	{"R4/RenewMatchesTheNonce", func(r *rig) {
		d := r.open()
		stale := r.acquire(d, "k", r.short)
		r.lapse(stale)
		rival := r.acquire(d, "k", r.long/2)
		before := r.look(d, "k")
		for _, ref := range []driver.Ref{stale.ref, {Key: "k", Nonce: newNonce()}} {
			_, err := d.Renew(r.ctx, &driver.RenewRequest{Ref: ref, TTL: r.long})
			r.gone("Renew under a nonce that is not the current one", err)
			_, err = d.Renew(r.ctx, &driver.RenewRequest{Ref: ref, TTL: r.long, Floor: rival.Token + 1000})
			r.gone("Renew with a floor under a nonce that is not the current one", err)
		}
		r.unchanged(before, r.look(d, "k"))
		r.renew(&rival, r.long)
	}},
	{"R4/RenewByAnotherConnection", func(r *rig) {
		a, b := r.open(), r.open()
		t := r.acquire(a, "k", r.long/2)
		t.d = b
		r.renew(&t, r.long)
		r.endsBetween(r.refused(a, "k"), t.earliest(), r.latest(t))
	}},
	{"R4/BatchAnswersEachForItself", func(r *rig) {
		d := r.open()
		batch, ok := driver.As[driver.BatchRenewer](d)
		if !ok {
			return // it is an economy, not an ability
		}
		var (
			reqs  []*driver.RenewRequest
			terms []term
		)
		for i := range 9 {
			key := fmt.Sprintf("k%d", i)
			t := r.acquire(d, key, r.long/2)
			req := &driver.RenewRequest{Ref: t.ref, TTL: r.long}
			switch i {
			case 2: // released
				r.release(t)
			case 4: // another one's
				req.Ref.Nonce = newNonce()
			case 6:
				if r.traits.Fencing != driver.NoTokens {
					req.Floor = t.Token - 1
				}
			}
			reqs, terms = append(reqs, req), append(terms, t)
		}
		before := r.look(d, "k4")
		sent := time.Now()
		results := batch.RenewBatch(r.ctx, reqs)
		heard := time.Now()
		if len(results) != len(reqs) {
			r.Fatalf("RenewBatch of %d gave %d results", len(reqs), len(results))
		}
		for i, res := range results {
			switch {
			case i == 2 || i == 4:
				r.gone(fmt.Sprintf("result %d, which is not the current term", i), res.Err)
			case i == 6 && reqs[i].Floor != 0:
				if !errors.Is(res.Err, driver.ErrTokenPassed) {
					r.Errorf("R3: result %d: want ErrTokenPassed, got %v", i, res.Err)
				}
			case res.Err != nil:
				r.Errorf("R4: result %d, a good one in a batch with bad ones: %v", i, res.Err)
			case res.Grant.Token != terms[i].Token:
				r.Errorf("R4: result %d has token %d, want %d: results must be in the order of requests", i, res.Grant.Token, terms[i].Token)
			default:
				r.endsBetween(r.look(d, reqs[i].Ref.Key), sent.Add(r.long), heard.Add(r.long+r.traits.TTLStep))
			}
		}
		r.unchanged(before, r.look(d, "k4"))
		r.acquire(d, "k2", r.long) // nothing was created
		if empty := batch.RenewBatch(r.ctx, nil); len(empty) != 0 {
			r.Errorf("RenewBatch of nothing gave %d results", len(empty))
		}
	}},
	{"R4/BatchOfManyRenewsAll", func(r *rig) {
		d := r.open()
		batch, ok := driver.As[driver.BatchRenewer](d)
		if !ok {
			return
		}
		const n = 600 // more than the caller sends at once
		reqs := make([]*driver.RenewRequest, n)
		for i := range reqs {
			t := r.acquire(d, fmt.Sprintf("k%d", i), r.long)
			reqs[i] = &driver.RenewRequest{Ref: t.ref, TTL: r.long}
		}
		for i, res := range batch.RenewBatch(r.ctx, reqs) {
			if res.Err != nil {
				r.Fatalf("R4: result %d of %d: %v", i, n, res.Err)
			}
		}
	}},
}

// renewed acquires a key for ttl and renews it for next. On a busy machine the term may be over before the renewal gets
// there; then it is done again with another key.
func (r *rig) renewed(d driver.Driver, ttl, next time.Duration) (first, second term) {
	r.Helper()
	for i := 0; ; i++ {
		first = r.acquire(d, fmt.Sprintf("k%d", i), ttl)
		second = first
		sent := time.Now()
		if _, err := d.Renew(r.ctx, &driver.RenewRequest{Ref: first.ref, TTL: next}); err == nil {
			second.ttl, second.sent, second.heard = next, sent, time.Now()
			return first, second
		} else if i == 20 || time.Now().Before(first.earliest()) {
			r.Fatalf("R4: Renew of the current term of %q: %v", first.ref.Key, err)
		}
	}
}
