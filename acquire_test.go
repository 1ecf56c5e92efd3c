package holdlock_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/memhold"
)

func TestHeldNamesTheHolder(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		rival := r.lock(r.rival, holdlock.LockOptions{TTL: 30 * time.Second, Purpose: "writes the report"})
		lease, err := rival.TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second)
		ran := false
		err = r.lock(r.client, holdlock.LockOptions{}).Do(t.Context(), func(context.Context, *holdlock.Lease) error {
			ran = true
			return nil
		})
		wantIs(t, "Do", err, holdlock.ErrHeld)
		if ran {
			t.Error("the work was run")
		}
		var held *holdlock.HeldError
		if !errors.As(err, &held) {
			t.Fatal(err)
		}
		if held.Holder.Label != "rival" || held.Holder.Purpose != "writes the report" || held.Token != lease.Token() ||
			held.FreeIn != 25*time.Second || time.Since(held.Since) != 5*time.Second {
			t.Errorf("held = %+v", held)
		}
		for _, want := range []string{`"job"`, "rival, pid ", "since 2000-01-01 ", "free in 25s", "store memory"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("message %q does not say %q", err, want)
			}
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if got := r.events.of(holdlock.Skipped); len(got) != 1 || got[0].Holder == nil || got[0].Holder.Label != "rival" {
			t.Errorf("skips = %+v", got)
		}
	})
}

// A cancelled context sends nothing; a context bounds the wait and says so.
func TestContextBoundsTheWait(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		lease, err := r.lock(r.rival, holdlock.LockOptions{}).TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		l := r.lock(r.client, holdlock.LockOptions{})
		dead, cancel := context.WithCancel(t.Context())
		cancel()
		for name, acquire := range map[string]func(context.Context) (*holdlock.Lease, error){
			"Acquire": l.Acquire, "TryAcquire": l.TryAcquire,
		} {
			if _, err := acquire(dead); !errors.Is(err, context.Canceled) || errors.Is(err, holdlock.ErrHeld) {
				t.Errorf("%s with a dead context: %v", name, err)
			}
		}
		if n := r.drv.calls.Load(); n != 0 {
			t.Errorf("%d calls of the store for a dead context", n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err = l.Acquire(ctx)
		if d := time.Since(start); d != 300*time.Millisecond {
			t.Errorf("returned after %v, want 300 ms", d)
		}
		wantIs(t, "Acquire", err, holdlock.ErrHeld)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "rival") {
			t.Errorf("error %q does not say both who holds it and that the wait ended", err)
		}
		waits := r.lock(r.client, holdlock.LockOptions{Wait: 2 * time.Second})
		start = time.Now()
		err = waits.Do(t.Context(), nil)
		if d := time.Since(start); d != 2*time.Second {
			t.Errorf("Do waited %v, want 2 s", d)
		}
		wantIs(t, "Do", err, holdlock.ErrHeld)
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// The lease does not end with the context of the acquire.
func TestAcquireContextIsNotTheLeases(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		lease, err := r.lock(r.client, holdlock.LockOptions{TTL: 2 * time.Second}).Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		time.Sleep(time.Minute)
		if err := lease.Check(time.Second); err != nil {
			t.Error(err)
		}
		if err := lease.Release(ctx); err != nil {
			t.Errorf("Release with a dead context: %v", err)
		}
		if r.remaining() != 0 {
			t.Error("still taken")
		}
	})
}

// R6: a waiter is woken by the release, not by its poll; and when the holder dies, by the end of the term.
func TestR6Waiting(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		theirs, ours := r.lock(r.rival, holdlock.LockOptions{TTL: 10 * time.Second}), r.lock(r.client, holdlock.LockOptions{})
		lease, err := theirs.TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		released := make(chan time.Time, 1)
		go func() {
			time.Sleep(100*time.Second + 123*time.Microsecond)
			released <- time.Now()
			if err := lease.Release(t.Context()); err != nil {
				t.Error(err)
			}
		}()
		next, err := ours.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(<-released); d != 0 {
			t.Errorf("woken %v after the release", d)
		}
		if n := r.drv.calls.Load(); n > 60 {
			t.Errorf("%d calls while waiting for 100 s, want a slow poll", n)
		}
		_ = next.Release(t.Context())
	})
}

// R6: no busy loop on store errors, and a wait outlives them.
func TestR6StoreErrorsWhileWaiting(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		lease, err := r.lock(r.rival, holdlock.LockOptions{}).TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		r.drv.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
			if at := time.Since(start); at > time.Second && at < time.Minute {
				return driver.Grant{}, errors.New("connection refused")
			}
			return r.drv.Driver.Acquire(ctx, req)
		}
		time.AfterFunc(30*time.Second, func() { _ = lease.Release(t.Context()) })
		next, err := r.lock(r.client, holdlock.LockOptions{}).Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d < time.Minute || d > 62*time.Second {
			t.Errorf("granted after %v, want soon after the store is back", d)
		}
		if n := r.drv.calls.Load(); n > 150 {
			t.Errorf("%d calls in a minute of failures", n)
		}
		_ = next.Release(t.Context())
	})
}

// A try that the end of the wait has cut short says nothing about the store: the answer is who holds the lock. One that had gone
// without an answer for long does.
func TestWaitEndsDuringATry(t *testing.T) {
	for wait, answers := range map[time.Duration]bool{500 * time.Millisecond: true, 2500 * time.Millisecond: false} {
		t.Run(wait.String(), func(t *testing.T) {
			virtual(t, func(t *testing.T, r *rig) {
				lease, err := r.lock(r.rival, holdlock.LockOptions{TTL: time.Second}).TryAcquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				first := true
				r.drv.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
					if first {
						first = false
						return r.drv.Driver.Acquire(ctx, req)
					}
					<-ctx.Done()
					return driver.Grant{}, errors.Join(ctx.Err(), driver.ErrNotApplied)
				}
				ctx, cancel := context.WithTimeout(t.Context(), wait)
				defer cancel()
				_, err = r.lock(r.client, holdlock.LockOptions{}).Acquire(ctx)
				want, failed := holdlock.ErrHeld, 0
				if !answers {
					want, failed = holdlock.ErrUnreachable, 1
				}
				wantIs(t, "Acquire", err, want)
				if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "held by") {
					t.Errorf("error %v does not say that the wait ended, and who held the lock", err)
				}
				if n := len(r.events.of(holdlock.Failed)); n != failed {
					t.Errorf("counted as %d failures of the store", n)
				}
				_ = lease.Release(t.Context())
			})
		})
	}
}

// A store that is down at the first attempt is reported at once, not waited for.
func TestStoreDown(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		r.drv.acquire = func(context.Context, *driver.AcquireRequest) (driver.Grant, error) {
			return driver.Grant{}, errors.Join(errors.New("no route"), driver.ErrNotApplied)
		}
		start := time.Now()
		_, err := r.lock(r.client, holdlock.LockOptions{}).Acquire(t.Context())
		wantIs(t, "Acquire", err, holdlock.ErrUnreachable)
		if time.Since(start) != 0 {
			t.Error("waited")
		}
		for _, want := range []string{`"job"`, "no route", "nothing was changed", "store memory"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("message %q does not say %q", err, want)
			}
		}
		if n := len(r.events.of(holdlock.Failed)); n != 1 {
			t.Errorf("%d events Failed, want 1: a run that did not happen because of the store is counted", n)
		}
	})
}

// R5: an acquire whose reply is lost is unknown, not held; what it won is given back.
func TestR5LostReply(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		r.drv.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
			if _, err := r.drv.Driver.Acquire(ctx, req); err != nil {
				t.Error(err)
			}
			return driver.Grant{}, errors.New("connection reset")
		}
		_, err := r.lock(r.client, holdlock.LockOptions{}).TryAcquire(t.Context())
		wantIs(t, "TryAcquire", err, holdlock.ErrUnknown)
		time.Sleep(time.Millisecond)
		if left := r.remaining(); left != 0 {
			t.Errorf("a ghost keeps the key for %v", left)
		}
	})
}

// R5: the undo goes on while the store is down, and stops when the term would have ended.
func TestR5UndoIsRetried(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		start := time.Now()
		r.drv.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
			_, _ = r.drv.Driver.Acquire(ctx, req)
			return driver.Grant{}, errors.New("connection reset")
		}
		r.drv.release = func(ctx context.Context, req *driver.ReleaseRequest) error {
			if time.Since(start) < 10*time.Second {
				return errors.New("connection refused")
			}
			return r.drv.Driver.Release(ctx, req)
		}
		_, err := r.lock(r.client, holdlock.LockOptions{TTL: time.Minute}).TryAcquire(t.Context())
		wantIs(t, "TryAcquire", err, holdlock.ErrUnknown)
		time.Sleep(11 * time.Second)
		if left := r.remaining(); left != 0 {
			t.Errorf("a ghost keeps the key for %v after the store is back", left)
		}
		r.drv.release = func(context.Context, *driver.ReleaseRequest) error { return errors.New("connection refused") }
		_, _ = r.lock(r.client, holdlock.LockOptions{TTL: time.Minute}).TryAcquire(t.Context())
		time.Sleep(2 * time.Minute)
		before := r.drv.calls.Load()
		time.Sleep(time.Hour)
		if r.drv.calls.Load() != before {
			t.Error("the undo goes on after the term has ended")
		}
	})
}

// R5: a waiting acquire whose reply is lost finds itself at the next try, with its full trust.
func TestR5RetryFindsItself(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		first, err := r.lock(r.rival, holdlock.LockOptions{TTL: time.Second}).TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		drops := 0
		r.drv.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
			g, err := r.drv.Driver.Acquire(ctx, req)
			if err == nil && drops < 3 {
				drops++
				return driver.Grant{}, errors.New("connection reset")
			}
			return g, err
		}
		time.AfterFunc(2*time.Second, func() { _ = first.Release(t.Context()) })
		lease, err := r.lock(r.client, holdlock.LockOptions{TTL: 30 * time.Second}).Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if drops != 3 {
			t.Errorf("%d replies dropped, want 3", drops)
		}
		if trusted, kept := time.Until(lease.Deadline()), r.remaining(); trusted > kept-3*time.Second+time.Millisecond {
			t.Errorf("trusted for %v, kept for %v", trusted, kept)
		}
		_ = lease.Release(t.Context())
		if left := r.remaining(); left != 0 {
			t.Errorf("a ghost keeps the key for %v", left)
		}
	})
}

// R9: a store that hangs and ignores its context costs the budget and no more; the late grant is undone.
func TestR9HungStore(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		r.drv.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
			time.Sleep(20 * time.Second)
			return r.drv.Driver.Acquire(context.WithoutCancel(ctx), req)
		}
		l := r.lock(r.client, holdlock.LockOptions{TTL: time.Minute})
		start := time.Now()
		_, err := l.TryAcquire(t.Context())
		wantIs(t, "TryAcquire", err, holdlock.ErrUnknown)
		if d := time.Since(start); d > 5100*time.Millisecond {
			t.Errorf("returned after %v, want the budget of 5 s", d)
		}
		time.Sleep(16 * time.Second)
		if left := r.remaining(); left != 0 {
			t.Errorf("the late grant keeps the key for %v", left)
		}
		// Many callers do not pile up goroutines without bound.
		errs := make(chan error, 1000)
		for range cap(errs) {
			go func() { _, err := l.TryAcquire(t.Context()); errs <- err }()
		}
		time.Sleep(6 * time.Second)
		if _, err := l.TryAcquire(t.Context()); !errors.Is(err, holdlock.ErrUnreachable) || !strings.Contains(err.Error(), "hang") {
			t.Errorf("with a thousand calls hanging: %v", err)
		}
		for range cap(errs) {
			<-errs
		}
		time.Sleep(time.Minute)
	})
}

// R2: a grant that arrives too late to be trusted is given back, not used.
func TestR2LateGrant(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		r.drv.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
			g, err := r.drv.Driver.Acquire(ctx, req)
			time.Sleep(930 * time.Millisecond) // trust is 900 ms
			return g, err
		}
		_, err := r.lock(r.client, holdlock.LockOptions{TTL: time.Second}).TryAcquire(t.Context())
		if err == nil {
			t.Fatal("granted")
		}
		wantIs(t, "TryAcquire", err, holdlock.ErrUnknown)
		time.Sleep(time.Millisecond)
		if left := r.remaining(); left != 0 {
			t.Errorf("it keeps the key for %v", left)
		}
	})
}

// After its context has ended, Acquire never returns success, even if the grant is just coming in.
func TestCancelledAcquireNeverSucceeds(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		ctx, cancel := context.WithCancel(t.Context())
		r.drv.acquire = func(_ context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
			cancel()
			return r.drv.Driver.Acquire(context.Background(), req)
		}
		if _, err := r.lock(r.client, holdlock.LockOptions{}).TryAcquire(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("error is %v, want context.Canceled", err)
		}
		time.Sleep(time.Millisecond)
		if left := r.remaining(); left != 0 {
			t.Errorf("the key is kept for %v", left)
		}
	})
}

// MinHold keeps the key after a short job and after a crash.
func TestMinHold(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		opts := holdlock.LockOptions{TTL: time.Second, MinHold: 10 * time.Second}
		ours, theirs := r.lock(r.client, opts), r.lock(r.rival, opts)
		nothing := func(context.Context, *holdlock.Lease) error { return nil }
		if err := ours.Do(t.Context(), nothing); err != nil {
			t.Fatal(err)
		}
		err := theirs.Do(t.Context(), nothing)
		wantIs(t, "Do", err, holdlock.ErrHeld)
		if !strings.Contains(err.Error(), "cooling") || !strings.Contains(err.Error(), "10s") {
			t.Errorf("message %q does not say that the key is cooling for 10 s", err)
		}
		time.Sleep(10 * time.Second)
		if err := theirs.Do(t.Context(), func(context.Context, *holdlock.Lease) error {
			time.Sleep(12 * time.Second)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if left := r.remaining(); left != 0 {
			t.Errorf("cooling for %v after a run longer than MinHold", left)
		}
		// A failed acquire leaves no cooling behind.
		r.drv.acquire = func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
			_, _ = r.drv.Driver.Acquire(ctx, req)
			return driver.Grant{}, errors.New("connection reset")
		}
		_, _ = ours.TryAcquire(t.Context())
		time.Sleep(time.Millisecond)
		if left := r.remaining(); left != 0 {
			t.Errorf("an undone acquire cools for %v", left)
		}
	})
}

// Two keys of one lock, and the lock without a key, do not exclude each other.
func TestKeys(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		l := r.lock(r.client, holdlock.LockOptions{})
		odd := []*holdlock.Lock{l, l.For("a"), l.For("A"), l.For("a/b"), l.For("/"), l.For(" "), l.For("{a}"), l.For("🔒"), l.For(strings.Repeat("x", 512))}
		tokens := map[holdlock.Token]bool{}
		for _, k := range odd {
			lease, err := k.TryAcquire(t.Context())
			if err != nil {
				t.Fatalf("%q: %v", k.Key(), err)
			}
			defer func() { _ = lease.Release(t.Context()) }()
			if _, err := k.TryAcquire(t.Context()); !errors.Is(err, holdlock.ErrHeld) {
				t.Errorf("%q: second acquire: %v", k.Key(), err)
			}
			tokens[lease.Token()] = true
		}
		n := 0
		for info, err := range r.rival.List(t.Context(), "") {
			if err != nil {
				t.Fatal(err)
			}
			if info.Name != "job" {
				t.Errorf("listed %+v", info)
			}
			n++
		}
		if n != len(odd) {
			t.Errorf("%d listed, want %d", n, len(odd))
		}
	})
}

func TestListPages(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		const n = 1203 // more than two pages
		l := r.lock(r.client, holdlock.LockOptions{})
		other, err := r.client.NewLock("other", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.TryAcquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		var leases []*holdlock.Lease
		for i := range n {
			lease, err := l.For(time.Duration(i).String()).TryAcquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			leases = append(leases, lease)
		}
		got, last := 0, ""
		for info, err := range r.rival.List(t.Context(), "job") {
			if err != nil {
				t.Fatal(err)
			}
			if info.Key <= last {
				t.Errorf("%q after %q", info.Key, last)
			}
			last = info.Key
			got++
		}
		if got != n {
			t.Errorf("%d listed, want %d", got, n)
		}
		for range r.rival.List(t.Context(), "job") {
			break // an early end is fine
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_ = r.client.Shutdown(ctx)
		_ = leases
	})
}

var _ driver.Driver = (*memhold.Driver)(nil)

// asked is a driver that notes which tries are only in case a hint got lost.
type asked struct {
	driver.Driver
	mu       sync.Mutex
	backStop []bool
}

func (a *asked) tries() []bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.backStop)
}

func (a *asked) Unwrap() driver.Driver { return a.Driver }

func (a *asked) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	return a.Driver.(driver.Waiter).Watch(ctx, key)
}

func (a *asked) Acquire(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	a.mu.Lock()
	a.backStop = append(a.backStop, req.BackStop)
	n := len(a.backStop)
	a.mu.Unlock()
	if n == 4 { // this one gets no answer
		return driver.Grant{}, errors.New("no answer")
	}
	return a.Driver.Acquire(ctx, req)
}

// Only a try without a reason of its own may be answered from memory: not the first, not the one after the watch has
// begun, not one after a hint, and not one that has to find out about a try without an answer.
func TestR6BackStop(t *testing.T) {
	virtual(t, func(t *testing.T, r *rig) {
		store := memhold.NewStore()
		d := &asked{Driver: memhold.NewDriver(&memhold.Options{Store: store})}
		c, err := holdlock.NewClient(d, nil)
		if err != nil {
			t.Fatal(err)
		}
		rival, err := holdlock.NewClient(memhold.NewDriver(&memhold.Options{Store: store}), nil)
		if err != nil {
			t.Fatal(err)
		}
		lease, err := r.lock(rival, holdlock.LockOptions{}).TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		got := make(chan error)
		go func() {
			_, err := r.lock(c, holdlock.LockOptions{}).Acquire(t.Context())
			got <- err
		}()
		for len(d.tries()) < 6 {
			time.Sleep(time.Millisecond)
			synctest.Wait()
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-got; err != nil {
			t.Error(err)
		}
		// Refused, refused after the watch, then two polls of which the second got no answer, its repetition, a poll, the hint.
		want := []bool{false, false, true, true, false, true, false}
		if tries := d.tries(); !slices.Equal(tries, want) {
			t.Errorf("tries = %v, want %v", tries, want)
		}
		if err := errors.Join(c.Shutdown(t.Context()), rival.Shutdown(t.Context())); err != nil && !errors.Is(err, holdlock.ErrShutdown) {
			t.Log(err)
		}
	})
}
