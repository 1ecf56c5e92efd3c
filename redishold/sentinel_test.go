//go:build unix

package redishold

import (
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// The replica takes over without the lock: the holder is told by its next renewal, and tokens rise all the same.
func TestFailover(t *testing.T) {
	t.Parallel()
	for _, replicated := range []bool{false, true} {
		s := testenv.StartSentinel(t)
		d, err := openOwn(sentinelClient(s), nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		if got := d.Traits().Forgets; got != driver.OnFailover {
			t.Errorf("Forgets = %v", got)
		}
		c := openOn(t, sentinelClient(s), nil)
		if !replicated {
			s.Isolate(t)
		}
		// Long enough for a failover on a busy machine: renewals fail meanwhile, and are due again every 8 s after it.
		lease := mustAcquire(t, newLock(t, c, "k", 24*time.Second))
		if replicated {
			testenv.Eventually(t, "the replica has the lock", func() bool {
				return s.Servers[1].Do(t, "EXISTS", "holdlock:{:k}") == "1"
			})
		}
		s.Failover(t)
		if replicated { // the control: what the replica has is not lost
			before := lease.Deadline()
			testenv.Eventually(t, "the new primary has renewed the lease", func() bool {
				return lease.Err() != nil || lease.Deadline().Sub(before) > time.Second
			})
			if lease.Err() != nil {
				t.Errorf("with the lock replicated: %v", lease.Err())
			}
			continue
		}
		lost(t, lease, holdlock.LossGone)
		var g driver.Grant
		testenv.Eventually(t, "the new primary grants", func() bool {
			g, err = d.Acquire(t.Context(), request("k", time.Minute))
			return err == nil
		})
		if g.Token <= lease.Token() {
			t.Errorf("token %d after %d", g.Token, lease.Token())
		}
	}
}
