//go:build unix

package redishold

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

func startPair(t *testing.T) (primary, replica *testenv.Redis) {
	t.Helper()
	primary = testenv.StartRedis(t, "--repl-diskless-sync-delay", "0")
	replica = testenv.StartRedis(t, "--replicaof", "127.0.0.1 "+fmt.Sprint(primary.Port()))
	testenv.Eventually(t, "the replica has caught up", func() bool {
		return strings.Contains(replica.Do(t, "INFO", "replication"), "master_link_status:up")
	})
	return primary, replica
}

// Grants and renewals that a replica has not confirmed do not count, and leave nothing.
func TestReplicas(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 0} { // without Replicas nothing is noticed, or the test tells nothing
		primary, replica := startPair(t)
		d := openDriver(t, primary.Addr, &Options{Replicas: n})
		c := open(t, primary.Addr, &Options{Replicas: n})
		var lease *holdlock.Lease
		l := newLock(t, c, "held", 5*time.Second)
		testenv.Eventually(t, "a grant is confirmed", func() (ok bool) { // a busy machine may take its time
			var err error
			lease, err = l.TryAcquire(t.Context())
			return err == nil
		})
		if n > 0 && replica.Do(t, "EXISTS", d.slotKey("held")) != "1" {
			t.Error("it was granted before the replica had it")
		}
		replica.Freeze(t)
		_, err := d.Acquire(t.Context(), request("k", time.Hour))
		if n == 0 {
			if err != nil {
				t.Errorf("without Replicas: %v", err)
			}
			continue
		}
		var held *driver.HeldError
		if err == nil || errors.As(err, &held) || !errors.Is(err, driver.ErrNotApplied) || !strings.Contains(err.Error(), "0 of 1 replicas") {
			t.Errorf("Acquire without a confirmation: %v", err)
		}
		if _, ok := present(t, d, "k"); ok {
			t.Error("a grant that does not count is still there")
		}
		lost(t, lease, holdlock.LossUnreachable) // no renewal is confirmed, so trust has not moved
		replica.Thaw(t)
		testenv.Eventually(t, "it grants again", func() bool {
			_, err := d.Acquire(t.Context(), request("k", time.Minute))
			return err == nil
		})
	}
}
