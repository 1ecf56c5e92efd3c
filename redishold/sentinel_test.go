//go:build unix

package redishold

import (
	"fmt"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// The replica takes over without the lock: the first answer of the new primary tells the holder, and tokens rise all the
// same.
func TestFailover(t *testing.T) {
	t.Parallel()
	for _, replicated := range []bool{false, true} {
		t.Run(fmt.Sprint("replicated=", replicated), func(t *testing.T) {
			t.Parallel()
			failover(t, replicated)
		})
	}
}

func failover(t *testing.T, replicated bool) {
	s := testenv.StartSentinel(t)
	rdb := sentinelClient(s)
	d, err := openOwn(rdb, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	if got := d.Traits().Forgets; got != driver.OnFailover {
		t.Errorf("Forgets = %v", got)
	}
	var told events
	c := openOn(t, sentinelClient(s), &Options{Client: holdlock.ClientOptions{Observer: &told}})
	if !replicated {
		s.Isolate(t)
	}
	n := naive{rdb}
	careless := request("k", time.Hour)
	naiveBefore, err := n.Acquire(t.Context(), careless)
	if err != nil {
		t.Fatal(err)
	}
	// Long enough for a failover on a busy machine: renewals fail meanwhile, and are due again every 8 s after it.
	lease := mustAcquire(t, newLock(t, c, "k", 24*time.Second))
	if replicated {
		testenv.Eventually(t, "the replica has the lock", func() bool {
			return s.Servers[1].Do(t, "EXISTS", "holdlock:{:k}") == "1"
		})
	}
	s.Failover(t)
	renewed := len(told.of(holdlock.Renewed))
	if replicated { // the control: what the replica has is not lost
		testenv.Eventually(t, "the new primary has renewed the lease", func() bool {
			return lease.Err() != nil || len(told.of(holdlock.Renewed)) > renewed
		})
		if lease.Err() != nil {
			t.Errorf("with the lock replicated: %v", lease.Err())
		}
		return
	}
	lost(t, lease, holdlock.LossGone)
	if n := len(told.of(holdlock.Renewed)); n > renewed {
		t.Errorf("%d renewals succeeded after the failover", n-renewed)
	}
	var g driver.Grant
	testenv.Eventually(t, "the new primary grants", func() bool {
		g, err = d.Acquire(t.Context(), request("k", time.Minute))
		return err == nil
	})
	if g.Token <= lease.Token() {
		t.Errorf("token %d after %d", g.Token, lease.Token())
	}
	// The naive twin issues the same token again, and its first holder is told that all is well.
	naiveAfter, err := n.Acquire(t.Context(), request("k", time.Hour))
	if err != nil || naiveAfter.Token > naiveBefore.Token {
		t.Errorf("a naive lock: token %d after %d, %v: the test tells nothing", naiveAfter.Token, naiveBefore.Token, err)
	}
	if _, err := n.Renew(t.Context(), &driver.RenewRequest{Ref: careless.Ref, TTL: time.Hour}); err != nil {
		t.Errorf("a naive renewal after the failover: %v: the test tells nothing", err)
	}
}
