package drivertest

import "github.com/holdlock/holdlock/driver"

// R11, of runs that never say how they ended.
var lapseCases = []testCase{
	{"R11/ALapsedRunRunsAgainAndIsTold", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		req := r.claim("k", driver.Claim{})
		req.Holder = driver.Holder{Host: "dead", PID: 13}
		r.lapsing(a, req, 1, 0)
		if j := r.jobIs(b, "k", driver.JobLapsed, 1, 0); j.Holder != req.Holder {
			r.Errorf("R11: the holder of the run that lapsed is told as %+v", j.Holder)
		}
		t := r.run(b, "k", 2, 1)
		r.follows(t, driver.Lapsed)
		r.comesAfter(t, driver.JobLapsed)
		r.finish(t, driver.Record{State: driver.JobOpen})
		r.comesAfter(r.run(a, "k", 3, 1), driver.JobOpen) // a failure is no lapse
	}},
	{"R11/HoldSuspendsALapsedRun", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		hold := driver.Claim{OnLapse: driver.Hold}
		lapsed := r.lapsing(a, r.claim("k", hold), 1, 0)
		got := r.answered(b, r.claim("k", hold), driver.ErrSuspended)
		if !got.Fresh || got.Job.State != driver.JobSuspended || got.Job.Why != driver.ByLapse || got.Job.Token != lapsed.Token {
			r.Errorf("R11: the job suspended after token %d is told as %+v", lapsed.Token, got)
		}
		for _, d := range []driver.Driver{a, b} {
			if got := r.answered(d, r.claim("k", hold), driver.ErrSuspended); got.Fresh {
				r.Errorf("R11: a job is said to have been suspended twice")
			}
		}
		r.jobIs(a, "k", driver.JobSuspended, 1, 1)
		r.gone("a Record of the run that lapsed", r.recording(lapsed, done))
		r.answered(a, r.claim("k", driver.Claim{}), driver.ErrSuspended)
		r.acquire(a, "k", r.long) // no term was started
	}},
	{"R11/HoldOfEitherRunHolds", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		r.lapsing(a, r.claim("first", driver.Claim{OnLapse: driver.Hold}), 1, 0)
		r.answered(b, r.claim("first", driver.Claim{}), driver.ErrSuspended)
		r.lapsing(a, r.claim("second", driver.Claim{}), 1, 0)
		r.answered(b, r.claim("second", driver.Claim{OnLapse: driver.Hold}), driver.ErrSuspended)
	}},
	{"R11/ReleaseWithoutRecordLeavesTheRunUnfinished", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		r.release(r.run(a, "rerun", 1, 0))
		r.jobIs(b, "rerun", driver.JobLapsed, 1, 0)
		r.run(b, "rerun", 2, 1)
		r.release(r.begin(a, r.claim("hold", driver.Claim{OnLapse: driver.Hold}), 1, 0))
		r.answered(b, r.claim("hold", driver.Claim{OnLapse: driver.Hold}), driver.ErrSuspended)
	}},
	{"R11/ABrokenRunIsUnfinished", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		op := r.breaker(b)
		if op == nil {
			return
		}
		t := r.begin(a, r.claim("now", driver.Claim{OnLapse: driver.Hold}), 1, 0)
		r.mustBreak(op, &driver.BreakRequest{Ref: t.ref, By: "ops", Now: true})
		r.gone("a Record of a broken term", r.recording(t, done))
		r.answered(b, r.claim("now", driver.Claim{}), driver.ErrSuspended)
		// As long as the term stands its holder can still say that it is done.
		t = r.run(a, "soon", 1, 0)
		r.mustBreak(op, &driver.BreakRequest{Ref: t.ref, By: "ops"})
		r.finish(t, done)
		r.answered(b, r.claim("soon", driver.Claim{}), driver.ErrDone)
	}},
	{"R11/TheNumberOfRunsIsBounded", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		twice := driver.Claim{MaxRuns: 2}
		r.release(r.begin(a, r.claim("lapses", twice), 1, 0))
		r.release(r.begin(a, r.claim("lapses", twice), 2, 1))
		got := r.answered(b, r.claim("lapses", twice), driver.ErrSuspended)
		if !got.Fresh || got.Job.Why != driver.ByNumber || got.Job.Runs != 2 || got.Job.Lapses != 2 {
			r.Errorf("R11: after two runs of two that lapsed the answer is %+v", got)
		}
		r.finish(r.begin(a, r.claim("fails", twice), 1, 0), driver.Record{State: driver.JobOpen})
		r.finish(r.begin(a, r.claim("fails", twice), 2, 0), driver.Record{State: driver.JobOpen})
		if got := r.answered(b, r.claim("fails", twice), driver.ErrSuspended); got.Job.Why != driver.ByNumber {
			r.Errorf("R11: after two runs of two that failed the answer is %+v", got)
		}
	}},
}

// comesAfter checks what a run is said to follow.
func (r *rig) comesAfter(t term, want driver.JobState) {
	r.Helper()
	if t.Job.Before != want {
		r.Errorf("R11: run %d of %q is said to follow %v, want %v", t.Job.Runs, t.ref.Key, t.Job.Before, want)
	}
}
