package holdlock_test

import (
	"context"
	"errors"
	"fmt"
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

// R6: a release hands over to the next in line, in the same moment, and everyone gets on in the order of arrival.
func TestR6LineIsFIFO(t *testing.T) {
	inLine(t, func(r *lineRig) {
		lease := r.hold()
		var order []int
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := range 10 {
			c := r.waiter
			if i%2 == 1 {
				c = r.holder
			}
			wg.Go(func() {
				err := r.lock(c, holdlock.LockOptions{Wait: holdlock.Forever}).Do(r.Context(), func(context.Context, *holdlock.Lease) error {
					mu.Lock()
					defer mu.Unlock()
					order = append(order, i)
					return nil
				})
				if err != nil {
					r.Error(err)
				}
			})
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		start := time.Now()
		release(r.T, lease)
		wg.Wait()
		if took := time.Since(start); took != 0 {
			r.Errorf("ten hand-overs took %v in virtual time: somebody polled", took)
		}
		if !slices.IsSorted(order) {
			r.Errorf("granted in the order %v", order)
		}
		if r.q.beats > 65 || r.q.beats < 55 {
			r.Errorf("%d heartbeats for five waiters in a minute, want one a second", r.q.beats)
		}
	})
}

// R6: nobody gets in before those who wait, not even when the key is free because its holder has died.
func TestR6NobodyGetsInBeforeTheLine(t *testing.T) {
	inLine(t, func(r *lineRig) {
		d := memhold.NewDriver(&memhold.Options{Store: r.store})
		dead := driver.Ref{Key: "job", Nonce: "dead"}
		if _, err := d.Acquire(r.Context(), &driver.AcquireRequest{Ref: dead, TTL: 10 * time.Second}); err != nil {
			r.Fatal(err)
		}
		start := time.Now()
		got := r.wait(r.Context(), r.lock(r.waiter, holdlock.LockOptions{}))
		time.Sleep(10 * time.Second) // to the moment at which it is free
		if _, err := r.lock(r.holder, holdlock.LockOptions{}).TryAcquire(r.Context()); !errors.Is(err, holdlock.ErrHeld) {
			r.Errorf("a newcomer: %v, want held by the waiter", err)
		}
		g := <-got
		if g.err != nil {
			r.Fatal(g.err)
		}
		if took := g.at.Sub(start); took > 10*time.Second+10*time.Millisecond {
			r.Errorf("granted %v after the start, want at the end of the dead holder's term", took)
		}
		release(r.T, g.lease)
	})
}

// The next in line looks when the present term ends: nobody is told of that.
func TestR6TheNextInLineLooksForItself(t *testing.T) {
	inLine(t, func(r *lineRig) {
		d := memhold.NewDriver(&memhold.Options{Store: r.store})
		start := time.Now()
		if _, err := d.Acquire(r.Context(), &driver.AcquireRequest{Ref: driver.Ref{Key: "job", Nonce: "dead"}, TTL: 10*time.Second + 500*time.Millisecond}); err != nil {
			r.Fatal(err)
		}
		g := <-r.wait(r.Context(), r.lock(r.waiter, holdlock.LockOptions{}))
		if took := g.at.Sub(start); g.err != nil || took > 10*time.Second+510*time.Millisecond {
			r.Errorf("granted after %v, %v", took, g.err)
		}
		release(r.T, g.lease)
	})
}

// Lost pushes cost one heartbeat.
func TestR6LostPushes(t *testing.T) {
	inLine(t, func(r *lineRig) {
		r.q.lose = true
		lease := r.hold()
		got := r.wait(r.Context(), r.lock(r.waiter, holdlock.LockOptions{}))
		time.Sleep(10*time.Second + 300*time.Millisecond)
		at := time.Now()
		release(r.T, lease)
		g := <-got
		if took := g.at.Sub(at); g.err != nil || took > time.Second {
			r.Fatalf("granted %v after the release, %v; want one heartbeat", took, g.err)
		}
		r.trusted(g.lease)
		if left := time.Until(g.lease.Deadline()); left < 26*time.Second {
			r.Errorf("trusted for %v: a heartbeat that reports a grant re-arms the full TTL", left)
		}
		release(r.T, g.lease)
	})
}

// R2: a push is worth what is left of the claim since the last heartbeat, however late it comes. The twin that counts from
// its arrival is caught by the store's own clock.
func TestR2PushesAreTrustedFromTheLastHeartbeat(t *testing.T) {
	for _, late := range []time.Duration{0, 300 * time.Millisecond, 1200 * time.Millisecond, 2900 * time.Millisecond, 5 * time.Second, time.Minute} {
		t.Run(fmt.Sprint(late), func(t *testing.T) {
			inLine(t, func(r *lineRig) {
				lease := r.hold()
				got := r.wait(r.Context(), r.lock(r.waiter, holdlock.LockOptions{}))
				time.Sleep(10*time.Second + 300*time.Millisecond)
				r.q.mu.Lock()
				r.q.keep = true
				r.q.attend = func([]*driver.AcquireRequest) error { return errors.New("no answer") } // a pause, for the store
				r.q.mu.Unlock()
				release(r.T, lease)
				time.Sleep(late)
				n := r.q.deliver()
				synctest.Wait()
				if late <= 900*time.Millisecond && n != 1 {
					r.Errorf("%d pushes", n)
				}
				r.q.mu.Lock()
				r.q.keep, r.q.attend = false, nil
				r.q.mu.Unlock()
				g := <-got
				if g.err != nil {
					r.Fatal(g.err)
				}
				if left := time.Until(g.lease.Deadline()); left < driver.Provisional/2 {
					r.Errorf("it begins with %v of trust; what is worn down to less than half is confirmed first", left)
				}
				for range 100 {
					r.trusted(g.lease)
					time.Sleep(50 * time.Millisecond)
				}
				release(r.T, g.lease)
			})
		})
	}
}

// A push for a nonce that was retired meanwhile finds nobody: the waiter was paused past its grant, its heartbeat said
// unknown, and it waits under a new nonce when the old push comes.
func TestR2AStalePushFindsNobody(t *testing.T) {
	inLine(t, func(r *lineRig) {
		lease := r.hold()
		got := r.wait(r.Context(), r.lock(r.waiter, holdlock.LockOptions{}))
		r.q.mu.Lock()
		r.q.keep = true
		r.q.attend = func([]*driver.AcquireRequest) error { return errors.New("paused") }
		r.q.mu.Unlock()
		release(r.T, lease)          // to the waiter, which does not hear it
		time.Sleep(10 * time.Second) // the claim ends
		second := r.hold()
		r.q.mu.Lock()
		r.q.attend = nil
		r.q.mu.Unlock()
		time.Sleep(2 * time.Second) // it learns that its nonce is unknown, and stands in line anew
		if n := r.q.deliver(); n != 1 {
			r.Fatalf("%d pushes were kept", n)
		}
		synctest.Wait()
		select {
		case g := <-got:
			r.Fatalf("a stale push was believed: %+v", g)
		default:
		}
		r.q.mu.Lock()
		r.q.keep = false
		r.q.mu.Unlock()
		release(r.T, second)
		g := <-got
		if g.err != nil {
			r.Fatal(g.err)
		}
		r.trusted(g.lease)
		release(r.T, g.lease)
	})
}

// Where a replica can take over, and where a lease needs its whole TTL, a push is confirmed by one renewal before it counts.
func TestR2PushesAreConfirmed(t *testing.T) {
	for name, tc := range map[string]struct {
		forgets driver.Forgetting
		opts    holdlock.LockOptions
		want    int
	}{
		"one server":      {driver.OnRestart, holdlock.LockOptions{}, 0},
		"failover":        {driver.OnFailover, holdlock.LockOptions{}, 1},
		"without renewal": {driver.OnRestart, holdlock.LockOptions{Renew: holdlock.RenewOff}, 1},
		"with MinHold":    {driver.OnRestart, holdlock.LockOptions{MinHold: time.Minute}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			inLineWith(t, func(q *queued) { q.forgets = tc.forgets }, func(r *lineRig) {
				lease := r.hold()
				got := r.wait(r.Context(), r.lock(r.waiter, tc.opts))
				time.Sleep(10 * time.Second)
				release(r.T, lease)
				g := <-got
				if g.err != nil {
					r.Fatal(g.err)
				}
				if r.q.renews != tc.want {
					r.Errorf("%d renewals before the lease, want %d", r.q.renews, tc.want)
				}
				r.trusted(g.lease)
				release(r.T, g.lease)
			})
		})
	}
}

// A push from a server that a replica has replaced is about a term that the new one does not know. The renewal says so.
func TestR2APushOfTheOldPrimaryIsNotBelieved(t *testing.T) {
	inLineWith(t, func(q *queued) { q.forgets = driver.OnFailover }, func(r *lineRig) {
		lease := r.hold()
		var nonce string
		r.q.attend = func(reqs []*driver.AcquireRequest) error {
			r.q.mu.Lock()
			defer r.q.mu.Unlock()
			nonce = reqs[0].Ref.Nonce
			return nil
		}
		got := r.wait(r.Context(), r.lock(r.waiter, holdlock.LockOptions{}))
		time.Sleep(10 * time.Second)
		r.q.mu.Lock()
		push := driver.Push{Nonce: nonce, Grant: driver.Grant{Token: 7}, TTL: driver.Provisional}
		r.q.mu.Unlock()
		r.q.hear(push)
		synctest.Wait()
		select {
		case g := <-got:
			r.Fatalf("it was believed: %+v", g)
		default:
		}
		release(r.T, lease)
		g := <-got
		if g.err != nil {
			r.Fatal(g.err)
		}
		release(r.T, g.lease)
	})
}

// A waiter that is given up leaves the line, also in the moment in which it is granted, and the next one gets on.
func TestR6GivenUpWaiters(t *testing.T) {
	for name, atOnce := range map[string]bool{"while waiting": false, "while granted": true} {
		t.Run(name, func(t *testing.T) {
			inLine(t, func(r *lineRig) {
				lease := r.hold()
				ctx, cancel := context.WithCancel(r.Context())
				defer cancel()
				gone := r.wait(ctx, r.lock(r.waiter, holdlock.LockOptions{}))
				next := r.wait(r.Context(), r.lock(r.holder, holdlock.LockOptions{}))
				time.Sleep(5 * time.Second)
				if atOnce {
					r.q.keep = true
				} else {
					cancel()
					synctest.Wait()
				}
				at := time.Now()
				release(r.T, lease)
				cancel()
				if g := <-gone; !errors.Is(g.err, holdlock.ErrHeld) || !errors.Is(g.err, context.Canceled) {
					r.Errorf("the one who gave up: %v", g.err)
				}
				g := <-next
				if took := g.at.Sub(at); g.err != nil || took != 0 {
					r.Fatalf("the next one was granted %v later, %v", took, g.err)
				}
				r.q.deliver() // of what has been given back
				synctest.Wait()
				r.trusted(g.lease)
				release(r.T, g.lease)
			})
		})
	}
}

// A dead process in line costs one claim, however many places it has.
func TestR6DeadProcessesInLine(t *testing.T) {
	inLine(t, func(r *lineRig) {
		lease := r.hold()
		dead := memhold.NewDriver(&memhold.Options{Store: r.store})
		for i := range 5 {
			_, err := dead.Enqueue(r.Context(), &driver.AcquireRequest{Ref: driver.Ref{Key: "job", Nonce: fmt.Sprint(i)}, TTL: time.Minute})
			if err == nil {
				r.Fatal("granted")
			}
		}
		got := r.wait(r.Context(), r.lock(r.waiter, holdlock.LockOptions{}))
		time.Sleep(2900 * time.Millisecond) // it is still thought to be alive
		at := time.Now()
		release(r.T, lease)
		g := <-got
		if took := g.at.Sub(at); g.err != nil || took > driver.Provisional+time.Second || took < driver.Provisional {
			r.Errorf("granted %v after the release, %v; want one claim, and a heartbeat", took, g.err)
		}
		release(r.T, g.lease)
	})
}

// R6: waiters with short TTLs make progress, in order.
func TestR6ShortTTLs(t *testing.T) {
	inLine(t, func(r *lineRig) {
		const ttl = 300 * time.Millisecond
		lease := r.hold()
		var order []int
		var mu sync.Mutex
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				err := r.lock(r.waiter, holdlock.LockOptions{TTL: ttl, Wait: holdlock.Forever}).Do(r.Context(), func(ctx context.Context, lease *holdlock.Lease) error {
					mu.Lock()
					order = append(order, i)
					mu.Unlock()
					for range 5 {
						r.trusted(lease)
						time.Sleep(100 * time.Millisecond)
					}
					return ctx.Err()
				})
				if err != nil {
					r.Error(err)
				}
			})
			synctest.Wait()
		}
		time.Sleep(time.Second)
		r.q.mu.Lock()
		if r.q.beats < 12 {
			r.Errorf("%d heartbeats in a second, want one every TTL/4: grants would arrive worn down", r.q.beats)
		}
		r.q.mu.Unlock()
		release(r.T, lease)
		wg.Wait()
		if !slices.IsSorted(order) || len(order) != 50 {
			r.Errorf("granted in the order %v", order)
		}
	})
}

// A store that fails loses nobody who waits, and is not asked more often for it. The waiter is told, once for each time.
func TestR6LineOutlivesAStoreThatFails(t *testing.T) {
	inLine(t, func(r *lineRig) {
		lease := r.hold()
		got := r.wait(r.Context(), r.lock(r.waiter, holdlock.LockOptions{}))
		r.q.mu.Lock()
		r.q.attend = func([]*driver.AcquireRequest) error { return errors.New("connection refused") }
		r.q.mu.Unlock()
		time.Sleep(time.Minute) // longer than a place is kept without heartbeats
		r.q.mu.Lock()
		beats := r.q.beats
		r.q.attend = nil
		r.q.mu.Unlock()
		if beats > 62 {
			r.Errorf("%d heartbeats in a minute", beats)
		}
		if n := r.events.of(holdlock.WaitFailing); n != 1 {
			r.Errorf("a minute of failures was told %d times", n)
		}
		time.Sleep(3 * time.Second)
		r.q.mu.Lock()
		r.q.attend = func([]*driver.AcquireRequest) error { return errors.New("once more") }
		r.q.mu.Unlock()
		time.Sleep(10 * time.Second)
		r.q.mu.Lock()
		r.q.attend = nil
		r.q.mu.Unlock()
		if n := r.events.of(holdlock.WaitFailing); n != 2 {
			r.Errorf("two times of failures were told %d times", n)
		}
		time.Sleep(3 * time.Second)
		at := time.Now()
		release(r.T, lease)
		if g := <-got; g.err != nil || g.at != at {
			r.Errorf("granted %v after the release, %v", g.at.Sub(at), g.err)
		} else {
			release(r.T, g.lease)
		}
	})
}

// A failure that will not pass is told once more, at once.
func TestAWaitTellsThatTheStoreRefuses(t *testing.T) {
	inLine(t, func(r *lineRig) {
		lease := r.hold()
		got := r.wait(r.Context(), r.lock(r.waiter, holdlock.LockOptions{}))
		for i, fails := range []error{errAway, driver.ErrDenied, driver.ErrDamaged, errAway, driver.ErrDenied, nil, driver.ErrDenied} {
			r.q.mu.Lock()
			r.q.attend = func([]*driver.AcquireRequest) error { return fails }
			r.q.mu.Unlock()
			time.Sleep(10 * time.Second)
			if n, want := r.events.of(holdlock.WaitFailing), []int{1, 2, 2, 2, 2, 2, 3}[i]; n != want {
				r.Errorf("%d: %v was told %d times in all, want %d", i, fails, n, want)
			}
		}
		r.q.mu.Lock()
		r.q.attend = nil
		r.q.mu.Unlock()
		time.Sleep(2 * time.Second)
		release(r.T, lease)
		if g := <-got; g.err != nil {
			r.Error(g.err)
		} else {
			release(r.T, g.lease)
		}
	})
}

// A wait that ends while the store fails is told as the store's failure, with what was known of the holder. One that ends after
// the store has answered again is told as held.
func TestTheEndOfAWaitWhileTheStoreFails(t *testing.T) {
	for name, tc := range map[string]struct {
		fails    error
		from, to time.Duration // the heartbeats that fail
		held     bool
	}{
		"until the end":        {errAway, 3 * time.Second, time.Hour, false},
		"certainly":            {fmt.Errorf("%w (%w)", errAway, driver.ErrNotApplied), 3 * time.Second, time.Hour, false},
		"only the last":        {errAway, 9500 * time.Millisecond, time.Hour, false},
		"until shortly before": {errAway, 3 * time.Second, 9 * time.Second, true},
		"never":                {errAway, time.Hour, time.Hour, true},
	} {
		t.Run(name, func(t *testing.T) {
			inLine(t, func(r *lineRig) {
				lease, start := r.hold(), time.Now()
				r.q.attend = func([]*driver.AcquireRequest) error {
					if at := time.Since(start); at >= tc.from && at < tc.to {
						return tc.fails
					}
					return nil
				}
				ctx, cancel := context.WithTimeoutCause(r.Context(), 10*time.Second+500*time.Millisecond, errors.New("patience is over"))
				defer cancel()
				g := <-r.wait(ctx, r.lock(r.waiter, holdlock.LockOptions{}))
				var store *holdlock.StoreError
				isHeld, isStore := errors.Is(g.err, holdlock.ErrHeld), errors.As(g.err, &store) && errors.Is(g.err, errAway)
				if isHeld != tc.held || isStore == tc.held || !errors.Is(g.err, context.DeadlineExceeded) {
					r.Fatalf("held: %v, the store's failure: %v, in %v", isHeld, isStore, g.err)
				}
				if failed := r.events.of(holdlock.Failed) == 1; failed == tc.held {
					r.Errorf("it was counted as failed: %v", failed)
				}
				if !tc.held && (!errors.Is(g.err, holdlock.ErrUnknown) || !strings.Contains(g.err.Error(), "held by") || !strings.Contains(g.err.Error(), "patience is over")) {
					r.Errorf("%v: want an unknown outcome, who held it, and why the wait ended", g.err)
				}
				synctest.Wait() // it leaves the line
				release(r.T, lease)
				release(r.T, r.hold()) // nobody is in the way
			})
		})
	}
}

// After Shutdown waits have ended and nothing is left in line.
func TestShutdownEndsTheLine(t *testing.T) {
	inLine(t, func(r *lineRig) {
		lease := r.hold()
		got := r.wait(r.Context(), r.lock(r.waiter, holdlock.LockOptions{}))
		r.shut(r.waiter)
		if g := <-got; !errors.Is(g.err, holdlock.ErrShutdown) {
			r.Errorf("the wait ended with %v", g.err)
		}
		release(r.T, lease)
		release(r.T, r.hold()) // nobody is in the way
	})
}
