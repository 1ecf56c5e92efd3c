package faultdriver_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/drivertest"
	"github.com/holdlock/holdlock/driver/faultdriver"
	"github.com/holdlock/holdlock/memhold"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var bg = context.Background()

// request asks for the key "k" under a nonce that is n only.
func request(n int) *driver.AcquireRequest {
	return &driver.AcquireRequest{Ref: driver.Ref{Key: "k", Nonce: fmt.Sprintf("%032x", n)}, TTL: time.Minute}
}

// pair returns a driver with faults, and one without on the same store to see what really happened.
func pair(script faultdriver.Script) (*faultdriver.Driver, *memhold.Driver) {
	s := memhold.NewStore()
	return faultdriver.New(memhold.NewDriver(&memhold.Options{Store: s}), script), memhold.NewDriver(&memhold.Options{Store: s})
}

func stands(t *testing.T, d driver.Lister) bool {
	t.Helper()
	_, ok, err := d.Inspect(bg, "k")
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

func TestADroppedRequestDoesNotReachTheStore(t *testing.T) {
	own := errors.New("connection refused")
	d, under := pair(faultdriver.First(
		faultdriver.On(faultdriver.Acquire, 1, 1, faultdriver.Fault{Drop: true}),
		faultdriver.On(faultdriver.Acquire, 2, 3, faultdriver.Fault{Err: own}),
	))
	for n, want := range []error{faultdriver.ErrFault, own, own} {
		if _, err := d.Acquire(bg, request(1)); !errors.Is(err, want) {
			t.Errorf("call %d: got %v, want %v", n+1, err, want)
		}
		if stands(t, under) {
			t.Fatalf("call %d reached the store", n+1)
		}
	}
	if _, err := d.Acquire(bg, request(1)); err != nil {
		t.Errorf("call 4 has no fault, got %v", err)
	}
	if got := d.Count(faultdriver.Acquire); got != 4 {
		t.Errorf("Count = %d, want 4", got)
	}
}

func TestALostReplyComesFromAStoreThatHasActed(t *testing.T) {
	d, under := pair(func(c faultdriver.Call) faultdriver.Fault { return faultdriver.Fault{Lose: c.N == 1} })
	if _, err := d.Acquire(bg, request(1)); !errors.Is(err, faultdriver.ErrFault) {
		t.Errorf("Acquire: %v", err)
	}
	if !stands(t, under) {
		t.Fatal("the store has not acted")
	}
	if _, err := d.Renew(bg, &driver.RenewRequest{Ref: request(1).Ref, TTL: time.Hour}); !errors.Is(err, faultdriver.ErrFault) {
		t.Errorf("Renew: %v", err)
	}
	if term, _, _ := under.Inspect(bg, "k"); term.Remaining < 50*time.Minute {
		t.Errorf("the store has not renewed: %v left", term.Remaining)
	}
	if err := d.Release(bg, &driver.ReleaseRequest{Ref: request(1).Ref}); !errors.Is(err, faultdriver.ErrFault) {
		t.Errorf("Release: %v", err)
	}
	if stands(t, under) {
		t.Error("the store has not released")
	}
	if err := d.Release(bg, &driver.ReleaseRequest{Ref: request(1).Ref}); !errors.Is(err, driver.ErrGone) {
		t.Errorf("the second Release: %v", err)
	}
}

func TestDelays(t *testing.T) {
	type outcome struct {
		took    time.Duration
		err     error
		applied bool
	}
	for _, tc := range []struct {
		name  string
		fault faultdriver.Fault
		limit time.Duration // of ctx
		want  outcome
		later bool // applied in the end
	}{
		{"late request", faultdriver.Fault{Before: time.Second}, time.Minute, outcome{time.Second, nil, true}, true},
		{"late reply", faultdriver.Fault{After: time.Second}, time.Minute, outcome{time.Second, nil, true}, true},
		{"both", faultdriver.Fault{Before: time.Second, After: time.Second}, time.Minute, outcome{2 * time.Second, nil, true}, true},
		{
			"request given up",
			faultdriver.Fault{Before: 3 * time.Second},
			time.Second,
			outcome{time.Second, context.DeadlineExceeded, false},
			false,
		},
		{
			"reply given up",
			faultdriver.Fault{After: 3 * time.Second},
			time.Second,
			outcome{time.Second, context.DeadlineExceeded, true},
			true,
		},
		{
			"ghost",
			faultdriver.Fault{Before: 3 * time.Second, Ghost: true},
			time.Second,
			outcome{time.Second, context.DeadlineExceeded, false},
			true,
		},
		{
			"ghost in time",
			faultdriver.Fault{Before: time.Second, Ghost: true},
			time.Minute,
			outcome{time.Second, nil, true},
			true,
		},
		{
			"dropped ghost",
			faultdriver.Fault{Before: time.Second, Ghost: true, Drop: true},
			time.Minute,
			outcome{time.Second, faultdriver.ErrFault, false},
			false,
		},
		{
			"hung",
			faultdriver.Fault{Hang: faultdriver.UntilDone, Ghost: true},
			time.Minute,
			outcome{time.Minute, context.DeadlineExceeded, false},
			false,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, under := pair(func(faultdriver.Call) faultdriver.Fault { return tc.fault })
				ctx, cancel := context.WithTimeout(bg, tc.limit)
				defer cancel()
				start := time.Now()
				_, err := d.Acquire(ctx, request(1))
				if got := time.Since(start); got != tc.want.took {
					t.Errorf("took %v, want %v", got, tc.want.took)
				}
				if !errors.Is(err, tc.want.err) {
					t.Errorf("got %v, want %v", err, tc.want.err)
				}
				if got := stands(t, under); got != tc.want.applied {
					t.Errorf("applied when it returned: %v, want %v", got, tc.want.applied)
				}
				if err := d.Close(); err != nil { // waits for the ghost
					t.Errorf("Close: %v", err)
				}
				if got := stands(t, under); got != tc.later {
					t.Errorf("applied in the end: %v, want %v", got, tc.later)
				}
			})
		})
	}
}

func TestAHardHangIgnoresCtxUntilThaw(t *testing.T) {
	for _, end := range []string{"Thaw", "Close"} {
		t.Run(end, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, under := pair(faultdriver.On(faultdriver.Acquire, 1, 0, faultdriver.Fault{Hang: faultdriver.Hard}))
				ctx, cancel := context.WithTimeout(bg, time.Second)
				defer cancel()
				done := make(chan error, 1)
				go func() {
					_, err := d.Acquire(ctx, request(1))
					done <- err
				}()
				time.Sleep(time.Minute)
				synctest.Wait()
				select {
				case err := <-done:
					t.Fatalf("the call came back while the store hung: %v", err)
				default:
				}
				if end == "Thaw" {
					d.Thaw()
					if err := <-done; err != nil || !stands(t, under) {
						t.Errorf("after Thaw the request goes on: got %v", err)
					}
				}
				if err := d.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
				if end == "Close" {
					<-done // either way; what counts is that it comes back
				}
			})
		})
	}
}

func TestAFrozenStoreServesWhoHasGoneOnWaking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, under := pair(faultdriver.On(faultdriver.Acquire, 1, 1, faultdriver.Fault{Hang: faultdriver.Hard, Ghost: true}))
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		if _, err := d.Acquire(ctx, request(1)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if stands(t, under) {
			t.Error("a frozen store has acted")
		}
		d.Thaw()
		synctest.Wait()
		if !stands(t, under) {
			t.Error("the store has not served the request on waking")
		}
	})
}

func TestEveryCallCanGoWrong(t *testing.T) {
	d, _ := pair(func(faultdriver.Call) faultdriver.Fault { return faultdriver.Fault{Drop: true} })
	ref := request(1).Ref
	for op, do := range map[faultdriver.Op]func() error{
		faultdriver.Acquire: func() error { _, err := d.Acquire(bg, request(1)); return err },
		faultdriver.Renew:   func() error { _, err := d.Renew(bg, &driver.RenewRequest{Ref: ref, TTL: time.Minute}); return err },
		faultdriver.RenewBatch: func() error {
			results := d.RenewBatch(bg, []*driver.RenewRequest{{Ref: ref}, {Ref: ref}})
			if len(results) != 2 || results[0].Err == nil {
				return fmt.Errorf("results %v", results)
			}
			return results[1].Err
		},
		faultdriver.Release: func() error { return d.Release(bg, &driver.ReleaseRequest{Ref: ref}) },
		faultdriver.Break:   func() error { return d.Break(bg, &driver.BreakRequest{Ref: ref}) },
		faultdriver.List:    func() error { _, err := d.List(bg, "", "", 1); return err },
		faultdriver.Inspect: func() error { _, _, err := d.Inspect(bg, "k"); return err },
		faultdriver.Watch:   func() error { _, _, err := d.Watch(bg, "k"); return err },
		faultdriver.Enqueue: func() error { _, err := d.Enqueue(bg, request(1)); return err },
		faultdriver.Attend:  func() error { return d.Attend(bg, []*driver.AcquireRequest{request(1)})[0].Err },
		faultdriver.Leave:   func() error { return d.Leave(bg, "k", []driver.Leaving{{Request: request(1)}}) },
		faultdriver.Listen:  func() error { return d.Listen(bg, func(driver.Push) {}) },
		faultdriver.UpdateRecords: func() error {
			return d.UpdateRecords(bg, 1, []string{"a"}, func(_ string, old []byte) []byte { return old })
		},
		faultdriver.ReadRecords: func() error {
			return d.ReadRecords(bg, 1, 2, func(driver.Day, string, []byte) error { return nil })
		},
	} {
		if err := do(); !errors.Is(err, faultdriver.ErrFault) {
			t.Errorf("%s: got %v, want ErrFault", op, err)
		}
		if got := d.Count(op); got != 1 {
			t.Errorf("Count(%s) = %d, want 1", op, got)
		}
	}
}

func TestLostHints(t *testing.T) {
	d, under := pair(faultdriver.On(faultdriver.Watch, 1, 1, faultdriver.Fault{Lose: true}))
	deaf, stopDeaf, err := d.Watch(bg, "deaf")
	if err != nil {
		t.Fatal(err)
	}
	good, stopGood, err := d.Watch(bg, "k")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"deaf", "k"} {
		req := request(1)
		req.Ref.Key = key
		if _, err := under.Acquire(bg, req); err != nil {
			t.Fatal(err)
		}
		if err := under.Release(bg, &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
			t.Fatal(err)
		}
	}
	if len(deaf) != 0 || len(good) != 1 {
		t.Errorf("hints: %d lost ones, %d good ones", len(deaf), len(good))
	}
	stopDeaf()
	stopGood()
}

func TestLostPushes(t *testing.T) {
	for _, lose := range []bool{false, true} {
		d, _ := pair(faultdriver.On(faultdriver.Listen, 1, 1, faultdriver.Fault{Lose: lose}))
		heard := 0
		if err := d.Listen(bg, func(driver.Push) { heard++ }); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Acquire(bg, request(1)); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Enqueue(bg, request(2)); err == nil {
			t.Fatal("granted")
		}
		if err := d.Release(bg, &driver.ReleaseRequest{Ref: request(1).Ref}); err != nil {
			t.Fatal(err)
		}
		if s := d.Attend(bg, []*driver.AcquireRequest{request(2)}); !s[0].Granted {
			t.Errorf("the hand-over: %+v", s[0])
		}
		if want := map[bool]int{false: 1, true: 0}[lose]; heard != want {
			t.Errorf("lose %v: %d pushes, want %d", lose, heard, want)
		}
	}
}

// bare has none of the optional interfaces.
type bare struct{ driver.Driver }

func TestOptionalInterfacesAreThoseOfTheInner(t *testing.T) {
	over := func(inner driver.Driver) []bool {
		d := faultdriver.New(faultdriver.New(inner, nil), nil) // twice: As looks through all layers
		_, a := driver.As[driver.BatchRenewer](d)
		_, b := driver.As[driver.Waiter](d)
		_, c := driver.As[driver.Lister](d)
		_, e := driver.As[driver.Breaker](d)
		_, f := driver.As[driver.Queue](d)
		return []bool{a, b, c, e, f}
	}
	if got := over(memhold.NewDriver(nil)); slices.Contains(got, false) {
		t.Errorf("over a store that has all: %v", got)
	}
	if got := over(bare{memhold.NewDriver(nil)}); slices.Contains(got, true) {
		t.Errorf("over a store that has none: %v", got)
	}
	d := faultdriver.New(bare{memhold.NewDriver(nil)}, nil)
	if _, _, err := d.Watch(bg, "k"); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Watch: %v", err)
	}
	if _, err := d.List(bg, "", "", 1); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("List: %v", err)
	}
}

func TestSeededDoesNotDependOnInterleaving(t *testing.T) {
	odds := faultdriver.Odds{Drop: 0.2, Lose: 0.2, Before: 0.3, After: 0.3, Ghost: 0.5, Hang: 0.1, MaxDelay: time.Second}
	one, two := faultdriver.Seeded(7, odds), faultdriver.Seeded(7, odds)
	other, differs := faultdriver.Seeded(8, odds), false
	var want []faultdriver.Fault
	hits := 0
	for n := 1; n <= 1000; n++ {
		c := faultdriver.Call{Op: faultdriver.Renew, N: n}
		want = append(want, one(c))
		differs = differs || other(c) != want[n-1]
		if want[n-1].Drop {
			hits++
		}
	}
	if !differs {
		t.Error("another seed gives the same faults")
	}
	if hits < 130 || hits > 270 {
		t.Errorf("%d of 1000 calls were dropped, the odds were 0.2", hits)
	}
	got := make([]faultdriver.Fault, 1000)
	var wg sync.WaitGroup
	for n := 1000; n >= 1; n-- {
		wg.Go(func() { got[n-1] = two(faultdriver.Call{Op: faultdriver.Renew, N: n}) })
	}
	wg.Wait()
	if !slices.Equal(got, want) {
		t.Error("the same seed gives other faults in another order")
	}
}

// Without a script the wrapper is a store like the one it wraps.
func TestWithoutFaultsItConforms(t *testing.T) {
	drivertest.Run(t, drivertest.Harness{Virtual: true, NewStore: func(testing.TB) drivertest.Store {
		s := memhold.NewStore()
		return drivertest.Store{Open: func() (driver.Driver, error) {
			return faultdriver.New(memhold.NewDriver(&memhold.Options{Store: s}), nil), nil
		}}
	}})
}
