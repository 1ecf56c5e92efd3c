//go:build soak

package holdlock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/memhold"
)

// In real time, with a store that fails, hangs and comes back: no lease is without renewal and without an alarm. A lease
// whose trust has ended is told so, soon.
func TestSoakNoLeaseIsForgotten(t *testing.T) {
	const n = 2000
	drv := &hooked{Driver: memhold.NewDriver(nil)}
	var over atomic.Bool
	drv.renew = func(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
		if over.Load() { // calls that hang against their context are not waited for by Shutdown
			return driver.Grant{}, errors.New("refused")
		}
		switch rand.IntN(40) {
		case 0:
			<-ctx.Done()
			return driver.Grant{}, ctx.Err()
		case 1, 2, 3:
			return driver.Grant{}, errors.New("refused")
		case 4:
			time.Sleep(time.Duration(rand.IntN(200)) * time.Millisecond) // whatever ctx says
		}
		return drv.Driver.Renew(ctx, req)
	}
	c, err := holdlock.NewClient(drv, nil)
	if err != nil {
		t.Fatal(err)
	}
	locks := make([]*holdlock.Lock, n)
	for i := range locks {
		l, err := c.NewLock("job", &holdlock.LockOptions{TTL: time.Duration(500+rand.IntN(4000)) * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		locks[i] = l.For(fmt.Sprint(i))
	}
	leases := make([]*holdlock.Lease, n)
	overdue := make([]time.Time, n)
	lost, granted := 0, 0
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); {
		for i, lease := range leases {
			if lease != nil && lease.Err() == nil && rand.IntN(50) > 0 {
				switch late := lease.Check(0); {
				case late == nil:
					overdue[i] = time.Time{}
				case overdue[i].IsZero():
					overdue[i] = time.Now()
				case time.Since(overdue[i]) > 3*time.Second:
					t.Fatalf("lease %d: %v, but its alarm has not rung for %v", i, late, time.Since(overdue[i]))
				}
				continue
			}
			if lease != nil {
				if errors.Is(lease.Release(t.Context()), holdlock.ErrLost) {
					lost++
				}
				leases[i] = nil
			}
			overdue[i] = time.Time{}
			if lease, err := locks[i].TryAcquire(t.Context()); err == nil {
				leases[i] = lease
				granted++
			}
		}
	}
	t.Logf("%d leases, %d lost", granted, lost)
	if granted < n || lost == 0 {
		t.Error("too tame to show anything")
	}
	over.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_ = c.Shutdown(ctx)
}
