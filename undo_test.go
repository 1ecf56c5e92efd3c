package holdlock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

// A wait asks again with the nonce of a try that had no answer. If it is told that the lock is held, the first request can still arrive, and
// take a lock, or begin the run of a job, for nobody: it is undone.
func TestATryThatWasOvertakenIsUndone(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		opts := holdlock.LockOptions{TTL: 10 * time.Second}
		lease := mustTry(t, r.lock(r.rival, opts))
		var tries []string
		undone := map[string]bool{}
		r.drv.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
			tries = append(tries, req.Ref.Nonce)
			if len(tries) == 2 {
				return driver.Grant{}, errors.New("i/o timeout")
			}
			return r.drv.Driver.Acquire(ctx, req)
		}
		r.drv.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
			undone[req.Ref.Nonce] = undone[req.Ref.Nonce] || req.Undo && !req.Answered
			return r.drv.Driver.Release(ctx, req)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := r.lock(r.client, opts).Acquire(ctx); !errors.Is(err, holdlock.ErrHeld) {
			t.Errorf("Acquire: %v", err)
		}
		synctest.Wait()
		if len(tries) < 3 || tries[1] != tries[2] || !undone[tries[1]] || len(undone) != 1 {
			t.Errorf("tries %v, undone %v; want the second and the third to be of one nonce, and that alone undone", tries, undone)
		}
		release(t, lease)
	})
}
