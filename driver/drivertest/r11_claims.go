package drivertest

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// R11, of what begins a run.
var claimCases = []testCase{
	{"R11/ADoneJobIsNotRunAgain", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		t := r.run(a, "k", 1, 0)
		r.comesAfter(t, 0)
		r.finish(t, done)
		for _, d := range []driver.Driver{a, b, a} {
			j := r.answered(d, r.claim("k", driver.Claim{}), driver.ErrDone).Job
			r.hasResult(j, done.Result)
			if j.State != driver.JobDone || j.Runs != 1 || j.Token != t.Token {
				r.Errorf("R11: the job that token %d has done is told as %+v", t.Token, j)
			}
		}
		r.hasResult(r.jobIs(b, "k", driver.JobDone, 1, 0), done.Result)
		r.acquire(b, "k", r.long) // the key itself is free
	}},
	{"R11/DoneIsToldWhileTheKeyIsTaken", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		t := r.run(a, "k", 1, 0)
		rec := done
		rec.Keep = r.long
		if err := a.Release(r.ctx, &driver.ReleaseRequest{Ref: t.ref, Record: &rec, KeepFor: r.long}); err != nil {
			r.Fatalf("Release with Record and KeepFor: %v", err)
		}
		r.answered(b, r.claim("k", driver.Claim{}), driver.ErrDone)
		if s := r.refused(b, "k"); !s.Cooling {
			r.Errorf("R11: KeepFor of a Release with a Record does not cool the key: %+v", s.Term)
		}
	}},
	{"R11/ARunningJobIsHeld", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		t := r.run(a, "k", 1, 0)
		before := r.look(b, "k")
		for _, d := range []driver.Driver{a, b} {
			r.refusedRun(d, r.claim("k", driver.Claim{OnLapse: driver.Hold, MaxRuns: 1}))
		}
		r.unchanged(before, r.look(b, "k"))
		r.jobIs(b, "k", driver.JobRunning, 1, 0)
		r.finish(t, done)
		r.answered(b, r.claim("k", driver.Claim{}), driver.ErrDone)
	}},
	{"R11/TheSameRequestIsOneRun", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		req := r.claim("k", driver.Claim{MaxRuns: 1, OnLapse: driver.Hold})
		first := r.begin(a, req, 1, 0)
		second := r.begin(b, req, 1, 0)
		r.same("the same request again", first, second)
		r.jobIs(a, "k", driver.JobRunning, 1, 0)
		r.finish(second, done)
	}},
	{"R11/OneRunAmongRacers", func(r *rig) {
		if _, _, ok := r.journaled(); !ok {
			return
		}
		var runs atomic.Int64
		var wg sync.WaitGroup
		for range 8 {
			d := r.open()
			wg.Go(func() {
				for range 20 {
					t, err := r.try(d, r.claim("k", driver.Claim{}))
					if err == nil {
						runs.Add(1)
						time.Sleep(20 * time.Millisecond) // so that the others meet a running job too
						rec := done
						rec.Keep = r.long
						d.Release(r.ctx, &driver.ReleaseRequest{Ref: t.ref, Record: &rec})
						return
					}
					r.pause()
				}
			})
		}
		wg.Wait()
		if n := runs.Load(); n != 1 {
			r.Errorf("R11: a job that was done by its first run was run %d times", n)
		}
	}},
	{"R11/AnotherInputIsAnError", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		input := func(s string) *driver.AcquireRequest { return r.claim("k", driver.Claim{Input: s}) }
		t := r.begin(a, input("10 EUR"), 1, 0)
		r.answered(b, input("99 EUR"), driver.ErrOtherInput)
		r.finish(t, driver.Record{State: driver.JobOpen, Error: "no"})
		r.answered(b, input("99 EUR"), driver.ErrOtherInput)
		t = r.begin(b, input(""), 2, 0) // not compared, and not forgotten
		r.finish(t, done)
		if j := r.answered(b, input("99 EUR"), driver.ErrOtherInput).Job; j.Input != "10 EUR" {
			r.Errorf("R11: the input is told as %q, want %q", j.Input, "10 EUR")
		}
		r.answered(b, input("10 EUR"), driver.ErrDone)
		r.answered(b, input(""), driver.ErrDone)
	}},
	{"R11/AnUnheardClaimIsNoLapse", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		hold := r.claim("hold", driver.Claim{OnLapse: driver.Hold, MaxRuns: 1})
		r.lapsing(a, hold, 1, 0)
		r.comesAfter(r.begin(b, hold, 1, 0), 0)
		r.lapsing(a, r.claim("again", driver.Claim{}), 1, 0)
		again := r.claim("again", driver.Claim{})
		r.lapsing(a, again, 2, 1)
		r.comesAfter(r.begin(b, again, 2, 1), driver.JobLapsed)
	}},
	{"R11/UndoWithdrawsTheClaim", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		undo := func(t term) {
			r.Helper()
			if err := b.Release(r.ctx, &driver.ReleaseRequest{Ref: t.ref, Undo: true}); err != nil {
				r.Fatalf("Release with Undo: %v", err)
			}
		}
		hold := driver.Claim{OnLapse: driver.Hold, MaxRuns: 2}
		undo(r.begin(a, r.claim("k", hold), 1, 0))
		r.forgotten(a, "k")
		r.finish(r.begin(a, r.claim("k", hold), 1, 0), driver.Record{State: driver.JobOpen, Error: "refused"})
		undo(r.begin(a, r.claim("k", hold), 2, 0))
		r.jobIs(b, "k", driver.JobOpen, 1, 0)
		r.begin(a, r.claim("k", hold), 2, 0)
	}},
	{"R11/UndoOfARunAfterALapse", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		r.lapsing(a, r.claim("k", driver.Claim{}), 1, 0)
		t := r.run(a, "k", 2, 1)
		if err := b.Release(r.ctx, &driver.ReleaseRequest{Ref: t.ref, Undo: true}); err != nil {
			r.Fatalf("Release with Undo: %v", err)
		}
		r.jobIs(b, "k", driver.JobLapsed, 1, 0)
		r.comesAfter(r.run(b, "k", 2, 1), driver.JobLapsed)
	}},
	{"R11/UndoAfterTheTermWithdrawsTheClaim", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		t := r.lapsing(a, r.claim("k", driver.Claim{OnLapse: driver.Hold}), 1, 0)
		r.gone("Release with Undo after expiry", b.Release(r.ctx, &driver.ReleaseRequest{Ref: t.ref, Undo: true}))
		r.forgotten(b, "k")
		r.run(b, "k", 1, 0)
	}},
	{"R11/KeysHaveRecordsOfTheirOwn", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		r.finish(r.run(a, "job/1", 1, 0), done)
		r.run(b, "job/2", 1, 0)
		r.run(b, "job", 1, 0)
		r.run(b, "job/11", 1, 0)
		r.answered(b, r.claim("job/1", driver.Claim{}), driver.ErrDone)
	}},
	{"R11/TermsWithoutOnceDoNotTouchTheRecord", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		r.lapsing(a, r.claim("k", driver.Claim{}), 1, 0)
		t := r.acquire(b, "k", r.long)
		if t.Job != nil {
			r.Errorf("R11: a grant without Once has a Job: %+v", t.Job)
		}
		r.refusedRun(a, r.claim("k", driver.Claim{OnLapse: driver.Hold}))
		r.jobIs(a, "k", driver.JobLapsed, 1, 0)
		r.release(t)
		t = r.run(a, "k", 2, 1)
		r.finish(t, done)
		r.release(r.acquire(b, "k", r.long))
		r.answered(b, r.claim("k", driver.Claim{}), driver.ErrDone)
	}},
}
