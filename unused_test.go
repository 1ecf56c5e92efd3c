package holdlock_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/unused"
)

// What was granted and not used is given back as if it had never been, also if the store does not answer at first: the next claim is the
// first run, and no MinHold keeps the key. A plain release of the same lease leaves a run that never said how it ended.
func TestUnused(t *testing.T) {
	for name, c := range map[string]struct {
		fails, withdrawn bool
	}{"at once": {false, true}, "in the background": {true, true}, "a plain release": {false, false}} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, r *rig) {
				failed := false
				r.drv.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
					if c.fails && !failed {
						failed = true
						return errors.New("connection reset")
					}
					return r.drv.Driver.Release(ctx, req)
				}
				ctx := t.Context()
				if c.withdrawn {
					ctx = unused.Context(ctx)
				}
				opts := holdlock.LockOptions{MinHold: time.Hour}
				claim := driver.Claim{Keep: 100 * time.Hour, OnLapse: driver.Hold, MaxRuns: 1}
				lease, err := r.lock(r.client, opts).Claim(t.Context(), claim, 0)
				if err != nil {
					t.Fatal(err)
				}
				if err := lease.Release(ctx); (err != nil) != c.fails {
					t.Fatalf("Release: %v", err)
				}
				if c.fails {
					time.Sleep(time.Second) // the background
				}
				next, err := r.lock(r.rival, opts).Claim(t.Context(), claim, 0)
				if !c.withdrawn {
					if err == nil {
						t.Error("a plain release has withdrawn the run")
					}
					return
				}
				if err != nil {
					t.Fatalf("the next claim: %v", err)
				}
				if j := next.Job(); j.Runs != 1 || j.Lapses != 0 || j.Before != 0 {
					t.Errorf("the next run is %+v, want the first", j)
				}
				_ = next.Finish(t.Context(), aRecord)
			})
		})
	}
}
