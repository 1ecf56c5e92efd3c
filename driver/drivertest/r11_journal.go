package drivertest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// R11, of operators: what they see and what they decide.
var journalCases = []testCase{
	{"R11/TheEndOfAJobWakesAll", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok || !canWait(a) {
			return
		}
		for key, rec := range map[string]driver.Record{"done": done, "held": {State: driver.JobSuspended, Why: driver.ByError}} {
			t := r.run(a, key, 1, 0)
			line := []*watch{r.watch(b, key), r.watch(b, key), r.watch(a, key)}
			r.finish(t, rec)
			for range 3 {
				i := r.hinted(line)
				line = append(line[:i:i], line[i+1:]...)
			}
		}
	}},
	{"R11/SettleLetsItRunAgain", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		hold := driver.Claim{OnLapse: driver.Hold, MaxRuns: 1}
		lapsed := r.lapsing(a, r.claim("k", hold), 1, 0)
		r.answered(a, r.claim("k", hold), driver.ErrSuspended)
		if err := r.settle(b, driver.SettleRequest{Key: "k", Token: lapsed.Token, By: "ann: not charged"}); err != nil {
			r.Fatalf("Settle: %v", err)
		}
		if j := r.jobIs(a, "k", driver.JobOpen, 0, 0); j.Settled != "ann: not charged" {
			r.Errorf("R11: who settled it, and why, is told as %q", j.Settled)
		}
		r.gone("a Record of the run that lapsed", r.recording(lapsed, done))
		t := r.begin(a, r.claim("k", hold), 1, 0)
		if t.Job.Settled != "ann: not charged" {
			r.Errorf("R11: the run that follows is told %q of who settled it", t.Job.Settled)
		}
		r.finish(t, done)
		r.answered(b, r.claim("k", hold), driver.ErrDone)
		// What is done can be let run again as well.
		if err := r.settle(b, driver.SettleRequest{Key: "k", Token: t.Token}); err != nil {
			r.Fatalf("Settle of a done job: %v", err)
		}
		r.begin(a, r.claim("k", hold), 1, 0)
	}},
	{"R11/WhatASettlementDecides", func(r *rig) {
		// It decides about the run before it. The run that follows says itself how it ended.
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		judged := func(what string, j driver.Job, want bool) {
			r.Helper()
			if j.Judged != want || j.Settled != "ann: not charged" {
				r.Errorf("R11: %s is told to be as %q has decided: %v, want %v", what, j.Settled, j.Judged, want)
			}
		}
		hold := driver.Claim{OnLapse: driver.Hold}
		letRun := func(key string) {
			r.Helper()
			t := r.lapsing(a, r.claim(key, hold), 1, 0)
			if j := r.jobIs(b, key, driver.JobLapsed, 1, 0); j.Judged {
				r.Errorf("R11: a job that nobody has settled is told to be judged: %+v", j)
			}
			if err := r.settle(b, driver.SettleRequest{Key: key, Token: t.Token, By: "ann: not charged"}); err != nil {
				r.Fatalf("Settle: %v", err)
			}
			judged("a job that was let run again", r.jobIs(a, key, driver.JobOpen, 0, 0), true)
		}
		for key, rec := range map[string]driver.Record{
			"done": done, "open": {State: driver.JobOpen, Error: "no"}, "suspended": {State: driver.JobSuspended, Why: driver.ByError},
		} {
			letRun(key)
			t := r.begin(a, r.claim(key, hold), 1, 0)
			judged("a run that follows", *t.Job, false)
			r.finish(t, rec)
			judged("a job that its run has left "+rec.State.String(), r.jobIs(b, key, rec.State, 1, 0), false)
		}
		judged("a duplicate of a job that its run has done", r.answered(b, r.claim("done", driver.Claim{}), driver.ErrDone).Job, false)
		undone := r.run(a, "open", 2, 0)
		if err := a.Release(r.ctx, &driver.ReleaseRequest{Ref: undone.ref, Undo: true}); err != nil {
			r.Fatalf("Release with Undo: %v", err)
		}
		judged("a job that has failed, after a run that was undone", r.jobIs(b, "open", driver.JobOpen, 1, 0), false)

		letRun("undone")
		undone = r.begin(a, r.claim("undone", hold), 1, 0)
		if err := a.Release(r.ctx, &driver.ReleaseRequest{Ref: undone.ref, Undo: true}); err != nil {
			r.Fatalf("Release with Undo: %v", err)
		}
		judged("a job whose next run was undone", r.jobIs(b, "undone", driver.JobOpen, 0, 0), true)
		t := r.lapsing(a, r.claim("undone", hold), 1, 0)
		judged("a job whose next run has lapsed", r.jobIs(b, "undone", driver.JobLapsed, 1, 0), false)
		if err := r.settle(b, driver.SettleRequest{Key: "undone", Token: t.Token, Done: true, By: "ann: not charged"}); err != nil {
			r.Fatalf("Settle: %v", err)
		}
		judged("a job that was marked done", r.jobIs(b, "undone", driver.JobDone, 1, 0), true)
		judged("a duplicate of it", r.answered(b, r.claim("undone", driver.Claim{}), driver.ErrDone).Job, true)
		jobs, err := r.journal(b).Jobs(r.ctx, &driver.JobQuery{Limit: 10})
		if err != nil || len(jobs) != 4 {
			r.Fatalf("R11: Jobs gives %d jobs, want 4: %v", len(jobs), err)
		}
		for _, j := range jobs {
			judged("in the list "+j.Key, j, j.Key == "undone")
		}
	}},
	{"R11/SettleMarksDone", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		// A run that has lapsed can be settled before anyone else has asked for the job.
		t := r.lapsing(a, r.claim("k", driver.Claim{OnLapse: driver.Hold}), 1, 0)
		req := driver.SettleRequest{Key: "k", Token: t.Token, Done: true, Result: []byte("by hand"), By: "ann: charged"}
		if err := r.settle(b, req); err != nil {
			r.Fatalf("Settle: %v", err)
		}
		j := r.answered(a, r.claim("k", driver.Claim{}), driver.ErrDone).Job
		r.hasResult(j, req.Result)
		if j.Settled != "ann: charged" || j.Runs != 1 {
			r.Errorf("R11: the job that ann has settled is told as %+v", j)
		}
	}},
	{"R11/SettleKeeps", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		t := r.run(a, "k", 1, 0)
		r.finish(t, driver.Record{State: driver.JobSuspended, Why: driver.ByError})
		if err := r.settle(b, driver.SettleRequest{Key: "k", Token: t.Token, Done: true, Keep: r.short}); err != nil {
			r.Fatalf("Settle: %v", err)
		}
		r.eventually("R11: the record of a settled job is forgotten after Keep", func() bool {
			_, known, err := r.journal(b).Job(r.ctx, "k")
			return !known && err == nil
		})
		r.run(b, "k", 1, 0)
	}},
	{"R11/SettleSeesChanges", func(r *rig) {
		// Two operators have seen the same record. The first one's decision stands.
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		t := r.run(a, "k", 1, 0)
		r.finish(t, driver.Record{State: driver.JobSuspended, Why: driver.ByError})
		seen := r.jobIs(a, "k", driver.JobSuspended, 1, 0).Changed
		r.calm() // nobody decides in the same microsecond
		if err := r.settle(b, driver.SettleRequest{Key: "k", Token: t.Token, Seen: seen, Done: true}); err != nil {
			r.Fatalf("Settle of what was seen: %v", err)
		}
		err := r.settle(a, driver.SettleRequest{Key: "k", Token: t.Token, Seen: seen})
		if !errors.Is(err, driver.ErrJobChanged) {
			r.Errorf("R11: Settle of what has been settled since it was seen: want ErrJobChanged, got %v", err)
		}
		r.jobIs(a, "k", driver.JobDone, 1, 0)
		if err := r.settle(a, driver.SettleRequest{Key: "k", Token: t.Token}); err != nil {
			r.Errorf("R11: Settle without having seen: %v", err)
		}
	}},
	{"R11/SettleNamesTheRun", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok || !r.fenced() {
			return
		}
		t := r.run(a, "k", 1, 0)
		r.finish(t, driver.Record{State: driver.JobOpen})
		again := r.run(a, "k", 2, 0)
		r.finish(again, driver.Record{State: driver.JobSuspended, Why: driver.ByError})
		for key, token := range map[string]driver.Token{"k": t.Token, "nothing": t.Token} {
			for _, markDone := range []bool{true, false} {
				err := r.settle(b, driver.SettleRequest{Key: key, Token: token, Done: markDone})
				if !errors.Is(err, driver.ErrJobChanged) {
					r.Errorf("R11: Settle of %q by the token of an earlier run: want ErrJobChanged, got %v", key, err)
				}
			}
		}
		r.jobIs(a, "k", driver.JobSuspended, 2, 0)
		r.forgotten(a, "nothing")
	}},
	{"R11/SettleOfARunningJobIsRefused", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		t := r.run(a, "k", 1, 0)
		for _, markDone := range []bool{true, false} {
			err := r.settle(b, driver.SettleRequest{Key: "k", Token: t.Token, Done: markDone})
			var held *driver.HeldError
			if !errors.As(err, &held) {
				r.Errorf("R11: Settle of a running job: want *HeldError, got %v", err)
			}
		}
		r.jobIs(b, "k", driver.JobRunning, 1, 0)
		r.finish(t, done)
	}},
	{"R11/JobsAreListed", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		var keys, undone []string
		for i := range 12 {
			key := fmt.Sprintf("job/%02d", i)
			keys = append(keys, key)
			t := r.run(a, key, 1, 0)
			switch i % 4 {
			case 0:
				r.finish(t, done)
				continue
			case 1:
				r.finish(t, driver.Record{State: driver.JobSuspended, Why: driver.ByError})
			case 2:
				r.release(t)
			}
			undone = append(undone, key)
		}
		r.run(a, "jo%", 1, 0)
		r.run(a, "k", 1, 0)
		list := func(q driver.JobQuery) (keys []string) {
			r.Helper()
			jobs, err := r.journal(b).Jobs(r.ctx, &q)
			if err != nil {
				r.Fatalf("R11: Jobs: %v", err)
			}
			for _, j := range jobs {
				keys = append(keys, j.Key)
			}
			return keys
		}
		for _, undoneOnly := range []bool{false, true} {
			want := keys
			if undoneOnly {
				want = undone
			}
			var got []string
			for after := ""; ; after = got[len(got)-1] {
				page := list(driver.JobQuery{Prefix: "job/", After: after, Limit: 5, Undone: undoneOnly})
				if got = append(got, page...); len(page) < 5 || len(got) > 100 {
					break
				}
			}
			if !slices.Equal(got, want) {
				r.Errorf("R11: pages of 5 of jobs (undone only: %v) give\n%q, want\n%q", undoneOnly, got, want)
			}
		}
		if got, want := list(driver.JobQuery{Limit: 100}), append(append([]string{"jo%"}, keys...), "k"); !slices.Equal(got, want) {
			r.Errorf("R11: Jobs gives %q, want %q", got, want)
		}
		if got := list(driver.JobQuery{Prefix: "jo%", Limit: 100}); !slices.Equal(got, []string{"jo%"}) {
			r.Errorf("R11: Jobs with prefix %q gives %q", "jo%", got)
		}
		jobs, err := r.journal(b).Jobs(r.ctx, &driver.JobQuery{Prefix: "job/", Limit: 4})
		if err != nil || len(jobs) != 4 {
			r.Fatalf("R11: Jobs gives %d jobs, want 4: %v", len(jobs), err)
		}
		for i, want := range []driver.JobState{driver.JobDone, driver.JobSuspended, driver.JobLapsed, driver.JobRunning} {
			if j := jobs[i]; j.State != want || j.Runs != 1 || j.Holder != me() || j.Result != nil {
				r.Errorf("R11: job %q is listed as %+v, want %v", j.Key, j, want)
			}
		}
	}},
	{"R11/LookingAtJobsChangesNothing", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		r.lapsing(a, r.claim("k", driver.Claim{}), 1, 0)
		before := r.jobIs(b, "k", driver.JobLapsed, 1, 0)
		if _, err := r.journal(b).Jobs(r.ctx, &driver.JobQuery{Limit: 10}); err != nil {
			r.Fatalf("R11: Jobs: %v", err)
		}
		after := r.jobIs(b, "k", driver.JobLapsed, 1, 0)
		if !before.Changed.Equal(after.Changed) || before.Token != after.Token {
			r.Errorf("R11: looking has changed %+v to %+v", before, after)
		}
		if d := time.Since(before.Changed); d < -clockSkew || d > 10*r.h.Patience {
			r.Errorf("R11: Changed is %v ago", d)
		}
		r.run(b, "k", 2, 1)
	}},
	{"R11/FinishedJobsAreForgotten", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		for key, rec := range map[string]driver.Record{
			"done": {State: driver.JobDone, Result: []byte("x"), Keep: r.short}, "failed": {State: driver.JobOpen, Keep: r.short},
		} {
			r.finish(r.run(a, key, 1, 0), rec)
		}
		keep := 2*r.short + r.traits.TTLStep
		r.lapsing(a, r.claim("lapsed", driver.Claim{Keep: keep}), 1, 0)
		r.lapsing(a, r.claim("held", driver.Claim{Keep: keep, OnLapse: driver.Hold}), 1, 0)
		r.eventually("R11: records are forgotten after Keep", func() bool {
			jobs, err := r.journal(b).Jobs(r.ctx, &driver.JobQuery{Limit: 10})
			return err == nil && len(jobs) == 1
		})
		for _, key := range []string{"done", "failed", "lapsed"} {
			r.forgotten(b, key)
			// What has ended is not in the way of what follows, even if the store has not removed it yet.
			r.finish(r.run(b, key, 1, 0), driver.Record{State: driver.JobDone, Keep: time.Hour})
			r.jobIs(a, key, driver.JobDone, 1, 0)
		}
		r.answered(b, r.claim("held", driver.Claim{}), driver.ErrSuspended)
	}},
}
