package holdlock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/memhold"
)

// notifying is a driver that hears of losses by itself.
type notifying struct {
	*memhold.Driver
	mu      sync.Mutex
	waiting map[driver.Ref]func(error)
	already error // what is told at once
}

func (n *notifying) NotifyLoss(ref driver.Ref, lost func(error)) {
	n.mu.Lock()
	n.waiting[ref] = lost
	n.mu.Unlock()
	if n.already != nil {
		lost(n.already)
	}
}

func (n *notifying) loseAll(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, lost := range n.waiting {
		lost(err)
	}
}

func withLosses(t *testing.T, f func(t *testing.T, n *notifying, l *holdlock.Lock, seen *events)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := &notifying{Driver: memhold.NewDriver(nil), waiting: map[driver.Ref]func(error){}}
		seen := &events{}
		c, err := holdlock.NewClient(n, &holdlock.ClientOptions{Observer: seen})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Shutdown(context.Background())
		l, err := c.NewLock("job", nil)
		if err != nil {
			t.Fatal(err)
		}
		f(t, n, l, seen)
	})
}

var errCut = errors.New("connection was cut")

// R2: what the store learns by itself ends the work at once, not at the next renewal.
func TestLossIsHeardAtOnce(t *testing.T) {
	withLosses(t, func(t *testing.T, n *notifying, l *holdlock.Lock, seen *events) {
		err := l.Do(t.Context(), func(ctx context.Context, lease *holdlock.Lease) error {
			start := time.Now()
			n.loseAll(errCut)
			<-ctx.Done()
			if took := time.Since(start); took != 0 {
				t.Errorf("the work was told %v after the loss", took)
			}
			if cause := context.Cause(ctx); !errors.Is(cause, errCut) {
				t.Errorf("the cause is %v", cause)
			}
			if err := lease.Check(0); !errors.Is(err, holdlock.ErrLost) {
				t.Errorf("Check: %v", err)
			}
			n.loseAll(errCut) // a second notice changes nothing
			return nil
		})
		wantReason(t, err, holdlock.LossDisconnected)
		if lost := seen.of(holdlock.Lost); len(lost) != 1 {
			t.Errorf("%d losses were observed", len(lost))
		}
		// The work is over and its key was given back, so nobody waits for the TTL.
		lease, err := l.TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		n.loseAll(errCut) // after the release: nothing
		if lost := seen.of(holdlock.Lost); len(lost) != 1 {
			t.Errorf("%d losses were observed", len(lost))
		}
	})
}

// A loss between the grant and the registration is not missed.
func TestLossBeforeItsRegistration(t *testing.T) {
	withLosses(t, func(t *testing.T, n *notifying, l *holdlock.Lock, _ *events) {
		n.already = errCut
		lease, err := l.TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		wantReason(t, lease.Err(), holdlock.LossDisconnected)
		_ = lease.Release(t.Context())
	})
}

// The control: without notices the loss is found by a renewal, a third of the TTL later.
func TestWithoutNoticesALossIsFoundByARenewal(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		r.drv.renew = func(context.Context, *driver.RenewRequest) (driver.Grant, error) {
			return driver.Grant{}, driver.ErrGone
		}
		start := time.Now()
		err := r.lock(r.client, holdlock.LockOptions{TTL: 30 * time.Second}).Do(t.Context(), func(ctx context.Context, _ *holdlock.Lease) error {
			<-ctx.Done()
			return nil
		})
		wantReason(t, err, holdlock.LossGone)
		if took := time.Since(start); took < 9*time.Second {
			t.Errorf("the loss was told after %v, so the other tests tell nothing", took)
		}
	})
}

// A lock in the caller's transaction is declared and observed as any other, and may be Harmful.
func TestInTransaction(t *testing.T) {
	withLosses(t, func(t *testing.T, _ *notifying, l *holdlock.Lock, seen *events) {
		c, err := holdlock.NewClient(memhold.NewDriver(nil), &holdlock.ClientOptions{Observer: seen, Label: "settler"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Shutdown(context.Background())
		harmful, err := c.NewLock("settle", &holdlock.LockOptions{DoubleRun: holdlock.Harmful, Purpose: "pays out"})
		if err != nil {
			t.Fatal(err)
		}
		day := harmful.For("2026-11-29")
		if _, err := day.TryAcquire(t.Context()); !errors.Is(err, holdlock.ErrRefused) {
			t.Errorf("a lease of a harmful lock: %v", err)
		}
		use, err := day.InTransaction()
		if err != nil {
			t.Fatalf("in a transaction: %v", err)
		}
		if got := use.StoreKey(); got != "settle/2026-11-29" {
			t.Errorf("StoreKey = %q", got)
		}
		if h := use.Holder(); h.Label != "settler" || h.Purpose != "pays out" || h.PID == 0 {
			t.Errorf("Holder = %+v", h)
		}
		use.Ended(holdlock.Duplicate, nil)
		got := seen.of(holdlock.Duplicate)
		if len(got) != 1 || !got[0].InTx || got[0].Name != "settle" || got[0].Key != "2026-11-29" {
			t.Errorf("observed: %+v", got)
		}
		if _, err := harmful.For("").InTransaction(); !errors.Is(err, holdlock.ErrInvalid) {
			t.Errorf("an empty key: %v", err)
		}
	})
}
