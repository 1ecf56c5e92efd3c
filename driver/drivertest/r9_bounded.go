package drivertest

import (
	"context"
	"errors"

	"github.com/holdlock/holdlock/driver"
)

// R9: a call returns soon after its ctx ends, and R10: what it returns then is not taken for an answer of the store.
var boundedCases = []testCase{
	{"R9/AnEndedContextChangesNothing", func(r *rig) {
		d := r.open()
		held := r.acquire(d, "held", r.long/2)
		before := r.look(d, "held")
		ended, cancel := context.WithCancel(r.ctx)
		cancel()
		r.failing(d, ended, held, context.Canceled)
		r.unchanged(before, r.look(d, "held"))
		r.acquire(d, "free", r.long)
	}},
	{"R9/AClosedDriverSaysSo", func(r *rig) {
		d, other := r.open(), r.open()
		held := r.acquire(d, "held", r.long/2)
		before := r.look(other, "held")
		for range 2 {
			if err := d.Close(); err != nil && !errors.Is(err, driver.ErrClosed) {
				r.Errorf("Close: %v", err)
			}
		}
		r.failing(d, r.ctx, held, driver.ErrClosed)
		// Neither the terms nor the other processes are touched.
		r.unchanged(before, r.look(other, "held"))
		r.acquire(other, "free", r.long)
		held.d = other
		r.release(held)
	}},
	{"R9/CloseDuringCalls", func(r *rig) {
		d, other := r.open(), r.open()
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				t, err := r.try(d, r.request("k", r.short))
				if errors.Is(err, driver.ErrClosed) || r.ctx.Err() != nil {
					return
				}
				if err == nil {
					d.Release(r.ctx, &driver.ReleaseRequest{Ref: t.ref})
				}
				r.pause()
			}
		}()
		r.pause()
		if err := d.Close(); err != nil {
			r.Errorf("Close: %v", err)
		}
		<-done
		r.eventually("R1: what a closing driver left unclear runs out", func() bool {
			_, err := r.try(other, r.request("k", r.long))
			return err == nil
		})
	}},
}

// failing makes every call there is and checks that it fails with want.
func (r *rig) failing(d driver.Driver, ctx context.Context, held term, want error) {
	r.Helper()
	check := func(what string, err error) {
		r.Helper()
		var taken *driver.HeldError
		switch {
		case err == nil:
			r.Errorf("R9: %s: want %v, got success", what, want)
		case errors.As(err, &taken) || errors.Is(err, driver.ErrGone):
			r.Errorf("R10: %s: a failure was answered as %v", what, err)
		case !errors.Is(err, want):
			r.Errorf("R9: %s: want %v, got %v", what, want, err)
		}
	}
	_, err := d.Acquire(ctx, r.request("free", r.long))
	check("Acquire of a free key", err)
	_, err = d.Acquire(ctx, r.request("held", r.long))
	check("Acquire of a held key", err)
	_, err = d.Renew(ctx, &driver.RenewRequest{Ref: held.ref, TTL: r.long})
	check("Renew", err)
	check("Release", d.Release(ctx, &driver.ReleaseRequest{Ref: held.ref}))
	if batch, ok := driver.As[driver.BatchRenewer](d); ok {
		results := batch.RenewBatch(ctx, []*driver.RenewRequest{{Ref: held.ref, TTL: r.long}, {Ref: held.ref, TTL: r.long}})
		if len(results) != 2 {
			r.Fatalf("RenewBatch of 2 gave %d results", len(results))
		}
		check("RenewBatch", results[0].Err)
		check("RenewBatch", results[1].Err)
	}
	if w, ok := driver.As[driver.Waiter](d); ok {
		_, _, err := w.Watch(ctx, "held")
		check("Watch", err)
	}
	if q, ok := driver.As[driver.Queue](d); ok {
		_, err := q.Enqueue(ctx, r.request("held", r.long))
		check("Enqueue", err)
		check("Attend", q.Attend(ctx, []*driver.AcquireRequest{r.request("held", r.long)})[0].Err)
		check("Leave", q.Leave(ctx, "held", []driver.Leaving{{Request: &driver.AcquireRequest{Ref: held.ref, TTL: r.long}}}))
		check("Listen", q.Listen(ctx, func(driver.Push) {}))
	}
	if l, ok := driver.As[driver.Lister](d); ok {
		_, err := l.List(ctx, "", "", 10)
		check("List", err)
		_, _, err = l.Inspect(ctx, "held")
		check("Inspect", err)
	}
	if op, ok := driver.As[driver.Breaker](d); ok {
		check("Break", op.Break(ctx, &driver.BreakRequest{Ref: held.ref, By: "ops", Now: true}))
	}
	if j, ok := driver.As[driver.Journal](d); ok {
		claim := r.request("free", r.long)
		claim.Once = &driver.Claim{Keep: 2 * r.long}
		_, err := d.Acquire(ctx, claim)
		check("Acquire with Once", err)
		_, _, err = j.Job(ctx, "held")
		check("Job", err)
		_, err = j.Jobs(ctx, &driver.JobQuery{Limit: 10})
		check("Jobs", err)
		check("Settle", j.Settle(ctx, &driver.SettleRequest{Key: "held", By: "ops", Keep: r.long}))
	}
}
