package holdtest_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/holdtest"
)

func newLock(t testing.TB, c *holdtest.Client, opts *holdlock.LockOptions) *holdlock.Lock {
	t.Helper()
	l, err := c.NewLock("job", opts)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// For each reason: the work's context ends with it, Do returns it, and the key is free when it would be in production.
func TestLose(t *testing.T) {
	for reason, freeAtOnce := range map[holdlock.LossReason]bool{
		holdlock.LossUnreachable: false, holdlock.LossPaused: false, holdlock.LossExpired: false, holdlock.LossGone: true,
		holdlock.LossBroken: false, holdlock.LossMaxHold: false, holdlock.LossShutdown: false,
	} {
		t.Run(string(reason), func(t *testing.T) {
			both(t, func(t *testing.T) {
				locks := holdtest.NewClient(t, nil)
				l := newLock(t, locks, nil).For("7")
				toldUs, goOn, done := make(chan error), make(chan struct{}), make(chan error)
				go func() {
					done <- l.Do(t.Context(), func(ctx context.Context, lease *holdlock.Lease) error {
						<-ctx.Done()
						if err := lease.Check(0); !errors.Is(err, holdlock.ErrLost) {
							t.Errorf("Check: %v", err)
						}
						toldUs <- context.Cause(ctx)
						<-goOn
						return nil
					})
				}()
				locks.Lose("job", "7", reason)
				var lost *holdlock.LostError
				if err := <-toldUs; !errors.As(err, &lost) || lost.Reason != reason || lost.Key != "7" {
					t.Errorf("the cause is %v, want reason %q of key 7", err, reason)
				}
				if _, held, err := locks.Inspect(t.Context(), "job", "7"); err != nil || held == freeAtOnce {
					t.Errorf("while the work still runs: held %t (%v), want %t", held, err, !freeAtOnce)
				}
				close(goOn)
				if err := <-done; !errors.Is(err, holdlock.ErrLost) {
					t.Errorf("Do: %v", err)
				}
				if _, held, err := locks.Inspect(t.Context(), "job", "7"); err != nil || held {
					t.Errorf("after the work: held %t (%v)", held, err)
				}
			})
		})
	}
}

// The keeper must not replace the reason that the test asked for: with and without a renewal that has failed before.
func TestLoseAfterFailedRenewals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := holdtest.NewClient(t, nil)
		lease, err := newLock(t, locks, &holdlock.LockOptions{TTL: 30 * time.Second}).Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		locks.SetStore(holdtest.Down)
		time.Sleep(15 * time.Second)
		locks.Lose("job", "", holdlock.LossMaxHold)
		var lost *holdlock.LostError
		if !errors.As(lease.Err(), &lost) || lost.Reason != holdlock.LossMaxHold {
			t.Errorf("lost by %v", lease.Err())
		}
		locks.SetStore(holdtest.Up)
		if err := lease.Release(t.Context()); !errors.Is(err, holdlock.ErrLost) {
			t.Errorf("Release: %v", err)
		}
	})
}

// After Expire the successor overlaps, has a larger token, and is told of the lapse.
func TestExpire(t *testing.T) {
	both(t, func(t *testing.T) {
		var seen events
		locks := holdtest.NewClient(t, &holdlock.ClientOptions{Observer: &seen})
		l := newLock(t, locks, nil)
		lease, err := l.TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		locks.Expire("job", "")
		var lost *holdlock.LostError
		if !errors.As(lease.Err(), &lost) || lost.Reason != holdlock.LossPaused {
			t.Errorf("lost by %v", lease.Err())
		}
		if time.Until(lease.Deadline()) > 0 {
			t.Error("the deadline is still to come")
		}
		next, err := l.TryAcquire(t.Context())
		if err != nil {
			t.Fatalf("the key is not free: %v", err)
		}
		if next.Token() <= lease.Token() {
			t.Errorf("token %d after %d", next.Token(), lease.Token())
		}
		if err := lease.Release(t.Context()); !errors.Is(err, holdlock.ErrLost) {
			t.Errorf("Release of the expired lease: %v", err)
		}
		if err := next.Release(t.Context()); err != nil {
			t.Errorf("Release of the successor: %v", err)
		}
		lapses := seen.of(holdlock.Lapsed)
		if len(lapses) != 1 || lapses[0].Ending != driver.Lapsed || lapses[0].Prior == nil ||
			lapses[0].Prior.Token != lease.Token() || lapses[0].Prior.Broken != "" {
			t.Errorf("lapses: %+v, want one of token %d", lapses, lease.Token())
		}
		if n := len(seen.of(holdlock.Lost)); n != 1 {
			t.Errorf("%d losses, want 1", n)
		}
	})
}

// The next holder may be another program as well.
func TestExpireThenAnother(t *testing.T) {
	both(t, func(t *testing.T) {
		locks := holdtest.NewClient(t, nil)
		err := newLock(t, locks, nil).Do(t.Context(), func(ctx context.Context, lease *holdlock.Lease) error {
			locks.Expire("job", "")
			if other := locks.HoldByAnother("job", ""); other.Token() <= lease.Token() {
				t.Errorf("token %d after %d", other.Token(), lease.Token())
			}
			<-ctx.Done()
			return nil
		})
		if !errors.Is(err, holdlock.ErrLost) {
			t.Errorf("Do: %v", err)
		}
		if info, held, err := locks.Inspect(t.Context(), "job", ""); err != nil || !held || info.Holder.Label != "another program" {
			t.Errorf("held %t by %+v (%v), want by another program", held, info.Holder, err)
		}
	})
}

func TestHoldByAnother(t *testing.T) {
	both(t, func(t *testing.T) {
		locks := holdtest.NewClient(t, nil)
		l := newLock(t, locks, nil)
		other := locks.HoldByAnother("job", "7")
		_, err := l.For("7").TryAcquire(t.Context())
		var held *holdlock.HeldError
		if !errors.As(err, &held) || held.Holder.Label != "another program" || held.Token != other.Token() {
			t.Errorf("error is %v, want that another program holds it", err)
		}
		lease, err := l.For("8").TryAcquire(t.Context())
		if err != nil {
			t.Fatalf("another key: %v", err)
		}
		got := make(chan error)
		go func() {
			lease, err := l.For("7").Acquire(t.Context())
			if err == nil {
				err = lease.Release(t.Context())
			}
			got <- err
		}()
		if err := other.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-got; err != nil {
			t.Errorf("the waiter: %v", err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Another program renews: it does not let go by itself.
func TestHoldByAnotherLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := holdtest.NewClient(t, nil)
		locks.HoldByAnother("job", "")
		locks.SetStore(holdtest.Down) // is not its problem
		time.Sleep(48 * time.Hour)
		locks.SetStore(holdtest.Up)
		if _, err := newLock(t, locks, nil).TryAcquire(t.Context()); !errors.Is(err, holdlock.ErrHeld) {
			t.Errorf("after two days: %v", err)
		}
	})
}

func TestStoreDown(t *testing.T) {
	both(t, func(t *testing.T) {
		locks := holdtest.NewClient(t, nil)
		l := newLock(t, locks, nil)
		locks.SetStore(holdtest.Down)
		if _, err := l.Acquire(t.Context()); !errors.Is(err, holdlock.ErrUnreachable) || errors.Is(err, holdlock.ErrUnknown) {
			t.Errorf("Acquire: %v", err)
		}
		if _, _, err := locks.Inspect(t.Context(), "job", ""); !errors.Is(err, holdlock.ErrUnreachable) {
			t.Errorf("Inspect: %v", err)
		}
		locks.SetStore(holdtest.Up)
		lease, err := l.TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestStoreMute(t *testing.T) {
	both(t, func(t *testing.T) {
		locks := holdtest.NewClient(t, nil)
		l := newLock(t, locks, nil)
		locks.SetStore(holdtest.Mute)
		if _, err := l.TryAcquire(t.Context()); !errors.Is(err, holdlock.ErrUnknown) {
			t.Errorf("TryAcquire: %v", err)
		}
		locks.SetStore(holdtest.Up)
		lease, err := l.Acquire(t.Context()) // waits until what was granted has been given back
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A store that stays down costs the lease, in virtual time without a hand on it.
func TestStoreDownLosesTheLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks := holdtest.NewClient(t, nil)
		start := time.Now()
		err := newLock(t, locks, &holdlock.LockOptions{TTL: 30 * time.Second}).Do(t.Context(), func(ctx context.Context, _ *holdlock.Lease) error {
			locks.SetStore(holdtest.Down)
			<-ctx.Done()
			return nil
		})
		var lost *holdlock.LostError
		if !errors.As(err, &lost) || lost.Reason != holdlock.LossUnreachable {
			t.Errorf("Do: %v", err)
		}
		if d := time.Since(start); d < 27*time.Second || d > 28*time.Second {
			t.Errorf("lost after %v, want when trust ends", d)
		}
	})
}

// Harmful locks are judged as on a store with durable tokens.
func TestHarmful(t *testing.T) {
	t.Parallel()
	locks := holdtest.NewClient(t, nil)
	nothing := func(context.Context, *holdlock.Lease) error { return nil }
	guarded := newLock(t, locks, &holdlock.LockOptions{DoubleRun: holdlock.Harmful, Guard: holdlock.Fenced})
	if err := guarded.Do(t.Context(), nothing); err != nil {
		t.Errorf("with a guard: %v", err)
	}
	bare := newLock(t, locks, &holdlock.LockOptions{DoubleRun: holdlock.Harmful})
	if err := bare.Do(t.Context(), nothing); !errors.Is(err, holdlock.ErrRefused) {
		t.Errorf("without a guard: %v", err)
	}
}

// What is left behind fails the test, by name; what is in order does not.
func TestLeaks(t *testing.T) {
	nothing := func(context.Context, *holdlock.Lease) error { return nil }
	for _, tt := range []struct {
		name string
		test func(tb testing.TB)
		want string // "" if all is well
	}{
		{"nothing left", func(tb testing.TB) {
			c := holdtest.NewClient(tb, nil)
			if err := newLock(tb, c, nil).Do(context.Background(), nothing); err != nil {
				tb.Errorf("Do: %v", err)
			}
		}, ""},
		{"a lease", func(tb testing.TB) {
			_, _ = newLock(tb, holdtest.NewClient(tb, nil), nil).For("7").TryAcquire(context.Background())
		}, `lock "job/7" (token`},
		{"a lost lease", func(tb testing.TB) {
			c := holdtest.NewClient(tb, nil)
			_, _ = newLock(tb, c, nil).TryAcquire(context.Background())
			c.Lose("job", "", holdlock.LossMaxHold)
		}, `lock "job" (token`},
		{"work whose lease is gone", func(tb testing.TB) {
			c := holdtest.NewClient(tb, nil)
			go newLock(tb, c, nil).Do(context.Background(), func(context.Context, *holdlock.Lease) error {
				time.Sleep(time.Hour)
				return nil
			})
			c.Lose("job", "", holdlock.LossGone)
		}, "work under Do is still running"},
		{"cooling", func(tb testing.TB) {
			c := holdtest.NewClient(tb, nil)
			_ = newLock(tb, c, &holdlock.LockOptions{MinHold: time.Hour}).Do(context.Background(), nothing)
		}, ""},
		{"an unknown acquire", func(tb testing.TB) {
			c := holdtest.NewClient(tb, nil)
			c.SetStore(holdtest.Mute)
			_, _ = newLock(tb, c, nil).TryAcquire(context.Background())
		}, ""},
		{"another program", func(tb testing.TB) { holdtest.NewClient(tb, nil).HoldByAnother("job", "") }, ""},
		{"shut down by the test", func(tb testing.TB) {
			c := holdtest.NewClient(tb, nil)
			_, _ = newLock(tb, c, nil).TryAcquire(context.Background())
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = c.Shutdown(ctx)
		}, ""},
		{"nothing to lose", func(tb testing.TB) {
			holdtest.NewClient(tb, nil).Lose("job", "", holdlock.LossGone)
		}, `nobody has taken lock "job"`},
		{"nothing to expire", func(tb testing.TB) { holdtest.NewClient(tb, nil).Expire("job", "7") }, `lock "job" key "7"`},
		{"taken before another", func(tb testing.TB) {
			c := holdtest.NewClient(tb, nil)
			c.HoldByAnother("job", "")
			c.HoldByAnother("job", "")
		}, "another program cannot take lock"},
		{"a bad name", func(tb testing.TB) { holdtest.NewClient(tb, nil).HoldByAnother("a/b", "") }, "not allowed"},
		{"bad options", func(tb testing.TB) { holdtest.NewClient(tb, &holdlock.ClientOptions{CallTimeout: -1}) }, "CallTimeout"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				said := verdictOf(t, tt.test)
				if (tt.want == "") != (said == "") || !strings.Contains(said, tt.want) {
					t.Errorf("the test said %q, want %q", said, tt.want)
				}
				time.Sleep(2 * time.Hour) // the work that was left running ends
			})
		})
	}
}

// events collects what an Observer is told.
type events struct {
	mu  sync.Mutex
	all []holdlock.Event
}

func (e *events) Observe(ev holdlock.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, ev)
}

func (e *events) of(kind holdlock.EventKind) []holdlock.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []holdlock.Event
	for _, ev := range e.all {
		if ev.Kind == kind {
			out = append(out, ev)
		}
	}
	return out
}
