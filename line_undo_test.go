package holdlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

var errAway = errors.New("connection refused")

// away makes the waiter's store fail, all but what takes a place, until the func that it returns is called.
func (r *lineRig) away() (back func()) {
	r.q.mu.Lock()
	defer r.q.mu.Unlock()
	r.q.attend = func([]*driver.AcquireRequest) error { return errAway }
	r.q.undo = func(driver.Ref) error { return errAway }
	return func() {
		r.q.mu.Lock()
		defer r.q.mu.Unlock()
		r.q.attend, r.q.undo = nil, nil
	}
}

// giveUp makes n waits that are given up, and returns the call that gives them up.
func (r *lineRig) giveUp(n int, opts holdlock.LockOptions) (cancel func()) {
	ctx, stop := context.WithCancel(r.Context())
	var waits []<-chan granted
	for range n {
		waits = append(waits, r.wait(ctx, r.lock(r.waiter, opts)))
	}
	return func() {
		r.Helper()
		stop()
		for _, w := range waits {
			if g := <-w; g.err == nil {
				r.Error("a wait that was given up was granted")
			}
		}
	}
}

// R6: a place that is given up while the store fails is given back when it answers, however long that was: it lasts as long as
// its process, which has another waiter. Each that is left costs a claim.
func TestR6PlacesAreGivenBackAfterALongFailure(t *testing.T) {
	for _, away := range []time.Duration{2 * time.Second, 20 * time.Second, 5 * time.Minute} {
		t.Run(fmt.Sprint(away), func(t *testing.T) {
			inLine(t, func(r *lineRig) {
				lease := r.hold()
				opts := holdlock.LockOptions{TTL: time.Second}
				cancel := r.giveUp(100, opts)
				patient := r.wait(r.Context(), r.lock(r.waiter, opts))
				back := r.away()
				cancel()
				time.Sleep(away)
				undos := r.q.released()
				if most := 16 + 20*int(away/time.Second); undos > most {
					r.Errorf("%d tries in %v, want at most %d", undos, away, most)
				}
				if n := r.events.of(holdlock.Unreleased); n > 100 {
					r.Errorf("%d places were told %d times", 100, n)
				}
				back()
				time.Sleep(1100 * time.Millisecond) // a heartbeat
				at := time.Now()
				release(r.T, lease)
				var g granted
				select {
				case g = <-patient:
				case <-time.After(time.Minute):
					r.Fatal("nobody was granted the lock for a minute")
				}
				if took := g.at.Sub(at); g.err != nil || took != 0 {
					r.Fatalf("granted %v after the release, %v: the key went to nobody", took, g.err)
				}
				r.trusted(g.lease)
				release(r.T, g.lease)
			})
		})
	}
}

// R6: a grant for a nonce that is given up and not given back yet costs one call and not a claim, pushed or reported.
func TestR6AGrantForNobodyIsGivenBack(t *testing.T) {
	inLine(t, func(r *lineRig) {
		lease := r.hold()
		cancel := r.giveUp(20, holdlock.LockOptions{})
		next := r.wait(r.Context(), r.lock(r.holder, holdlock.LockOptions{}))
		back := r.away()
		cancel()
		time.Sleep(10 * time.Second)
		back()
		at := time.Now()
		release(r.T, lease) // at once: the places are still there
		g := <-next
		if took := g.at.Sub(at); g.err != nil || took != 0 {
			r.Errorf("granted %v after the release, %v; want a call for each, which take no time here", took, g.err)
		}
		release(r.T, g.lease)
	})
}

// R2: a push that comes when the nonce has been reported, taken and is a lease ends nothing.
func TestR2ALatePushEndsNoLease(t *testing.T) {
	inLine(t, func(r *lineRig) {
		lease := r.hold()
		got := r.wait(r.Context(), r.lock(r.waiter, holdlock.LockOptions{}))
		r.q.mu.Lock()
		r.q.keep = true
		r.q.mu.Unlock()
		release(r.T, lease)
		g := <-got // by a heartbeat
		if g.err != nil {
			r.Fatal(g.err)
		}
		undos := r.q.released()
		if n := r.q.deliver(); n != 1 {
			r.Fatalf("%d pushes were kept", n)
		}
		time.Sleep(time.Second)
		if r.q.released() != undos {
			r.Error("the lease was given back under its holder")
		}
		r.trusted(g.lease)
		if err := g.lease.Check(0); err != nil {
			r.Error(err)
		}
		release(r.T, g.lease)
	})
}

// Places are given back several at once: one call after the other would take as long as all of them.
func TestPlacesAreGivenBackTogether(t *testing.T) {
	inLine(t, func(r *lineRig) {
		lease := r.hold()
		cancel := r.giveUp(100, holdlock.LockOptions{})
		next := r.wait(r.Context(), r.lock(r.holder, holdlock.LockOptions{}))
		r.q.mu.Lock()
		r.q.undo = func(driver.Ref) error {
			time.Sleep(100 * time.Millisecond)
			return nil
		}
		r.q.mu.Unlock()
		cancel()
		time.Sleep(time.Second)
		at := time.Now()
		release(r.T, lease)
		g := <-next
		if took := g.at.Sub(at); g.err != nil || took != 0 {
			r.Errorf("granted %v after the release, %v: a second is enough for 100 calls of 100 ms", took, g.err)
		}
		release(r.T, g.lease)
	})
}

// What one key refuses holds up no other, and is given back at once when it is granted after all.
func TestADamagedKeyHoldsUpNoPlaces(t *testing.T) {
	inLine(t, func(r *lineRig) {
		lease := r.hold()
		cancel := r.giveUp(20, holdlock.LockOptions{})
		damaged := map[string]bool{}
		var mu sync.Mutex
		learn, good := true, 0
		r.q.mu.Lock()
		r.q.undo = func(ref driver.Ref) error {
			mu.Lock()
			defer mu.Unlock()
			damaged[ref.Nonce] = damaged[ref.Nonce] || learn
			if damaged[ref.Nonce] {
				return fmt.Errorf("%w (%w)", driver.ErrDamaged, driver.ErrNotApplied)
			}
			good++
			return nil
		}
		r.q.mu.Unlock()
		cancel()
		time.Sleep(time.Minute)
		if n := r.q.released(); n > 20*130 {
			r.Errorf("%d calls in a minute for 20 places of a damaged key", n)
		}
		mu.Lock()
		learn = false
		mu.Unlock()
		for i := range 20 { // at any point of the pauses of the others
			r.giveUp(1, holdlock.LockOptions{})()
			synctest.Wait()
			mu.Lock()
			if good != i+1 {
				r.Errorf("after %d places were given up, %d were given back", i+1, good)
			}
			mu.Unlock()
			time.Sleep(17 * time.Millisecond)
		}
		next := r.wait(r.Context(), r.lock(r.holder, holdlock.LockOptions{}))
		r.q.mu.Lock()
		r.q.undo = nil
		r.q.mu.Unlock()
		at := time.Now()
		release(r.T, lease)
		g := <-next
		if took := g.at.Sub(at); g.err != nil || took != 0 {
			r.Errorf("granted %v after the release, %v: each grant for nobody costs one call", took, g.err)
		}
		release(r.T, g.lease)
	})
}

// A Shutdown does not wait for places longer than they last without their process.
func TestShutdownWaitsForPlacesNoLongerThanTheyLast(t *testing.T) {
	inLine(t, func(r *lineRig) {
		lease := r.hold()
		cancel := r.giveUp(20, holdlock.LockOptions{TTL: time.Hour})
		r.away()
		cancel()
		start := time.Now()
		r.shut(r.waiter)
		if took := time.Since(start); took > driver.Alive+time.Second {
			r.Errorf("Shutdown took %v", took)
		}
		next := r.wait(r.Context(), r.lock(r.holder, holdlock.LockOptions{}))
		time.Sleep(driver.Alive)
		at := time.Now()
		release(r.T, lease)
		g := <-next
		if took := g.at.Sub(at); g.err != nil || took != 0 {
			r.Errorf("granted %v after the release, %v: who sends no heartbeats is skipped", took, g.err)
		}
		release(r.T, g.lease)
	})
}
