//go:build unix

package redishold

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// A holder that is paused past its TTL knows that it has lost the lock before it does anything else.
func TestPausedHolder(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := startSite(t, kind)
			h := startHelper(t, "hold", s)
			g, rival := takesOver(t, s, h, func() { testenv.Stop(t, h.cmd.Process.Pid) })
			h.signal(t, syscall.SIGCONT)
			// Whoever was stopped while a renewal was on its way takes the missing answer for the reason.
			why := h.line(t)
			if !strings.Contains(why, "was lost: this process or machine was paused") && !strings.Contains(why, "no answer to a renewal") {
				t.Errorf("the cause is %q", why)
			}
			if err := h.line(t); !strings.Contains(err, "was lost") {
				t.Errorf("Do returned %q", err)
			}
			if term, ok := present(t, rival, "k"); !ok || term.Token != g.Token {
				t.Errorf("the successor's term is %+v, %v", term, ok)
			}
		})
	}
	// The control: the usual lock works on, beside its successor, and then takes the lock away from it.
	t.Run("naive", func(t *testing.T) {
		t.Parallel()
		s := startSite(t, "standalone")
		h := startHelper(t, "naive hold", s)
		h.line(t) // and then it stops
		rival := naive{client(s.addrs[0])}
		defer rival.client.Close()
		testenv.Eventually(t, "the lock passes on", func() bool {
			_, err := rival.Acquire(t.Context(), request("k", time.Hour))
			return err == nil
		})
		h.signal(t, syscall.SIGCONT)
		if got := h.line(t); got != "works" {
			t.Errorf("a naive holder that was paused says %q", got)
		}
		h.line(t)
		if got := s.servers[0].Do(t, "EXISTS", naiveKey("k")); got != "0" {
			t.Error("the successor has kept its lock, so the test tells nothing")
		}
	})
}

// A holder that is killed costs its TTL and no more, and its successor is told.
func TestKilledHolder(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := startSite(t, kind)
			h := startHelper(t, "hold", s)
			takesOver(t, s, h, func() { h.kill(t) })
		})
	}
}

// takesOver checks that a rival gets the lock of a helper once something has happened to that, and not before; and what it
// is told.
func takesOver(t *testing.T, s site, h *helper, happens func()) (driver.Grant, *Driver) {
	t.Helper()
	d := s.open(t, nil)
	var token uint64
	if _, err := fmt.Sscan(h.line(t), &token); err != nil {
		t.Fatal(err)
	}
	const ttl = time.Second // of the helper
	for well := time.Now().Add(ttl * 5 / 4); time.Now().Before(well); time.Sleep(20 * time.Millisecond) {
		_, err := d.Acquire(t.Context(), request("k", time.Minute))
		if err == nil {
			t.Fatal("a rival was granted the lock while its holder was well")
		}
		var held *driver.HeldError
		if errors.As(err, &held) && held.Term.Remaining > ttl+3*time.Millisecond {
			t.Fatalf("the term of %v is to last %v longer", ttl, held.Term.Remaining)
		}
	}
	happens()
	var g driver.Grant
	testenv.Eventually(t, "the lock passes on", func() bool {
		var err error
		g, err = d.Acquire(t.Context(), request("k", time.Minute))
		return err == nil
	})
	if g.Previous != driver.Lapsed || g.Prior == nil || g.Prior.Holder.PID != h.cmd.Process.Pid || g.Prior.Token != driver.Token(token) {
		t.Errorf("the successor is told %v, %+v", g.Previous, g.Prior)
	}
	if g.Token <= driver.Token(token) {
		t.Errorf("token %d after %d", g.Token, token)
	}
	return g, d
}

// Processes are killed at random moments. No key is ever without an expiry, and nothing but slots of ended terms stays.
func TestNothingIsLeftByTheKilled(t *testing.T) {
	t.Parallel()
	const rounds, kills = 500, 12
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := startSite(t, kind)
			never := watchEternal(t, s)
			grants, killed := churn(t, s, "churn", rounds, kills)
			seen, looks := never()
			if seen > 0 {
				t.Errorf("%d looks of %d have seen a key without expiry", seen, looks)
			}
			d := s.open(t, &Options{Namespace: "churn"})
			testenv.Eventually(t, "all terms are over", func() bool {
				terms, err := d.List(t.Context(), "", "", 100)
				return err == nil && len(terms) == 0
			})
			left, err := leftovers(s.dial, "churn")
			if err != nil || len(left) > 0 {
				t.Errorf("left: %q, %v", left, err)
			}
			n := 0
			for _, r := range s.servers {
				var here int
				if _, err := fmt.Sscan(r.Do(t, "DBSIZE"), &here); err != nil {
					t.Fatal(err)
				}
				n += here
			}
			if n == 0 || n > 12 { // of the keys of the helper
				t.Errorf("%d slots of ended terms are there, want at least one and at most one for each key", n)
			}
			t.Logf("%d grants, %d kills, %d looks, %d slots of ended terms", grants, killed, looks, n)
		})
	}
	// The control: a lock that is taken in two steps is seen in between, and left there by those who die in between.
	t.Run("naive", func(t *testing.T) {
		t.Parallel()
		s := startSite(t, "standalone")
		never := watchEternal(t, s)
		churn(t, s, "naive churn", 100, 3)
		if seen, looks := never(); seen == 0 {
			t.Errorf("in %d looks at a naive lock no key was without expiry, so the test tells nothing", looks)
		}
	})
}

// churn kills helpers one after the other until they have been granted so many locks.
func churn(t *testing.T, s site, role string, rounds, kills int) (grants, killed int) {
	t.Helper()
	for grants < rounds || killed < kills {
		h := startHelper(t, role, s)
		for range 20 + rand.N(60) {
			h.line(t)
			grants++
		}
		h.kill(t)
		killed++
	}
	return grants, killed
}

// watchEternal looks all the time whether there are keys without expiry. The result ends it.
func watchEternal(t *testing.T, s site) (end func() (seen, looks int64)) {
	t.Helper()
	var with, all atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	watching.Go(func() {
		for ctx.Err() == nil {
			n, err := s.eternal()
			if err != nil {
				t.Error(err)
				return
			}
			all.Add(1)
			if n > 0 {
				with.Add(1)
			}
		}
	})
	t.Cleanup(func() { stop(); watching.Wait() })
	return func() (int64, int64) {
		stop()
		watching.Wait()
		return with.Load(), all.Load()
	}
}
