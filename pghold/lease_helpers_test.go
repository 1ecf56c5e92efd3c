//go:build unix

package pghold

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// leaseClient opens lease rows as programs do.
func leaseClient(tb testing.TB, url, schema string) *holdlock.Client {
	tb.Helper()
	c, err := Open(testContext(tb), url, &LeaseOptions{Schema: schema})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.Shutdown(ctx) // what a test has left open is its own affair
	})
	return c
}

func newLock(tb testing.TB, c *holdlock.Client, name string, ttl time.Duration) *holdlock.Lock {
	tb.Helper()
	l, err := c.NewLock(name, &holdlock.LockOptions{TTL: ttl})
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

func mustTry(tb testing.TB, l *holdlock.Lock) *holdlock.Lease {
	tb.Helper()
	lease, err := l.TryAcquire(testContext(tb))
	if err != nil {
		tb.Fatal(err)
	}
	return lease
}

func mustGrant(tb testing.TB, d driver.Driver, req *driver.AcquireRequest) driver.Grant {
	tb.Helper()
	g, err := d.Acquire(testContext(tb), req)
	if err != nil {
		tb.Fatal(err)
	}
	return g
}

func mustRelease(tb testing.TB, d driver.Driver, ref driver.Ref) {
	tb.Helper()
	if err := d.Release(testContext(tb), &driver.ReleaseRequest{Ref: ref}); err != nil {
		tb.Fatal(err)
	}
}

// stands says whether there is a term of the key.
func stands(tb testing.TB, d driver.Lister, key string) (driver.Term, bool) {
	tb.Helper()
	term, ok, err := d.Inspect(testContext(tb), key)
	if err != nil {
		tb.Fatal(err)
	}
	return term, ok
}

// lostFor waits for the end of a lease and checks why it was lost.
func lostFor(tb testing.TB, lease *holdlock.Lease, want holdlock.LossReason) {
	tb.Helper()
	select {
	case <-lease.Done():
	case <-time.After(patience):
		tb.Fatal("the lease has not ended")
	}
	var loss *holdlock.LostError
	if !errors.As(lease.Err(), &loss) || loss.Reason != want {
		tb.Fatalf("the lease ended with %v, want %s", lease.Err(), want)
	}
}

// firstCall does something to the first piece of data on its way to the server that calls a function about a key.
func firstCall(v testenv.Verdict, function, key string) (s testenv.Script, hit func() bool) {
	var mu sync.Mutex
	done := false
	return func(up bool, data []byte) testenv.Verdict {
			mu.Lock()
			defer mu.Unlock()
			if !up || done || !bytes.Contains(data, []byte("."+function+"(")) || !bytes.Contains(data, []byte(key)) {
				return testenv.Pass
			}
			done = true
			return v
		}, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return done
		}
}
