package holdlock_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/memhold"
)

// slowWatch is a store that takes its time to begin a watch.
type slowWatch struct {
	driver.Driver
	takes   time.Duration
	begun   atomic.Int32
	stopped atomic.Int32
}

func (s *slowWatch) Unwrap() driver.Driver { return s.Driver }

func (s *slowWatch) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	select {
	case <-time.After(s.takes):
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	hints, stop, err := s.Driver.(driver.Waiter).Watch(ctx, key)
	s.begun.Add(1)
	return hints, func() { s.stopped.Add(1); stop() }, err
}

// A waiter goes on trying while its watch is being made, and is woken by it as soon as it has begun.
func TestWaitingDoesNotDependOnTheWatch(t *testing.T) {
	for _, tc := range []struct {
		name         string
		takes, after time.Duration // to begin a watch, and until the holder releases
		within       time.Duration
		begun        int32
	}{
		{"hangs", time.Hour, 2 * time.Second, time.Second, 0},
		{"hangs, an early release", time.Hour, 20 * time.Millisecond, 50 * time.Millisecond, 0},
		{"hangs, a late release", time.Hour, time.Minute, time.Second, 0},
		{"is slow", 3 * time.Second, 3*time.Second + time.Millisecond, 0, 1},
		{"released meanwhile", 3 * time.Second, 3*time.Second - time.Nanosecond, time.Nanosecond, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			virtual(t, func(t *testing.T, r *rig) {
				store := memhold.NewStore()
				d := &slowWatch{Driver: memhold.NewDriver(&memhold.Options{Store: store}), takes: tc.takes}
				c, err := holdlock.NewClient(d, nil)
				if err != nil {
					t.Fatal(err)
				}
				rival, err := holdlock.NewClient(memhold.NewDriver(&memhold.Options{Store: store}), nil)
				if err != nil {
					t.Fatal(err)
				}
				held, err := r.lock(rival, holdlock.LockOptions{}).TryAcquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				free := time.Now().Add(tc.after)
				time.AfterFunc(tc.after, func() { _ = held.Release(t.Context()) })
				lease, err := r.lock(c, holdlock.LockOptions{}).Acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if late := time.Since(free); late > tc.within {
					t.Errorf("granted %v after the release, want %v at most", late, tc.within)
				}
				ended := time.Now()
				_ = lease.Release(t.Context())
				if err := c.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
				if took := time.Since(ended); took > 100*time.Millisecond {
					t.Errorf("the program ended %v later", took)
				}
				if begun, stopped := d.begun.Load(), d.stopped.Load(); begun != tc.begun || stopped != begun {
					t.Errorf("%d watches have begun and %d were stopped, want %d", begun, stopped, tc.begun)
				}
				_ = rival.Shutdown(t.Context())
			})
		})
	}
}
