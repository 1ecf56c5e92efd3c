package holdlock_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

// R7: the lease is released after the work has returned, however it returns; its error is kept.
func TestR7ReleasedAfterTheWork(t *testing.T) {
	boom := errors.New("boom")
	for name, fn := range map[string]func() error{
		"nil":    func() error { return nil },
		"error":  func() error { return boom },
		"panic":  func() error { panic("boom") },
		"goexit": func() error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, r *rig) {
				l := r.lock(r.client, holdlock.LockOptions{})
				done := make(chan error, 1)
				go func() { // for Goexit
					var err error
					defer func() { done <- err }()
					defer func() {
						if p := recover(); p != nil && p != "boom" {
							t.Errorf("panic is %v", p)
						}
					}()
					err = l.Do(t.Context(), func(context.Context, *holdlock.Lease) error {
						time.Sleep(time.Minute)
						if r.remaining() == 0 {
							t.Error("released before the work has returned")
						}
						return fn()
					})
				}()
				err := <-done
				if name == "error" && err != boom || name == "nil" && err != nil {
					t.Errorf("Do returned %v", err)
				}
				if left := r.remaining(); left != 0 {
					t.Errorf("still taken for %v", left)
				}
			})
		})
	}
}

// The release works although the context of the work has ended.
func TestReleaseAfterCancel(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithCancel(t.Context())
		err := r.lock(r.client, holdlock.LockOptions{TTL: 5 * time.Minute}).Do(ctx, func(ctx context.Context, _ *holdlock.Lease) error {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		})
		if !errors.Is(err, context.Canceled) || errors.Is(err, holdlock.ErrLost) {
			t.Errorf("Do returned %v", err)
		}
		if left := r.remaining(); left != 0 {
			t.Errorf("still taken for %v", left)
		}
	})
}

// R7: a loss does not mask the error of the work, nor the work's error the loss.
func TestR7LossIsJoined(t *testing.T) {
	boom := errors.New("boom")
	virtual(t, func(t *testing.T, r *rig) {
		l := r.lock(r.client, holdlock.LockOptions{TTL: time.Second, MaxHold: 2 * time.Second})
		err := l.Do(t.Context(), func(context.Context, *holdlock.Lease) error {
			time.Sleep(time.Minute)
			return boom
		})
		if !errors.Is(err, boom) || !errors.Is(err, holdlock.ErrLost) {
			t.Errorf("Do returned %v, want both", err)
		}
		err = l.Do(t.Context(), func(ctx context.Context, _ *holdlock.Lease) error {
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if n := strings.Count(err.Error(), "was lost"); n != 1 {
			t.Errorf("the loss is told %d times: %v", n, err)
		}
	})
}

func TestReleaseIsIdempotent(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		l := r.lock(r.client, holdlock.LockOptions{})
		lease, err := l.TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		next, err := r.lock(r.rival, holdlock.LockOptions{}).TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		before := r.remaining()
		for range 3 {
			wantIs(t, "Release", lease.Release(t.Context()), holdlock.ErrReleased)
		}
		wantIs(t, "Err", lease.Err(), holdlock.ErrReleased)
		wantIs(t, "Check", lease.Check(0), holdlock.ErrReleased)
		ctx, cancel := lease.WithContext(t.Context())
		defer cancel()
		if !errors.Is(context.Cause(ctx), holdlock.ErrReleased) {
			t.Errorf("a context of a released lease is alive: %v", context.Cause(ctx))
		}
		if r.remaining() != before {
			t.Error("the rival's term was touched")
		}
		_ = next.Release(t.Context())
	})
}

// R4: a late release does not touch the successor.
func TestR4ReleaseAfterLoss(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		r.drv.renew = func(context.Context, *driver.RenewRequest) (driver.Grant, error) {
			return driver.Grant{}, errors.New("cut")
		}
		lease, err := r.lock(r.client, holdlock.LockOptions{TTL: 300 * time.Millisecond}).TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		next, err := r.lock(r.rival, holdlock.LockOptions{TTL: time.Minute}).Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		before := r.remaining()
		wantIs(t, "Release", lease.Release(t.Context()), holdlock.ErrLost)
		if r.remaining() != before {
			t.Error("the successor's term was touched")
		}
		_ = next.Release(t.Context())
	})
}

// Each lease has one end, so that a gauge of held locks can be kept from events alone.
func TestOneEnd(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		lossy := r.lock(r.client, holdlock.LockOptions{TTL: time.Second, MaxHold: 2 * time.Second})
		for range 3 {
			_ = lossy.Do(t.Context(), func(ctx context.Context, _ *holdlock.Lease) error { <-ctx.Done(); return nil })
		}
		for range 4 {
			_ = lossy.Do(t.Context(), func(context.Context, *holdlock.Lease) error { return nil })
		}
		for kind, want := range map[holdlock.EventKind]int{holdlock.Granted: 7, holdlock.Lost: 3, holdlock.Released: 4} {
			if n := len(r.events.of(kind)); n != want {
				t.Errorf("%d events %q, want %d", n, kind, want)
			}
		}
	})
}

// How long work took that outlived its lease is told when it is over, however it was given back; a lease that was never released tells nothing.
func TestOutlived(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		plain := r.lock(r.client, holdlock.LockOptions{TTL: 10 * time.Second, Renew: holdlock.RenewOff})
		slow := func(context.Context, *holdlock.Lease) error { time.Sleep(time.Minute); return nil }
		wantReason(t, plain.Do(t.Context(), slow), holdlock.LossExpired)
		capped := r.lock(r.client, holdlock.LockOptions{TTL: 10 * time.Second, MaxHold: 20 * time.Second})
		wantReason(t, capped.Do(t.Context(), slow), holdlock.LossMaxHold)
		if err := capped.Do(t.Context(), func(context.Context, *holdlock.Lease) error { return nil }); err != nil {
			t.Error(err)
		}
		out := r.events.of(holdlock.Outlived)
		if len(out) != 2 {
			t.Fatalf("%d events, want 2: %+v", len(out), out)
		}
		for i, reason := range []holdlock.LossReason{holdlock.LossExpired, holdlock.LossMaxHold} {
			if out[i].Reason != reason || out[i].Held != time.Minute {
				t.Errorf("%s after %s, want %s after 1m", out[i].Reason, out[i].Held, reason)
			}
		}
		lease, err := plain.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		<-lease.Done()
		if n := len(r.events.of(holdlock.Outlived)); n != 2 {
			t.Errorf("told %d times, before the work is over", n)
		}
		_ = lease.Release(t.Context())
		_ = lease.Release(t.Context())
		if n := len(r.events.of(holdlock.Outlived)); n != 3 {
			t.Errorf("told %d times after the release, want 3", n)
		}
	})
}

// Whether the work overlapped is decided by trust when it returned, not by when the release arrives.
func TestH21ReleaseArrivesLate(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		r.drv.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
			time.Sleep(3 * time.Second)
			return r.drv.Driver.Release(context.WithoutCancel(ctx), req)
		}
		l := r.lock(r.client, holdlock.LockOptions{TTL: 2 * time.Second})
		err := l.Do(t.Context(), func(context.Context, *holdlock.Lease) error {
			time.Sleep(5 * time.Second)
			return nil
		})
		if err != nil {
			t.Errorf("the work was done in time, but Do returned %v", err)
		}
	})
}

// A release whose reply is lost is tried again; the ErrGone of the second try is our own success.
func TestH21ReleaseReplyLost(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		r.drv.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
			if err := r.drv.Driver.Release(ctx, req); err != nil {
				return err
			}
			return errors.New("connection reset")
		}
		l := r.lock(r.client, holdlock.LockOptions{})
		if err := l.Do(t.Context(), func(context.Context, *holdlock.Lease) error { return nil }); err != nil {
			t.Errorf("Do returned %v: the work is done and must not be repeated", err)
		}
		lease, err := l.TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		wantIs(t, "Release", lease.Release(t.Context()), holdlock.ErrUnknown)
		time.Sleep(time.Second)
		for _, e := range r.events.of(holdlock.Lost) {
			t.Errorf("told as lost: %v", e.Err)
		}
	})
}

// A release that fails is tried again until the term has ended.
func TestReleaseIsRetried(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		start := time.Now()
		r.drv.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
			if time.Since(start) < 5*time.Second {
				return errors.New("connection refused")
			}
			return r.drv.Driver.Release(ctx, req)
		}
		l := r.lock(r.client, holdlock.LockOptions{TTL: time.Hour})
		if err := l.Do(t.Context(), func(context.Context, *holdlock.Lease) error { return nil }); err != nil {
			t.Error(err)
		}
		if r.remaining() == 0 {
			t.Error("released although the store refused")
		}
		time.Sleep(6 * time.Second)
		if left := r.remaining(); left != 0 {
			t.Errorf("still taken for %v a second after the store is back", left)
		}
	})
}

// The store gave the key away while our trust lasted: that is a loss, even if the work noticed nothing.
func TestReleaseFindsItGone(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		r.drv.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
			g, err := r.drv.Driver.Acquire(ctx, req)
			_ = r.drv.Driver.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref}) // the store forgets
			return g, err
		}
		err := r.lock(r.client, holdlock.LockOptions{}).Do(t.Context(), func(context.Context, *holdlock.Lease) error { return nil })
		wantReason(t, err, holdlock.LossGone)
	})
}

func TestCheckNeed(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		lease, err := r.lock(r.client, holdlock.LockOptions{TTL: 10 * time.Second, Renew: holdlock.RenewOff}).TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Check(9*time.Second - 100*time.Millisecond); err != nil { // the boot clock is a real one
			t.Error(err)
		}
		err = lease.Check(9*time.Second + 1)
		wantIs(t, "Check", err, holdlock.ErrShort)
		if !strings.Contains(err.Error(), `"job"`) {
			t.Errorf("message %q does not name the lock", err)
		}
		time.Sleep(8 * time.Second)
		wantIs(t, "Check", lease.Check(2*time.Second), holdlock.ErrShort)
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// Shutdown waits for work, ends waits, refuses new work, and leaves nothing.
func TestShutdown(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		l := r.lock(r.client, holdlock.LockOptions{TTL: 3 * time.Second})
		worked := make(chan error, 1)
		go func() {
			worked <- l.Do(t.Context(), func(ctx context.Context, _ *holdlock.Lease) error {
				time.Sleep(10 * time.Second)
				return ctx.Err()
			})
		}()
		waited := make(chan error, 1)
		go func() {
			time.Sleep(time.Second)
			_, err := l.Acquire(t.Context())
			waited <- err
		}()
		time.Sleep(2 * time.Second)
		down := make(chan error, 1)
		start := time.Now()
		go func() { down <- r.client.Shutdown(t.Context()) }()
		if err := <-waited; !errors.Is(err, holdlock.ErrShutdown) || time.Since(start) != 0 {
			t.Errorf("the wait ended after %v with %v", time.Since(start), err)
		}
		if _, err := l.TryAcquire(t.Context()); !errors.Is(err, holdlock.ErrShutdown) {
			t.Errorf("TryAcquire after Shutdown: %v", err)
		}
		wantIs(t, "Do", l.Do(t.Context(), nil), holdlock.ErrShutdown)
		wantIs(t, "Usable", l.Usable(), holdlock.ErrShutdown)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for _, mode := range []holdlock.Mode{holdlock.Enforce, holdlock.Shadow} {
			l := r.lock(r.client, holdlock.LockOptions{Mode: mode, DoubleRun: holdlock.Costly})
			_, err := l.TryAcquire(gone)
			wantIs(t, "TryAcquire after Shutdown by one who is gone", err, holdlock.ErrShutdown)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("TryAcquire after Shutdown by one who is gone: %v", err)
			}
		}
		if err := <-down; err != nil || time.Since(start) != 8*time.Second {
			t.Errorf("Shutdown returned %v after %v, want when the work is done", err, time.Since(start))
		}
		if err := <-worked; err != nil {
			t.Errorf("the work: %v", err)
		}
		if left := r.remaining(); left != 0 {
			t.Errorf("still taken for %v", left)
		}
		wantIs(t, "Shutdown", r.client.Shutdown(t.Context()), holdlock.ErrShutdown)
	})
}

// Shutdown with too little patience ends the leases, and does not free keys under work that still runs.
func TestShutdownForced(t *testing.T) {
	const ttl = 3 * time.Second
	virtual(t, func(t *testing.T, r *rig) {
		lease, err := r.lock(r.client, holdlock.LockOptions{TTL: ttl}).TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err = r.client.Shutdown(ctx)
		if err == nil || !strings.Contains(err.Error(), "leases still held: 1") || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Shutdown returned %v", err)
		}
		wantReason(t, lease.Err(), holdlock.LossShutdown)
		if r.remaining() == 0 {
			t.Error("the key was freed at once, under work that may still run")
		}
		time.Sleep(ttl)
		if left := r.remaining(); left != 0 {
			t.Errorf("still taken for %v after a TTL", left)
		}
		wantIs(t, "Release", lease.Release(t.Context()), holdlock.ErrLost)
	})
}
