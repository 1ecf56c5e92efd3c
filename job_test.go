package holdlock_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

var (
	aClaim  = driver.Claim{Keep: time.Hour}
	aRecord = driver.Record{State: driver.JobDone, Keep: time.Hour}
)

func (r *rig) claim(c *holdlock.Client, claim driver.Claim) *holdlock.Lease {
	r.t.Helper()
	lease, err := r.lock(c, holdlock.LockOptions{}).Claim(r.t.Context(), claim, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	return lease
}

// R11: a run ends once, with Finish; what is not allowed is refused before the store is asked.
func TestFinish(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		plain := r.claim(r.client, aClaim)
		if err := plain.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		wantIs(t, "Finish after Release", plain.Finish(t.Context(), aRecord), holdlock.ErrReleased)

		lease, err := r.lock(r.client, holdlock.LockOptions{}).TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Finish(t.Context(), aRecord); !errors.Is(err, driver.ErrUnclaimed) || lease.Err() != nil {
			t.Errorf("Finish of a lease that is no run: %v; the lease has ended: %v", err, lease.Err())
		}
		_ = lease.Release(t.Context())

		run := r.claim(r.client, aClaim)
		if j := run.Job(); j == nil || j.Before != driver.JobLapsed || j.Runs != 2 {
			t.Errorf("after a run that was given back without a record the job is %+v", run.Job())
		}
		calls := r.drv.calls.Load()
		for what, rec := range map[string]driver.Record{
			"State":          {Keep: 1},
			"Keep":           {State: driver.JobDone},
			"Result":         {State: driver.JobDone, Keep: 1, Result: bytes.Repeat([]byte("x"), driver.MaxResult+1)},
			"Error":          {State: driver.JobOpen, Keep: 1, Error: strings.Repeat("x", driver.MaxJobText+1)},
			"Error with NUL": {State: driver.JobOpen, Keep: 1, Error: "a\x00b"},
		} {
			err := run.Finish(t.Context(), rec)
			wantIs(t, what, err, holdlock.ErrInvalid)
			if named, _, _ := strings.Cut(what, " "); !strings.Contains(err.Error(), named) {
				t.Errorf("the error does not name %s: %v", what, err)
			}
		}
		for what, claim := range map[string]driver.Claim{
			"Input": {Keep: 1, Input: "\xff"}, "Input with NUL": {Keep: 1, Input: "\x00"}, "MaxRuns": {Keep: 1, MaxRuns: -1}, "Keep": {}, "OnLapse": {Keep: 1, OnLapse: 2},
		} {
			_, err := r.lock(r.client, holdlock.LockOptions{}).Claim(t.Context(), claim, 0)
			wantIs(t, what, err, holdlock.ErrInvalid)
		}
		if got := r.drv.calls.Load(); got != calls {
			t.Errorf("the store was asked %d times for what is not allowed", got-calls)
		}
		if err := run.Finish(t.Context(), aRecord); err != nil {
			t.Errorf("Finish: %v", err)
		}
		wantIs(t, "the second Finish", run.Finish(t.Context(), aRecord), holdlock.ErrReleased)
		wantIs(t, "Release after Finish", run.Release(t.Context()), holdlock.ErrReleased)
		if n := len(r.events.of(holdlock.Released)); n != 3 {
			t.Errorf("%d leases were told to have been released, want 3", n)
		}
	})
}

// A driver between us and the store that drops the claim must not make a plain lease of a run.
func TestADroppedClaimIsNoRun(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		r.drv.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
			plain := *req
			plain.Once = nil
			return r.drv.Driver.Acquire(ctx, &plain)
		}
		if lease, err := r.lock(r.client, holdlock.LockOptions{}).Claim(t.Context(), aClaim, 0); err == nil {
			t.Errorf("a claim that was dropped was granted: %+v", lease)
		}
		if left := r.remaining(); left != 0 {
			t.Errorf("the lock is kept for %v", left)
		}
	})
}

// The record was removed or spoilt while the run was under way: that will not change, so nobody waits for it, and the lock is free.
func TestFinishWithoutRecord(t *testing.T) {
	for _, answer := range []error{driver.ErrUnclaimed, driver.ErrBadRecord} {
		for _, late := range []bool{false, true} { // the store does not answer at first
			t.Run(fmt.Sprintf("%v/late %v", answer, late), func(t *testing.T) {
				virtual(t, func(t *testing.T, r *rig) {
					run := r.claim(r.client, aClaim)
					var asked atomic.Int64
					r.drv.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
						if req.Record == nil {
							return r.drv.Driver.Release(ctx, req)
						}
						if asked.Add(1) == 1 && late {
							return errors.New("connection reset")
						}
						return fmt.Errorf("%w (%w)", answer, driver.ErrNotApplied)
					}
					began := time.Now()
					err := run.Finish(t.Context(), aRecord)
					if late {
						time.Sleep(time.Second)
					} else if !errors.Is(err, answer) || !strings.Contains(err.Error(), "job") || time.Since(began) > time.Second {
						t.Errorf("Finish: %v after %v, want %v at once", err, time.Since(began), answer)
					}
					if want := map[bool]int64{false: 1, true: 2}[late]; asked.Load() != want {
						t.Errorf("the store was told %d times, want %d", asked.Load(), want)
					}
					if n := len(r.events.of(holdlock.Unrecorded)); n != 1 {
						t.Errorf("Unrecorded was told %d times", n)
					}
					lease, err := r.lock(r.rival, holdlock.LockOptions{}).TryAcquire(t.Context())
					if err != nil {
						t.Fatalf("the lock afterwards: %v", err)
					}
					_ = lease.Release(t.Context())
				})
			})
		}
	}
}

// Shutdown that runs out of patience leaves the run to its worker, and what that says later is no surprise.
func TestFinishAfterShutdown(t *testing.T) {
	for name, end := range map[string]func(l *holdlock.Lease) error{
		"Finish":  func(l *holdlock.Lease) error { return l.Finish(context.Background(), aRecord) },
		"Release": func(l *holdlock.Lease) error { return l.Release(context.Background()) },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, r *rig) {
				lease := r.claim(r.client, aClaim)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := r.client.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Shutdown: %v", err)
				}
				if err := end(lease); err == nil {
					t.Error("after Shutdown there is no error")
				}
				time.Sleep(time.Minute)
				if j := r.claim(r.rival, aClaim); j.Job().Before != driver.JobLapsed {
					t.Errorf("the next run: %+v", j.Job())
				} else if err := j.Finish(t.Context(), aRecord); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// What an operator may not ask for is refused, and a running job is not settled.
func TestSettle(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		run := r.claim(r.client, aClaim)
		token := run.Token()
		good := holdlock.SettleOptions{By: "ann: looked", Keep: time.Hour}
		for what, opts := range map[string]holdlock.SettleOptions{
			"By": {Keep: 1}, "By with NUL": {By: "a\x00b", Keep: 1}, "By that is not UTF-8": {By: "a\xffb", Keep: 1},
			"By that is too long": {By: strings.Repeat("x", driver.MaxJobText+1), Keep: 1}, "Keep": {By: "x"}, "Result": {By: "x", Keep: 1, Result: bytes.Repeat([]byte("x"), driver.MaxResult+1)},
		} {
			wantIs(t, what, r.rival.Settle(t.Context(), "job", "", token, opts), holdlock.ErrInvalid)
		}
		wantIs(t, "a running job", r.rival.Settle(t.Context(), "job", "", token, good), holdlock.ErrHeld)
		if err := run.Finish(t.Context(), driver.Record{State: driver.JobSuspended, Why: driver.ByError, Error: "odd", Keep: 1}); err != nil {
			t.Fatal(err)
		}
		if err := r.rival.Settle(t.Context(), "job", "", token+1, good); !errors.Is(err, holdlock.ErrJobChanged) {
			t.Errorf("another token: %v", err)
		}
		if err := r.rival.Settle(t.Context(), "nothing", "", token, good); !errors.Is(err, holdlock.ErrJobChanged) {
			t.Errorf("no such job: %v", err)
		}
		if err := r.rival.Settle(t.Context(), "job", "", token, good); err != nil {
			t.Errorf("a suspended job: %v", err)
		}
		other := good
		other.Done, other.By = true, "bob: looked too"
		if err := r.rival.Settle(t.Context(), "job", "", token, other); !errors.Is(err, holdlock.ErrJobChanged) || !strings.Contains(fmt.Sprint(err), "let run again") ||
			!strings.Contains(fmt.Sprint(err), good.By) {
			t.Errorf("the decision of another operator: %v", err)
		}
		other.Again = true
		if err := r.rival.Settle(t.Context(), "job", "", token, other); err != nil {
			t.Errorf("one that is overruled: %v", err)
		}
		if err := r.rival.Settle(t.Context(), "job", "", token, good); !errors.Is(err, holdlock.ErrJobChanged) || !strings.Contains(fmt.Sprint(err), "marked done") {
			t.Errorf("the other way round: %v", err)
		}
		good.Again = true
		if err := r.rival.Settle(t.Context(), "job", "", token, good); err != nil {
			t.Error(err)
		}
		// The next run is judged for itself.
		run = r.claim(r.client, aClaim)
		if err := run.Finish(t.Context(), driver.Record{State: driver.JobSuspended, Why: driver.ByError, Keep: 1}); err != nil {
			t.Fatal(err)
		}
		good.Again = false
		if err := r.rival.Settle(t.Context(), "job", "", run.Token(), good); err != nil {
			t.Errorf("the run after a settlement: %v", err)
		}
		// One that has done the job is what did it, and nobody has settled that.
		run = r.claim(r.client, aClaim)
		if err := run.Finish(t.Context(), aRecord); err != nil {
			t.Fatal(err)
		}
		_, err := r.lock(r.rival, holdlock.LockOptions{}).Claim(t.Context(), aClaim, 0)
		if !errors.Is(err, driver.ErrDone) || strings.Contains(err.Error(), "marked done") || strings.Contains(err.Error(), good.By) ||
			!strings.Contains(err.Error(), fmt.Sprintf("(token %d)", run.Token())) {
			t.Errorf("a duplicate after the run that follows a settlement: %v, want what did it", err)
		}
		if err := r.rival.Settle(t.Context(), "job", "", run.Token(), good); err != nil {
			t.Errorf("the run that has done the job after a settlement: %v", err)
		}
		if n := len(r.events.of(holdlock.Suspended)); n != 2 {
			t.Errorf("Suspended was told %d times", n)
		}
	})
}
