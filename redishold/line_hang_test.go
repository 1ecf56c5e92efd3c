//go:build unix

package redishold

import (
	"context"
	"testing"
	"time"

	"github.com/holdlock/holdlock/internal/testenv"
)

// The server hangs for longer than the TTL, and many waits are given up meanwhile, of a process that has another waiter. As soon
// as it answers they leave the line, so that the key is granted to somebody. The control is the one who waits: a living process
// keeps its places.
func TestWaitsGivenUpWhileTheServerHangs(t *testing.T) {
	t.Parallel()
	const ttl, n = 300 * time.Millisecond, 40
	r := testenv.StartRedis(t)
	d := openDriver(t, r.Addr, nil)
	holder := mustAcquire(t, newLock(t, open(t, r.Addr, nil), "k", time.Minute))
	l := newLock(t, open(t, r.Addr, nil), "k", ttl)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	gone := make(chan error, n)
	patient := make(chan error, 1)
	for range n {
		go func() {
			_, err := l.Acquire(ctx)
			gone <- err
		}()
	}
	testenv.Eventually(t, "they stand in line", func() bool { return r.Do(t, "LLEN", d.lineKey("k")) == "40" })
	go func() {
		lease, err := l.Acquire(t.Context())
		if err == nil {
			err = lease.Release(context.Background())
		}
		patient <- err
	}()
	testenv.Eventually(t, "one more does", func() bool { return r.Do(t, "LLEN", d.lineKey("k")) == "41" })

	r.Freeze(t)
	cancel()
	for range n {
		if err := <-gone; err == nil {
			t.Error("a wait that was given up was granted")
		}
	}
	time.Sleep(4 * ttl) // no condition: it is the fault
	r.Thaw(t)
	testenv.Eventually(t, "whoever gave up leaves the line", func() bool { return r.Do(t, "LLEN", d.lineKey("k")) == "1" })
	if err := holder.Release(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-patient; err != nil {
		t.Error(err)
	}
}
