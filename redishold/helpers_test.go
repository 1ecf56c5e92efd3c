//go:build unix

package redishold

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// open opens a client of the library on an address, with a Redis client of its own.
func open(t *testing.T, addr string, opts *Options) *holdlock.Client {
	t.Helper()
	return openOn(t, client(addr), opts)
}

func openOn(t *testing.T, rdb redis.UniversalClient, opts *Options) *holdlock.Client {
	t.Helper()
	c, err := Open(rdb, opts)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = c.Shutdown(ctx) // what a test has left open is its own affair
		_ = rdb.Close()
	})
	return c
}

func openDriver(t *testing.T, addr string, opts *Options) *Driver {
	t.Helper()
	rdb := client(addr)
	d, err := NewDriver(rdb, opts)
	if err != nil {
		t.Fatalf("NewDriver: %v", err)
	}
	t.Cleanup(func() { _, _ = d.Close(), rdb.Close() })
	return d
}

func newLock(t *testing.T, c *holdlock.Client, name string, ttl time.Duration) *holdlock.Lock {
	t.Helper()
	l, err := c.NewLock(name, &holdlock.LockOptions{TTL: ttl})
	if err != nil {
		t.Fatalf("NewLock: %v", err)
	}
	return l
}

func mustAcquire(t *testing.T, l *holdlock.Lock) *holdlock.Lease {
	t.Helper()
	lease, err := l.TryAcquire(t.Context())
	if err != nil {
		t.Fatalf("TryAcquire: %v", err)
	}
	return lease
}

func request(key string, ttl time.Duration) *driver.AcquireRequest {
	return &driver.AcquireRequest{Ref: driver.Ref{Key: key, Nonce: randomHex(16)}, TTL: ttl}
}

func grant(t *testing.T, d driver.Driver, req *driver.AcquireRequest) driver.Grant {
	t.Helper()
	g, err := d.Acquire(t.Context(), req)
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	return g
}

// lost waits for the end of a lease and checks the reason.
func lost(t *testing.T, lease *holdlock.Lease, want holdlock.LossReason) {
	t.Helper()
	select {
	case <-lease.Done():
	case <-time.After(30 * time.Second):
		t.Fatalf("the lease has not ended after 30 s")
	}
	var loss *holdlock.LostError
	if !errors.As(lease.Err(), &loss) || loss.Reason != want {
		t.Fatalf("the lease ended with %v, want %s", lease.Err(), want)
	}
}

// present returns the term of a key as the server has it.
func present(t *testing.T, d *Driver, key string) (driver.Term, bool) {
	t.Helper()
	term, ok, err := d.Inspect(context.Background(), key)
	if err != nil {
		t.Fatalf("Inspect: %v", err)
	}
	return term, ok
}

// gets says whether data on the wire is a call of a script for a key.
func calls(s *script, key string) func(data []byte) bool {
	return func(data []byte) bool {
		text := string(data)
		return strings.Contains(text, key) && (strings.Contains(text, s.sha) || strings.Contains(text, s.source))
	}
}

// takes and gives are calls for turns that take or give back the lock of a key.
func takes(d *Driver, key string) func(data []byte) bool {
	return turnsOf(d, key, "\r\nA", "\r\nW", "\r\nN")
}

func gives(d *Driver, key string) func(data []byte) bool { return turnsOf(d, key, "\r\nR") }

func turnsOf(d *Driver, key string, kinds ...string) func(data []byte) bool {
	call := calls(d.scripts.turn, key)
	return func(data []byte) bool {
		return call(data) && slices.ContainsFunc(kinds, func(k string) bool { return bytes.Contains(data, []byte(k)) })
	}
}

// once returns a script of a proxy that does something to the first piece of data for which match is true.
func once(v testenv.Verdict, match func(data []byte) bool) (s testenv.Script, hit func() bool) {
	var mu sync.Mutex
	done := false
	return func(up bool, data []byte) testenv.Verdict {
			mu.Lock()
			defer mu.Unlock()
			if !up || done || !match(data) {
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

// loadScripts makes the server know all scripts, so that the first call is the one that acts.
func loadScripts(t *testing.T, r *testenv.Redis, d *Driver) {
	t.Helper()
	s := d.scripts
	for _, s := range []*script{s.acquire, s.renew, s.release, s.turn, s.breakTerm, s.look, s.watch, s.leave, s.attend, s.claim, s.finish, s.jobs, s.settle} {
		if s == nil { // plain keys have neither turns nor records
			continue
		}
		if got := r.Do(t, "SCRIPT", "LOAD", s.source); got != s.sha {
			t.Fatalf("SCRIPT LOAD = %s, want %s", got, s.sha)
		}
	}
}

// events is an observer that remembers everything.
type events struct {
	mu  sync.Mutex
	all []holdlock.Event
}

// Observe implements holdlock.Observer.
func (e *events) Observe(ev holdlock.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, ev)
}

// of returns the events of a kind so far.
func (e *events) of(kind holdlock.EventKind) (some []holdlock.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ev := range e.all {
		if ev.Kind == kind {
			some = append(some, ev)
		}
	}
	return some
}
