package drivertest

import (
	"bytes"
	"errors"
	"strings"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// R11, of what ends a run.
var recordCases = []testCase{
	{"R11/AFailedRunCountsAndRunsAgain", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		r.finish(r.run(a, "k", 1, 0), driver.Record{State: driver.JobOpen, Error: "card declined"})
		if j := r.jobIs(b, "k", driver.JobOpen, 1, 0); j.Error != "card declined" {
			r.Errorf("R11: the error of the run is told as %q", j.Error)
		}
		t := r.run(b, "k", 2, 0)
		r.comesAfter(t, driver.JobOpen)
		if t.Job.Error != "card declined" {
			r.Errorf("R11: the second run is told of the error %q", t.Job.Error)
		}
		r.finish(t, done)
		r.answered(a, r.claim("k", driver.Claim{}), driver.ErrDone)
	}},
	{"R11/ARecordCanSuspend", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		r.finish(r.run(a, "k", 1, 0), driver.Record{State: driver.JobSuspended, Why: driver.ByError, Error: "odd", Keep: r.short})
		time.Sleep(2 * r.short) // it is kept until settled
		for range 2 {
			got := r.answered(b, r.claim("k", driver.Claim{}), driver.ErrSuspended)
			if got.Fresh || got.Job.State != driver.JobSuspended || got.Job.Why != driver.ByError || got.Job.Error != "odd" {
				r.Errorf("R11: a job that its run has suspended is told as %+v", got)
			}
		}
	}},
	{"R11/RecordAndReleaseAreOneStep", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		t := r.run(a, "k", 1, 0)
		finished := make(chan error, 1)
		go func() { finished <- r.recording(t, done) }()
		// Whoever asks finds the job running, and then done, but nothing in between.
		for give := time.Now().Add(r.grace()); ; r.pause() {
			_, err := r.try(b, r.claim("k", driver.Claim{}))
			var held *driver.HeldError
			if errors.Is(err, driver.ErrDone) {
				break
			}
			if !errors.As(err, &held) {
				r.Errorf("R11: between running and done somebody was told: %v", err)
				break
			}
			if time.Now().After(give) {
				r.Errorf("R11: the job is never done")
				break
			}
		}
		if err := <-finished; err != nil {
			r.Errorf("Release with Record: %v", err)
		}
	}},
	{"R11/ARecordNeedsTheTerm", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		stale := r.lapsing(a, r.claim("k", driver.Claim{}), 1, 0)
		r.gone("a Record after expiry", r.recording(stale, done))
		r.jobIs(b, "k", driver.JobLapsed, 1, 0)
		t := r.run(b, "k", 2, 1)
		r.gone("a Record of the run before", r.recording(stale, done))
		r.gone("a failure of the run before", r.recording(stale, driver.Record{State: driver.JobOpen}))
		r.jobIs(b, "k", driver.JobRunning, 2, 1)
		r.finish(t, done)
		// A run that was paused and now fails does not open what its successor has done.
		r.gone("a failure of the run before", r.recording(stale, driver.Record{State: driver.JobOpen}))
		r.gone("another result of the run before", r.recording(stale, driver.Record{State: driver.JobDone}))
		r.hasResult(r.answered(a, r.claim("k", driver.Claim{}), driver.ErrDone).Job, done.Result)
	}},
	{"R11/ARecordNeedsAClaim", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		t := r.acquire(a, "k", r.long)
		if err := r.recording(t, done); !errors.Is(err, driver.ErrUnclaimed) {
			r.Errorf("R11: a Record of a term without a claim: want ErrUnclaimed, got %v", err)
		}
		r.forgotten(b, "k")
		r.refused(b, "k")
		r.release(t)
		// Nor does it take over the claim of a run that has lapsed.
		r.lapsing(a, r.claim("k", driver.Claim{}), 1, 0)
		t = r.acquire(a, "k", r.long)
		if err := r.recording(t, done); !errors.Is(err, driver.ErrUnclaimed) {
			r.Errorf("R11: a Record of a term without a claim: want ErrUnclaimed, got %v", err)
		}
		r.release(t)
		r.jobIs(b, "k", driver.JobLapsed, 1, 0)
	}},
	{"R11/ARecordCanBeSentAgain", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		t := r.run(a, "k", 1, 0)
		failed := driver.Record{State: driver.JobOpen, Error: "once"}
		for range 2 {
			r.finish(t, failed)
		}
		r.gone("another Record of a run that has ended", r.recording(t, done))
		r.jobIs(b, "k", driver.JobOpen, 1, 0)
		t2 := r.run(b, "k", 2, 0)
		r.gone("a Record sent again after the next run has begun", r.recording(t, failed))
		for range 2 {
			r.finish(t2, done)
		}
		r.gone("a Release of a run that has ended", b.Release(r.ctx, &driver.ReleaseRequest{Ref: t2.ref}))
		r.jobIs(b, "k", driver.JobDone, 2, 0)
	}},
	{"R11/ResultsAreKeptAsTheyAre", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		all := make([]byte, 256)
		for i := range all {
			all[i] = byte(i)
		}
		for key, result := range map[string][]byte{
			"none": nil, "bytes": all, "largest": bytes.Repeat(all, driver.MaxResult/256), "text": []byte("Grüße\x00'\"\\"),
		} {
			r.finish(r.run(a, key, 1, 0), driver.Record{State: driver.JobDone, Result: result})
			j := r.answered(b, r.claim(key, driver.Claim{}), driver.ErrDone).Job
			r.hasResult(j, result)
			r.hasResult(r.jobIs(b, key, driver.JobDone, 1, 0), result)
			if j.NoResult {
				r.Errorf("R11: the result of %q is told to be missing", key)
			}
		}
		r.finish(r.run(a, "too large", 1, 0), driver.Record{State: driver.JobDone, NoResult: true})
		if j := r.answered(b, r.claim("too large", driver.Claim{}), driver.ErrDone).Job; !j.NoResult {
			r.Errorf("R11: that a result was not kept is not told")
		}
		text := strings.Repeat("é", driver.MaxJobText/2)
		r.finish(r.begin(a, r.claim("texts", driver.Claim{Input: text}), 1, 0), driver.Record{State: driver.JobOpen, Error: text})
		if j := r.jobIs(b, "texts", driver.JobOpen, 1, 0); j.Input != text || j.Error != text {
			r.Errorf("R11: texts of %d bytes are told with %d and %d", len(text), len(j.Input), len(j.Error))
		}
	}},
	{"R11/KeepEnds", func(r *rig) {
		a, b, ok := r.journaled()
		if !ok {
			return
		}
		t := r.run(a, "k", 1, 0)
		rec := done
		rec.Keep = 5 * r.short
		sent := time.Now()
		r.finish(t, rec)
		heard := time.Now()
		for {
			asked := time.Now()
			_, err := r.try(b, r.claim("k", driver.Claim{}))
			if err == nil {
				skew := clockSkew // a record is kept by the wall clock, where nothing else outlives a restart
				if r.h.Virtual {
					skew = 0
				}
				if early := time.Until(sent.Add(rec.Keep - skew)); early > 0 {
					r.Errorf("R11: the record was forgotten %v early", early)
				}
				break
			}
			if !errors.Is(err, driver.ErrDone) {
				r.Fatalf("R11: while the record is kept: %v", err)
			}
			if asked.After(heard.Add(rec.Keep + r.grace())) {
				r.Fatalf("R11: the record is kept %v too long", asked.Sub(heard)-rec.Keep)
			}
			r.pause()
		}
	}},
}
