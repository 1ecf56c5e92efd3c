package holdlock_test

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

// R2: a lease is renewed as long as its work runs, and its key is free at once afterwards.
func TestR2RenewedWhileWorking(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		l := r.lock(r.client, holdlock.LockOptions{TTL: 3 * time.Second})
		err := l.Do(t.Context(), func(ctx context.Context, lease *holdlock.Lease) error {
			for range 100 {
				time.Sleep(time.Second)
				if left := r.remaining(); left < 1900*time.Millisecond {
					t.Errorf("%v left in the store, want a renewal every TTL/3", left)
				}
				if err := lease.Check(time.Second); err != nil {
					t.Error(err)
				}
			}
			return ctx.Err()
		})
		if err != nil {
			t.Error(err)
		}
		if left := r.remaining(); left != 0 {
			t.Errorf("the key is taken for %v after Do", left)
		}
		if n := len(r.events.of(holdlock.Renewed)); n < 90 || n > 110 {
			t.Errorf("%d renewals in 100 s with a TTL of 3 s, want about 100", n)
		}
	})
}

// R2: when the store stops answering, in whatever way, the work's context ends a margin before the store can give the key
// to anyone else.
func TestR2EndsBeforeTheKeyPasses(t *testing.T) {
	const ttl = 3 * time.Second
	down := errors.New("down")
	hang := make(chan struct{})
	for name, renew := range map[string]func(context.Context, *driver.RenewRequest) (driver.Grant, error){
		"refused": func(context.Context, *driver.RenewRequest) (driver.Grant, error) { return driver.Grant{}, down },
		"hangs to ctx": func(ctx context.Context, _ *driver.RenewRequest) (driver.Grant, error) {
			<-ctx.Done()
			return driver.Grant{}, ctx.Err()
		},
		"hangs for ever": func(context.Context, *driver.RenewRequest) (driver.Grant, error) {
			time.Sleep(time.Hour)
			return driver.Grant{}, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, r *rig) {
				r.drv.renew = renew
				l := r.lock(r.client, holdlock.LockOptions{TTL: ttl})
				err := l.Do(t.Context(), func(ctx context.Context, lease *holdlock.Lease) error {
					<-ctx.Done()
					if left := r.remaining(); left < holdlock.Margin(ttl)-time.Millisecond {
						t.Errorf("the work was told %v before the key can pass, want a margin of %v", left, holdlock.Margin(ttl))
					}
					wantReason(t, context.Cause(ctx), holdlock.LossUnreachable)
					wantIs(t, "Check", lease.Check(0), holdlock.ErrLost)
					return nil
				})
				wantReason(t, err, holdlock.LossUnreachable)
				time.Sleep(2 * time.Hour) // the hanging call returns
			})
		})
	}
	close(hang)
}

// R2: failed renewals are retried within the trust that is left; one success is enough.
func TestR2RetriesWithinTrust(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		start := time.Now()
		r.drv.renew = func(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
			if at := time.Since(start); at > 3*time.Second && at < 8*time.Second {
				return driver.Grant{}, errors.New("connection refused")
			}
			return r.drv.Driver.Renew(ctx, req)
		}
		l := r.lock(r.client, holdlock.LockOptions{TTL: 10 * time.Second})
		err := l.Do(t.Context(), func(ctx context.Context, _ *holdlock.Lease) error {
			select {
			case <-ctx.Done():
			case <-time.After(time.Minute):
			}
			return context.Cause(ctx)
		})
		if err != nil {
			t.Errorf("5 s of failures with a TTL of 10 s lost the lease: %v", err)
		}
	})
}

// R2: trust counts from the sending of the request, not from its reply; the deadline is never later than the store's.
// The twin that counts from the reply would fail this test by the delay.
func TestR2TrustCountsFromSending(t *testing.T) {
	const ttl, delay = 3 * time.Second, 600 * time.Millisecond
	virtual(t, func(t *testing.T, r *rig) {
		slow := func() { time.Sleep(delay) }
		r.drv.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
			defer slow()
			return r.drv.Driver.Acquire(ctx, req)
		}
		r.drv.renew = func(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
			defer slow()
			return r.drv.Driver.Renew(ctx, req)
		}
		lease, err := r.lock(r.client, holdlock.LockOptions{TTL: ttl}).TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		fromReply := false
		for range 50 {
			trusted, kept := time.Until(lease.Deadline()), r.remaining()
			if trusted > kept-holdlock.Margin(ttl)+time.Millisecond {
				t.Errorf("trusted for %v, the store keeps the key for %v", trusted, kept)
			}
			if trusted+delay > kept-holdlock.Margin(ttl)+time.Millisecond {
				fromReply = true // counting from the reply would have been caught here
			}
			time.Sleep(100 * time.Millisecond)
		}
		if !fromReply {
			t.Error("this test cannot tell sending from reply")
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// R2: a renewal that succeeds after trust has ended does not revive the lease.
func TestR2LateSuccessDoesNotRevive(t *testing.T) {
	const ttl = 3 * time.Second
	virtual(t, func(t *testing.T, r *rig) {
		r.drv.renew = func(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
			g, err := r.drv.Driver.Renew(context.WithoutCancel(ctx), req)
			time.Sleep(ttl) // the store has confirmed it; we hear of it much later
			return g, err
		}
		lease, err := r.lock(r.client, holdlock.LockOptions{TTL: ttl}).TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		<-lease.Done()
		time.Sleep(10 * ttl)
		wantReason(t, lease.Err(), holdlock.LossUnreachable)
		wantIs(t, "Check", lease.Check(0), holdlock.ErrLost)
		wantIs(t, "Release", lease.Release(t.Context()), holdlock.ErrLost)
	})
}

// R2: the boot clock jumps (the machine was suspended). Check refuses in the next instruction, the context ends at
// the next tick, which is at most half a margin away.
func TestR2Suspend(t *testing.T) {
	const ttl = 10 * time.Second
	virtual(t, func(t *testing.T, r *rig) {
		start := time.Now()
		var suspended atomic.Int64
		holdlock.SetBootClock(r.client, func() time.Duration { return time.Since(start) + time.Duration(suspended.Load()) })
		lease, err := r.lock(r.client, holdlock.LockOptions{TTL: ttl}).TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := lease.WithContext(t.Context())
		defer cancel()
		time.Sleep(time.Second + time.Millisecond)
		if err := lease.Check(time.Second); err != nil {
			t.Fatal(err)
		}
		suspended.Store(int64(time.Hour))
		woke := time.Now()
		wantReason(t, lease.Check(0), holdlock.LossPaused)
		<-ctx.Done()
		if d := time.Since(woke); d > holdlock.Margin(ttl)/2 {
			t.Errorf("the context ended %v after the machine woke up, want at most %v", d, holdlock.Margin(ttl)/2)
		}
		wantReason(t, context.Cause(ctx), holdlock.LossPaused)
		wantIs(t, "Release", lease.Release(t.Context()), holdlock.ErrLost)
	})
}

// A suspend that is shorter than the trust left does not end the lease; it is renewed at once.
func TestR2ShortSuspend(t *testing.T) {
	const ttl = 10 * time.Second
	virtual(t, func(t *testing.T, r *rig) {
		start := time.Now()
		var suspended atomic.Int64
		holdlock.SetBootClock(r.client, func() time.Duration { return time.Since(start) + time.Duration(suspended.Load()) })
		lease, err := r.lock(r.client, holdlock.LockOptions{TTL: ttl}).TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		suspended.Store(int64(5 * time.Second))
		if d := time.Until(lease.Deadline()); d != 4*time.Second {
			t.Errorf("deadline in %v after a suspend of 5 s, want 4 s", d)
		}
		time.Sleep(4 * time.Second)
		if err := lease.Check(5 * time.Second); err != nil {
			t.Error(err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// At MaxHold the context ends, renewal stops, and the key passes within a TTL even if the work goes on.
func TestMaxHold(t *testing.T) {
	const ttl = 2 * time.Second
	virtual(t, func(t *testing.T, r *rig) {
		l := r.lock(r.client, holdlock.LockOptions{TTL: ttl, MaxHold: 5 * time.Second})
		start := time.Now()
		err := l.Do(t.Context(), func(ctx context.Context, _ *holdlock.Lease) error {
			<-ctx.Done()
			if d := time.Since(start); d < 5*time.Second || d > 5*time.Second+10*time.Millisecond {
				t.Errorf("the context ended after %v, want 5 s", d)
			}
			wantReason(t, context.Cause(ctx), holdlock.LossMaxHold)
			time.Sleep(ttl) // the work does not listen
			if left := r.remaining(); left != 0 {
				t.Errorf("the key is still taken for %v, a TTL after MaxHold", left)
			}
			return nil
		})
		wantReason(t, err, holdlock.LossMaxHold)
	})
}

// RenewOff is the plain expiry.
func TestRenewOff(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		l := r.lock(r.client, holdlock.LockOptions{TTL: 10 * time.Second, Renew: holdlock.RenewOff})
		err := l.Do(t.Context(), func(ctx context.Context, _ *holdlock.Lease) error {
			<-ctx.Done()
			if left := r.remaining(); left != time.Second {
				t.Errorf("told %v before the key passes, want the margin of 1 s", left)
			}
			return nil
		})
		wantReason(t, err, holdlock.LossExpired)
		if n := len(r.events.of(holdlock.Renewed)); n != 0 {
			t.Errorf("%d renewals", n)
		}
		if err := l.Do(t.Context(), func(context.Context, *holdlock.Lease) error { return nil }); err != nil {
			t.Errorf("a run within the TTL: %v", err)
		}
	})
}

// The store no longer knows the term: the holder is told at the next renewal, and nothing is created anew (R4).
func TestGone(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		r.drv.renew = func(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
			if err := r.drv.Driver.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref}); err != nil { // DEL by hand
				t.Error(err)
			}
			return r.drv.Driver.Renew(ctx, req)
		}
		l := r.lock(r.client, holdlock.LockOptions{TTL: 3 * time.Second})
		err := l.Do(t.Context(), func(ctx context.Context, _ *holdlock.Lease) error {
			start := time.Now()
			<-ctx.Done()
			if d := time.Since(start); d > time.Second {
				t.Errorf("told after %v, want at the next renewal", d)
			}
			return nil
		})
		wantReason(t, err, holdlock.LossGone)
		if left := r.remaining(); left != 0 {
			t.Errorf("the key is taken for %v", left)
		}
	})
}

// Break without Now tells the holder and lets the term run out, so that nobody overlaps.
func TestBreak(t *testing.T) {
	const ttl = 3 * time.Second
	virtual(t, func(t *testing.T, r *rig) {
		ours, theirs := r.lock(r.client, holdlock.LockOptions{TTL: ttl}), r.lock(r.rival, holdlock.LockOptions{TTL: ttl})
		lease, err := ours.TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		wantStale := r.client.Break(t.Context(), "job", "", lease.Token()+1, holdlock.BreakOptions{By: "op: wrong token"})
		if !errors.Is(wantStale, holdlock.ErrStaleToken) {
			t.Errorf("breaking another token: %v", wantStale)
		}
		if err := r.rival.Break(t.Context(), "job", "", lease.Token(), holdlock.BreakOptions{By: "op: stuck"}); err != nil {
			t.Fatal(err)
		}
		if _, err := theirs.TryAcquire(t.Context()); !errors.Is(err, holdlock.ErrHeld) {
			t.Errorf("the key passed at once: %v", err)
		}
		next, err := theirs.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		wantReason(t, lease.Err(), holdlock.LossBroken)
		if next.Token() <= lease.Token() {
			t.Errorf("token %d after %d", next.Token(), lease.Token())
		}
		if err := next.Release(t.Context()); err != nil {
			t.Error(err)
		}
		wantIs(t, "Release", lease.Release(t.Context()), holdlock.ErrLost)
	})
}

// A holder that died cannot report its own lapse; its successor does.
func TestSuccessorReportsLapse(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		r.drv.renew = func(context.Context, *driver.RenewRequest) (driver.Grant, error) {
			return driver.Grant{}, errors.New("cut")
		}
		r.drv.release = func(context.Context, *driver.ReleaseRequest) error { return errors.New("cut") }
		dead, err := r.lock(r.client, holdlock.LockOptions{TTL: time.Second}).TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if n := len(r.events.of(holdlock.Lapsed)); n != 0 {
			t.Errorf("%d lapses before anyone could know", n)
		}
		l := r.lock(r.client, holdlock.LockOptions{TTL: time.Second})
		r.drv.release = nil
		if err := l.Do(t.Context(), func(context.Context, *holdlock.Lease) error { return nil }); err != nil {
			t.Fatal(err)
		}
		lapses := r.events.of(holdlock.Lapsed)
		if len(lapses) != 1 || lapses[0].Prior == nil || lapses[0].Prior.Token != dead.Token() ||
			lapses[0].Prior.Holder.Label != "ours" {
			t.Errorf("lapses = %+v, want one that names token %d", lapses, dead.Token())
		}
		if err := l.Do(t.Context(), func(context.Context, *holdlock.Lease) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if n := len(r.events.of(holdlock.Lapsed)); n != 1 {
			t.Errorf("a clean release counted as a lapse: %d", n)
		}
		_ = dead.Release(t.Context())
	})
}

// One client renews 10,000 leases with a handful of goroutines and at most 2 KB each.
func TestManyLeases(t *testing.T) {
	const n, ttl = 10_000, 30 * time.Second
	virtual(t, func(t *testing.T, r *rig) {
		l := r.lock(r.client, holdlock.LockOptions{TTL: ttl})
		leases := make([]*holdlock.Lease, n)
		for i := range leases { // the store's own records come first, so that they are not counted
			lease, err := l.For(string(rune('a'+i%26)) + time.Duration(i).String()).TryAcquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			leases[i] = lease
		}
		before := runtime.NumGoroutine()
		time.Sleep(10 * ttl)
		if grown := runtime.NumGoroutine() - before; grown > 12 {
			t.Errorf("%d goroutines more while renewing", grown)
		}
		for _, lease := range leases {
			if err := lease.Check(ttl / 2); err != nil {
				t.Fatal(err)
			}
		}
		if got := len(r.events.of(holdlock.Renewed)); got < 25*n {
			t.Errorf("%d renewals in 10 TTLs of %d leases", got, n)
		}
		for _, lease := range leases {
			if err := lease.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	})
}
