package redishold

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// The server's clock is stepped forward over the TTL: exclusion is lost, which no client can prevent. The overlap happens,
// is told to both sides, tokens rise, and a resource that compares them is safe.
func TestClockForward(t *testing.T) {
	t.Parallel()
	for _, step := range []time.Duration{0, 5 * time.Second, time.Hour} { // those within the TTL are the control
		t.Run(step.String(), func(t *testing.T) {
			t.Parallel()
			const ttl = 9 * time.Second
			r, clock := testenv.StartRedisWithClock(t)
			truth := openDriver(t, r.Addr, nil)
			// Renewals wait until the rival has had its chance, so that what happens does not depend on who is quicker.
			p := testenv.StartProxy(t, r.Addr, nil)
			p.SetScript(func(up bool, data []byte) testenv.Verdict {
				if up && calls(truth.scripts.renew, "k")(data) {
					return testenv.Hold
				}
				return testenv.Pass
			})
			var first, second events
			resource := &resource{}
			holder := newLock(t, open(t, p.Addr, &Options{Client: holdlock.ClientOptions{Observer: &first}}), "k", ttl)
			rival := newLock(t, open(t, r.Addr, &Options{Client: holdlock.ClientOptions{Observer: &second}}), "k", ttl)

			ctx, done := context.WithCancel(t.Context())
			defer done()
			began, ended := make(chan driver.Token, 1), make(chan error, 1)
			go func() {
				ended <- holder.Do(ctx, func(ctx context.Context, lease *holdlock.Lease) error {
					resource.enter(lease.Token())
					defer resource.leave(lease.Token())
					began <- lease.Token()
					for ctx.Err() == nil {
						resource.write(lease.Token())
						time.Sleep(time.Millisecond)
					}
					return context.Cause(ctx)
				})
			}()
			token := <-began
			clock.Set(t, step)
			lease, err := rival.TryAcquire(t.Context())
			if step < ttl {
				if !errors.Is(err, holdlock.ErrHeld) {
					t.Fatalf("after a step of %v within the TTL the rival got %v", step, err)
				}
				done()
				if err := <-ended; !errors.Is(err, context.Canceled) || errors.Is(err, holdlock.ErrLost) {
					t.Errorf("the holder ended with %v", err)
				}
				if resource.overlaps != 0 || resource.stale != 0 || len(first.of(holdlock.Lost)) != 0 {
					t.Errorf("%d overlaps, %d stale writes, losses %v", resource.overlaps, resource.stale, first.of(holdlock.Lost))
				}
				return
			}
			if err != nil {
				t.Fatalf("the rival: %v", err)
			}
			resource.enter(lease.Token())
			resource.write(lease.Token())
			testenv.Eventually(t, "the holder writes beside its successor", func() bool { return resource.refused() > 0 })
			p.SetScript(nil)
			p.Free()
			if err := <-ended; !errors.Is(err, holdlock.ErrLost) {
				t.Errorf("the holder ended with %v, want ErrLost", err)
			}
			if resource.overlaps != 1 {
				t.Errorf("%d overlaps were counted, want 1", resource.overlaps)
			}
			if lost := first.of(holdlock.Lost); len(lost) != 1 || lost[0].Reason != holdlock.LossGone || lost[0].Token != token {
				t.Errorf("the holder's observer was told %+v", lost)
			}
			lapsed := second.of(holdlock.Lapsed)
			if len(lapsed) != 1 || lapsed[0].Ending != driver.Lapsed || lapsed[0].Prior == nil || lapsed[0].Prior.Token != token {
				t.Errorf("the successor's observer was told %+v", lapsed)
			}
			if lease.Token() <= token {
				t.Errorf("token %d after %d", lease.Token(), token)
			}
			// And back: the next token does not fall.
			clock.Set(t, 0)
			if err := lease.Release(t.Context()); err != nil {
				t.Errorf("Release: %v", err)
			}
			if next := grant(t, truth, request("k", time.Minute)); next.Token <= lease.Token() {
				t.Errorf("token %d after %d", next.Token, lease.Token())
			}
		})
	}
}

// The clock is stepped back: the key of a dead holder is blocked for the step and no longer, and can be broken. A holder
// that lives notices nothing.
func TestClockBack(t *testing.T) {
	t.Parallel()
	const ttl = time.Second
	for _, step := range []time.Duration{0, 2 * time.Second} { // the first is the control
		t.Run("dead/"+step.String(), func(t *testing.T) {
			t.Parallel()
			r, clock := testenv.StartRedisWithClock(t)
			first := grant(t, openDriver(t, r.Addr, nil), request("k", ttl)) // and is never heard of again
			clock.Set(t, -step)
			var told events
			l := newLock(t, open(t, r.Addr, &Options{Client: holdlock.ClientOptions{Observer: &told}}), "k", ttl)
			_, err := l.TryAcquire(t.Context())
			var held *holdlock.HeldError
			if !errors.As(err, &held) || held.FreeIn > step+ttl+3*time.Millisecond || held.FreeIn < step {
				t.Fatalf("after a step of %v back: %v", step, err)
			}
			lease, err := l.Acquire(t.Context())
			if err != nil {
				t.Fatalf("Acquire: %v", err)
			}
			if lapsed := told.of(holdlock.Lapsed); len(lapsed) != 1 || lease.Token() <= first.Token {
				t.Errorf("the successor has token %d after %d and was told %v", lease.Token(), first.Token, lapsed)
			}
		})
	}
	t.Run("broken", func(t *testing.T) {
		t.Parallel()
		r, clock := testenv.StartRedisWithClock(t)
		first := grant(t, openDriver(t, r.Addr, nil), request("k", ttl))
		clock.Set(t, -24*time.Hour)
		c := open(t, r.Addr, nil)
		info, ok, err := c.Inspect(t.Context(), "k", "")
		if err != nil || !ok || info.FreeIn < 23*time.Hour || info.Token != first.Token {
			t.Fatalf("Inspect: %+v, %v, %v", info, ok, err)
		}
		if err := c.Break(t.Context(), "k", "", info.Token, holdlock.BreakOptions{By: "test", Now: true}); err != nil {
			t.Fatal(err)
		}
		if lease := mustAcquire(t, newLock(t, c, "k", ttl)); lease.Token() <= first.Token {
			t.Errorf("token %d after %d", lease.Token(), first.Token)
		}
	})
	t.Run("released", func(t *testing.T) { // what is free stays free
		t.Parallel()
		r, clock := testenv.StartRedisWithClock(t)
		d := openDriver(t, r.Addr, nil)
		for _, end := range []string{"release", "break", "cool"} {
			clock.Set(t, 0)
			req := request(end, time.Minute)
			first := grant(t, d, req)
			var err error
			switch end {
			case "release":
				err = d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref})
			case "break":
				err = d.Break(t.Context(), &driver.BreakRequest{Ref: req.Ref, By: "test", Now: true})
			case "cool": // the control: a time that was asked for does grow by the step
				err = d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref, KeepFor: time.Second})
			}
			if err != nil {
				t.Fatalf("%s: %v", end, err)
			}
			clock.Set(t, -time.Hour)
			if end == "cool" {
				if term, ok := present(t, d, end); !ok || term.Remaining < time.Hour {
					t.Errorf("%s: the term is %+v, %v", end, term, ok)
				}
				continue
			}
			if g := grant(t, d, request(end, time.Minute)); g.Token <= first.Token {
				t.Errorf("%s: token %d after %d", end, g.Token, first.Token)
			}
		}
	})
	t.Run("alive", func(t *testing.T) {
		t.Parallel()
		r, clock := testenv.StartRedisWithClock(t)
		var told events
		c := open(t, r.Addr, &Options{Client: holdlock.ClientOptions{Observer: &told}})
		l := newLock(t, c, "k", 3*time.Second)
		lease := mustAcquire(t, l)
		clock.Set(t, -time.Hour)
		testenv.Eventually(t, "it is renewed twice", func() bool { return len(told.of(holdlock.Renewed)) >= 2 })
		if err := lease.Release(t.Context()); err != nil {
			t.Errorf("Release: %v", err)
		}
		if next := mustAcquire(t, l); next.Token() <= lease.Token() {
			t.Errorf("token %d after %d", next.Token(), lease.Token())
		}
	})
}

// A clock that is decades wrong changes nothing while it stays so, and tokens rise when it is set right.
func TestClockFarOff(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for name, at := range map[string]time.Time{
		"1970": time.Unix(100, 0), "2100": time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, clock := testenv.StartRedisWithClock(t)
			c := open(t, r.Addr, nil)
			l := newLock(t, c, "k", 3*time.Second)
			var last holdlock.Token
			for _, offset := range []time.Duration{at.Sub(now), at.Sub(now), 0, 0} {
				clock.Set(t, offset)
				lease := mustAcquire(t, l)
				if lease.Token() <= last {
					t.Errorf("token %d after %d", lease.Token(), last)
				}
				if _, err := l.TryAcquire(t.Context()); !errors.Is(err, holdlock.ErrHeld) {
					t.Errorf("while it is held: %v", err)
				}
				if err := lease.Release(t.Context()); err != nil {
					t.Errorf("Release: %v", err)
				}
				last = lease.Token()
			}
		})
	}
	t.Run("2300", func(t *testing.T) { // the numbers have run out
		t.Parallel()
		r, clock := testenv.StartRedisWithClock(t)
		clock.Set(t, 250*365*24*time.Hour)
		_, err := openDriver(t, r.Addr, nil).Acquire(t.Context(), request("k", time.Second))
		if !errors.Is(err, driver.ErrTokensExhausted) || !errors.Is(err, driver.ErrNotApplied) {
			t.Errorf("Acquire: %v, want ErrTokensExhausted", err)
		}
	})
}

// resource is what locks protect. It counts who is there together, and refuses writes with a token that is not the highest.
type resource struct {
	mu       sync.Mutex
	inside   map[driver.Token]bool
	overlaps int
	highest  driver.Token
	stale    int
}

func (r *resource) enter(token driver.Token) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inside == nil {
		r.inside = map[driver.Token]bool{}
	}
	if len(r.inside) > 0 {
		r.overlaps++
	}
	r.inside[token] = true
}

func (r *resource) leave(token driver.Token) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.inside, token)
}

func (r *resource) write(token driver.Token) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if token < r.highest {
		r.stale++
	}
	r.highest = max(r.highest, token)
}

func (r *resource) refused() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stale
}
