package holdlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/memhold"
)

// inShadow are the settings of a lock that watches only.
var inShadow = holdlock.LockOptions{Mode: holdlock.Shadow, DoubleRun: holdlock.Costly, TTL: 30 * time.Second}

// wantEvents compares how often each kind was told.
func (r *rig) wantEvents(want map[holdlock.EventKind]int) {
	r.t.Helper()
	synctest.Wait()
	for _, kind := range []holdlock.EventKind{
		holdlock.Granted, holdlock.Overlapped, holdlock.Unseen, holdlock.Skipped, holdlock.Failed, holdlock.Released, holdlock.Lost,
	} {
		if got := r.events.of(kind); len(got) != want[kind] {
			r.t.Errorf("%d events %q, want %d: %+v", len(got), kind, want[kind], got)
		}
	}
}

// A run in shadow mode begins at once beside somebody else's, whatever it is told about waiting; an enforced one does not.
func TestShadowOverlaps(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		opts := inShadow
		opts.Wait = holdlock.Forever
		l, began := r.lock(r.client, opts), time.Now()
		theirs, err := r.lock(r.rival, holdlock.LockOptions{}).TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ran := false
		if err := l.Do(t.Context(), func(ctx context.Context, lease *holdlock.Lease) error {
			ran = true
			synctest.Wait()
			if lease.Token() != 0 || lease.Check(time.Hour) != nil || ctx.Err() != nil {
				t.Errorf("token %d, check %v, context %v", lease.Token(), lease.Check(time.Hour), ctx.Err())
			}
			return nil
		}); err != nil || !ran {
			t.Errorf("Do: ran is %v, %v", ran, err)
		}
		lease, err := l.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		wantIs(t, "second release", lease.Release(t.Context()), holdlock.ErrReleased)
		if took := time.Since(began); took != 0 {
			t.Errorf("it took %s, as if there were something to wait for", took)
		}
		r.wantEvents(map[holdlock.EventKind]int{holdlock.Overlapped: 2})
		if e := r.events.of(holdlock.Overlapped)[0]; e.Token != theirs.Token() || e.Holder == nil || e.Holder.Label != "rival" || !e.Contended {
			t.Errorf("event %+v", e)
		}
		_, err = r.lock(r.client, holdlock.LockOptions{}).TryAcquire(t.Context())
		wantIs(t, "control: an enforced lock", err, holdlock.ErrHeld)
		_ = theirs.Release(t.Context())
	})
}

// A run in shadow mode that meets nobody keeps the term as long as it takes, so that others can meet it, and gives it back.
func TestShadowHolds(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		l, theirs := r.lock(r.client, inShadow), r.lock(r.rival, holdlock.LockOptions{})
		_ = l.Do(t.Context(), func(ctx context.Context, _ *holdlock.Lease) error {
			time.Sleep(10 * time.Minute) // of a TTL of 30 s
			_, err := theirs.TryAcquire(t.Context())
			wantIs(t, "an enforced lock meets it", err, holdlock.ErrHeld)
			_ = l.Do(ctx, func(context.Context, *holdlock.Lease) error {
				synctest.Wait() // until it has met the other
				return nil
			})
			return nil
		})
		r.wantEvents(map[holdlock.EventKind]int{holdlock.Granted: 1, holdlock.Overlapped: 1, holdlock.Released: 1})
		if left := r.remaining(); left != 0 {
			t.Errorf("the key stays taken for %s", left)
		}
		_ = l.Do(t.Context(), func(context.Context, *holdlock.Lease) error { return nil }) // over before the store has answered
		r.wantEvents(map[holdlock.EventKind]int{holdlock.Granted: 2, holdlock.Overlapped: 1, holdlock.Released: 2})
	})
}

// A run that comes too soon after a short one is one that MinHold would have prevented.
func TestShadowMinHold(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		opts := inShadow
		opts.MinHold = time.Minute
		l := r.lock(r.client, opts)
		for range 2 {
			_ = l.Do(t.Context(), func(context.Context, *holdlock.Lease) error { return nil })
			time.Sleep(time.Second)
		}
		r.wantEvents(map[holdlock.EventKind]int{holdlock.Granted: 1, holdlock.Overlapped: 1, holdlock.Released: 1})
	})
}

// A store that fails or hangs delays nobody and is no overlap.
func TestShadowStoreFails(t *testing.T) {
	for name, acquire := range map[string]func(context.Context, *driver.AcquireRequest) (driver.Grant, error){
		"fails": func(context.Context, *driver.AcquireRequest) (driver.Grant, error) {
			return driver.Grant{}, errors.New("connection refused")
		},
		"hangs": func(ctx context.Context, _ *driver.AcquireRequest) (driver.Grant, error) {
			<-ctx.Done()
			return driver.Grant{}, ctx.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, r *rig) {
				r.drv.acquire = acquire
				began := time.Now()
				if err := r.lock(r.client, inShadow).Do(t.Context(), func(context.Context, *holdlock.Lease) error { return nil }); err != nil {
					t.Error(err)
				}
				if took := time.Since(began); took != 0 {
					t.Errorf("the store delayed the work by %s", took)
				}
				time.Sleep(time.Minute)
				r.wantEvents(map[holdlock.EventKind]int{holdlock.Unseen: 1})
			})
		})
	}
}

// Whatever happens to the term, the work goes on.
func TestShadowLoses(t *testing.T) {
	for name, c := range map[string]struct {
		opts   holdlock.LockOptions
		renew  error
		reason holdlock.LossReason
	}{
		"gone":        {inShadow, driver.ErrGone, holdlock.LossGone},
		"unreachable": {inShadow, driver.ErrNotApplied, holdlock.LossUnreachable},
		"max hold":    {holdlock.LockOptions{Mode: holdlock.Shadow, DoubleRun: holdlock.Harmless, TTL: time.Minute, MaxHold: time.Minute}, nil, holdlock.LossMaxHold},
		"expired":     {holdlock.LockOptions{Mode: holdlock.Shadow, DoubleRun: holdlock.Harmless, TTL: time.Minute, Renew: holdlock.RenewOff}, nil, holdlock.LossExpired},
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T, r *rig) {
				if c.renew != nil {
					r.drv.renew = func(context.Context, *driver.RenewRequest) (driver.Grant, error) { return driver.Grant{}, c.renew }
				}
				if err := r.lock(r.client, c.opts).Do(t.Context(), func(ctx context.Context, lease *holdlock.Lease) error {
					time.Sleep(time.Hour)
					if ctx.Err() != nil || lease.Err() != nil || lease.Check(time.Minute) != nil {
						t.Errorf("the work was told to end: %v, %v, %v", context.Cause(ctx), lease.Err(), lease.Check(time.Minute))
					}
					return nil
				}); err != nil {
					t.Error(err)
				}
				lost := r.events.of(holdlock.Lost)
				if len(lost) != 1 || lost[0].Reason != c.reason {
					t.Errorf("lost: %+v, want %s", lost, c.reason)
				}
			})
		})
	}
}

// A client that shuts down does not wait longer than it is told to, and leaves nothing behind.
func TestShadowShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, err := memhold.Open(nil)
		if err != nil {
			t.Fatal(err)
		}
		l, err := c.NewLock("job", &inShadow)
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error)
		go func() {
			done <- l.Do(t.Context(), func(context.Context, *holdlock.Lease) error {
				time.Sleep(time.Hour)
				return nil
			})
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Shutdown(ctx); err == nil || !strings.Contains(err.Error(), "still held: 1") {
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-done; err != nil { // the work was not disturbed
			t.Error(err)
		}
		wantIs(t, "after it", l.Do(t.Context(), nil), holdlock.ErrShutdown)
	})
}

func TestShadowRefused(t *testing.T) {
	c, err := memhold.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Shutdown(t.Context())
	for _, o := range []struct {
		holdlock.LockOptions
		want string
	}{
		{holdlock.LockOptions{DoubleRun: holdlock.Harmful}, "harmful"},
		{holdlock.LockOptions{DoubleRun: holdlock.Harmful, AcceptRisk: "we refund"}, "harmful"},
		{holdlock.LockOptions{}, "declare first"},
		{holdlock.LockOptions{DoubleRun: holdlock.Costly, Guard: holdlock.Fenced}, "fence"},
	} {
		o.Mode = holdlock.Shadow
		_, err := c.NewLock("job", &o.LockOptions)
		if wantIs(t, "NewLock", err, holdlock.ErrInvalid); err != nil && !strings.Contains(err.Error(), o.want) {
			t.Errorf("%v does not say %q", err, o.want)
		}
	}
	if _, err = c.NewLock("job", &holdlock.LockOptions{Mode: 7}); !errors.Is(err, holdlock.ErrInvalid) {
		t.Errorf("an unknown mode: %v", err)
	}
	l, err := c.NewLock("job", &inShadow)
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.InTransaction()
	if wantIs(t, "in a transaction", err, holdlock.ErrInvalid); err != nil && !strings.Contains(err.Error(), "Do") {
		t.Error(err)
	}
	_, err = l.For("1").Claim(t.Context(), driver.Claim{Keep: time.Hour}, 0)
	if wantIs(t, "a job that runs once", err, holdlock.ErrInvalid); err != nil && !strings.Contains(err.Error(), `"job" key "1"`) {
		t.Error(err)
	}
}
