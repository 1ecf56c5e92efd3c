package holdlock_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
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
	r.q.undo = func([]driver.Ref) error { return errAway }
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
				if most := 16 + 2*int(away/time.Second); undos > most {
					r.Errorf("%d tries in %v, want at most %d", undos, away, most)
				}
				if n := r.events.of(holdlock.Unreleased); n != 1 {
					r.Errorf("that places cannot be given back was told %d times", n)
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

// R6: a request for a place that arrives after it was given back, at a store that does not remember that any more, costs a call when
// it is its turn, and not a claim. The twin has forgotten it as well.
func TestR6ALatePlaceIsGivenBackAgain(t *testing.T) {
	const n = 100
	for _, twin := range []bool{false, true} {
		inLine(t, func(r *lineRig) {
			lease := r.hold()
			patient := r.wait(r.Context(), r.lock(r.waiter, holdlock.LockOptions{})) // its heartbeats keep the process alive
			r.q.mu.Lock()
			r.q.slow, r.q.drop = true, true
			r.q.mu.Unlock()
			r.giveUpUnclear(n)
			time.Sleep(time.Second)
			r.q.mu.Lock()
			r.q.drop = false
			r.q.mu.Unlock()
			if twin {
				holdlock.ForgetRetired(r.waiter)
			}
			if got := r.q.arrive(r.Context()); got != n {
				r.Fatalf("%d of %d late requests have got a place", got, n)
			}
			next := r.wait(r.Context(), r.lock(r.holder, holdlock.LockOptions{}))
			at := time.Now()
			release(r.T, lease)
			g := <-patient
			if g.err != nil || !g.at.Equal(at) {
				r.Errorf("the first in line is granted %v after the release, %v", g.at.Sub(at), g.err)
			}
			at = time.Now()
			release(r.T, g.lease)
			g = <-next
			if took := g.at.Sub(at); g.err != nil || took != 0 != twin {
				r.Errorf("granted %v after the release, %v (the twin: %v); want a call for each late one, which take no time here", took, g.err, twin)
			}
			release(r.T, g.lease)
		})
	}
}

// giveUpUnclear makes n waits whose first call is not answered.
func (r *lineRig) giveUpUnclear(n int) {
	r.Helper()
	l := r.lock(r.waiter, holdlock.LockOptions{})
	for range n {
		if g := <-r.wait(r.Context(), l); !errors.Is(g.err, holdlock.ErrUnknown) {
			r.Errorf("a wait at a store that does not answer: %v", g.err)
		}
	}
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

// Places of one key are given back together: one call after the other takes as long as all of them. The twin is a store where each
// place takes its time.
func TestPlacesAreGivenBackTogether(t *testing.T) {
	for _, twin := range []bool{false, true} {
		inLine(t, func(r *lineRig) {
			lease := r.hold()
			cancel := r.giveUp(100, holdlock.LockOptions{})
			next := r.wait(r.Context(), r.lock(r.holder, holdlock.LockOptions{}))
			r.q.mu.Lock()
			r.q.undo = func(refs []driver.Ref) error {
				for range refs {
					time.Sleep(300 * time.Millisecond)
					if !twin {
						break
					}
				}
				return nil
			}
			r.q.mu.Unlock()
			cancel()
			time.Sleep(time.Second)
			at := time.Now()
			release(r.T, lease)
			g := <-next
			if took := g.at.Sub(at); g.err != nil || took != 0 != twin {
				r.Errorf("granted %v after the release, %v (the twin: %v): a second is enough for two calls of 300 ms", took, g.err, twin)
			}
			release(r.T, g.lease)
		})
	}
}

// R6: however many places were given up while the store failed, they are given back as soon as it answers. Beyond the bound no more
// are taken, and none is forgotten. The twin has a store that says it has dropped them.
func TestR6NoPlaceIsForgotten(t *testing.T) {
	const n = 2000
	for _, c := range []struct {
		most int
		twin bool
	}{{0, false}, {n, false}, {0, true}} {
		inLine(t, func(r *lineRig) {
			if c.most > 0 {
				holdlock.SetMaxUndos(r.waiter, c.most)
			}
			lease := r.hold()
			opts := holdlock.LockOptions{TTL: time.Second}
			ctx, cancel := context.WithCancel(r.Context())
			l := r.lock(r.waiter, opts)
			var waits sync.WaitGroup
			for range n {
				waits.Go(func() {
					if _, err := l.Acquire(ctx); err == nil {
						r.Error("a wait that was given up was granted")
					}
				})
			}
			synctest.Wait()
			stays, leaves := context.WithCancel(r.Context())
			defer leaves()
			patient := r.wait(stays, r.lock(r.waiter, opts))
			back := r.away()
			cancel()
			waits.Wait()
			time.Sleep(10 * time.Second)
			other := r.named(r.waiter, "other", opts)
			beside, err := other.TryAcquire(r.Context())
			if c.most == 0 && err != nil || c.most > 0 && !errors.Is(err, holdlock.ErrUnreachable) {
				r.Errorf("with room for %d: %v; 0 is for as many as there are", c.most, err)
			}
			if c.twin {
				r.q.mu.Lock()
				r.q.drop = true
				r.q.mu.Unlock()
			}
			back()
			time.Sleep(1100 * time.Millisecond)
			at := time.Now()
			release(r.T, lease)
			var g granted
			select {
			case g = <-patient:
			case <-time.After(time.Minute):
			}
			if took := g.at.Sub(at); (g.lease == nil || took != 0) != c.twin {
				r.Errorf("granted %v after the release, %v (the twin: %v)", took, g.err, c.twin)
			}
			if g.lease == nil {
				leaves()
				g = <-patient
			}
			if g.lease != nil {
				release(r.T, g.lease)
			}
			if c.most > 0 {
				beside = mustTry(r.T, other)
			}
			release(r.T, beside)
		})
	}
}

func mustTry(t *testing.T, l *holdlock.Lock) *holdlock.Lease {
	t.Helper()
	lease, err := l.TryAcquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// Keys that get no answer, as those of a node of a Cluster that hangs, hold up the places and unclear acquires of others for a moment
// only, also while those others are heard to work. What hangs is heard of as soon as it answers.
func TestHangingKeysHoldUpNoOthers(t *testing.T) {
	const hanging, tries = 100, 40
	inLineWith(t, func(q *queued) { q.forgets = driver.NeverAlone }, func(r *lineRig) {
		var hangs []*holdlock.Lease
		ctx, cancel := context.WithCancel(r.Context())
		var waits []<-chan granted
		for i := range hanging {
			name := fmt.Sprint("hangs-", i)
			hangs = append(hangs, mustTry(r.T, r.named(r.holder, name, holdlock.LockOptions{})))
			waits = append(waits, r.wait(ctx, r.named(r.waiter, name, holdlock.LockOptions{})))
		}
		var mu sync.Mutex
		given := map[string]int{}
		thaw := make(chan struct{})
		r.q.mu.Lock()
		r.q.undo = func(refs []driver.Ref) error {
			if strings.HasPrefix(refs[0].Key, "hangs-") {
				select {
				case <-thaw:
				case <-time.After(400 * time.Millisecond): // and a call that hangs is given up
					return errAway
				}
			}
			mu.Lock()
			defer mu.Unlock()
			given[refs[0].Key] += len(refs)
			return nil
		}
		r.q.mu.Unlock()
		cancel()
		for _, w := range waits {
			<-w
		}
		time.Sleep(time.Second)
		for i := range tries {
			name := fmt.Sprint("works-", i%4)
			lease := mustTry(r.T, r.named(r.holder, name, holdlock.LockOptions{}))
			ctx, cancel := context.WithCancel(r.Context())
			w := r.wait(ctx, r.named(r.waiter, name, holdlock.LockOptions{}))
			cancel()
			<-w
			time.Sleep(150 * time.Millisecond)
			release(r.T, lease)
			mu.Lock()
			if got, want := given[name], i/4+1; got != want {
				r.Errorf("150 ms after try %d, %d places of %s were given back, want %d", i, got, name, want)
			}
			mu.Unlock()
		}
		calls := r.q.released()
		time.Sleep(10 * time.Second)
		if n := r.q.released() - calls; n < 50 || n > 500 {
			r.Errorf("%d calls in 10 s for %d keys that hang", n, hanging)
		}
		close(thaw)
		time.Sleep(time.Second)
		mu.Lock()
		for i := range hanging {
			if n := given[fmt.Sprint("hangs-", i)]; n != 1 {
				r.Errorf("a second after they hang no more, %d places of key %d were given back", n, i)
			}
		}
		mu.Unlock()
		for _, lease := range hangs {
			release(r.T, lease)
		}
	})
}

// What one key refuses holds up no other, and is given back at once when it is granted after all.
func TestADamagedKeyHoldsUpNoPlaces(t *testing.T) {
	inLine(t, func(r *lineRig) {
		lease := r.hold()
		cancel := r.giveUp(20, holdlock.LockOptions{})
		var mu sync.Mutex
		good := 0
		r.q.mu.Lock()
		r.q.undo = func(refs []driver.Ref) error {
			mu.Lock()
			defer mu.Unlock()
			if refs[0].Key == "job" {
				return fmt.Errorf("%w (%w)", driver.ErrDamaged, driver.ErrNotApplied)
			}
			good++
			return nil
		}
		r.q.mu.Unlock()
		cancel()
		time.Sleep(time.Minute)
		if n := r.q.released(); n > 130 {
			r.Errorf("%d calls in a minute for the places of a damaged key", n)
		}
		other := mustTry(r.T, r.named(r.holder, "other", holdlock.LockOptions{}))
		for i := range 20 { // at any point of the pauses of the damaged one
			ctx, cancel := context.WithCancel(r.Context())
			w := r.wait(ctx, r.named(r.waiter, "other", holdlock.LockOptions{}))
			cancel()
			<-w
			synctest.Wait()
			mu.Lock()
			if good != i+1 {
				r.Errorf("after %d places were given up, %d were given back", i+1, good)
			}
			mu.Unlock()
			time.Sleep(17 * time.Millisecond)
		}
		release(r.T, other)
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
