package quorumhold

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/drivertest"
	"github.com/holdlock/holdlock/memhold"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	seeds = flag.Int("seeds", 0, "how many random schedules TestSchedules runs; 0 is a few")
	seed  = flag.Uint64("seed", 0, "run this one schedule only")
)

// harness tests a quorum of n nodes in memory. bend, if not nil, changes how each driver sees node i.
func harness(n int, opts *Options, bend func(i int, d driver.Driver) driver.Driver) drivertest.Harness {
	return drivertest.Harness{
		Virtual: true,
		NewStore: func(tb testing.TB) drivertest.Store {
			var stores []*memhold.Store
			for range n {
				stores = append(stores, memhold.NewStore())
			}
			return drivertest.Store{Open: func() (driver.Driver, error) {
				var nodes []driver.Driver
				for i, s := range stores {
					var d driver.Driver = memhold.NewDriver(&memhold.Options{Store: s})
					if bend != nil {
						d = bend(i, d)
					}
					nodes = append(nodes, d)
				}
				return NewDriver(nodes, opts)
			}}
		},
	}
}

func TestConformance(t *testing.T) {
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) { drivertest.Run(t, harness(n, nil, nil)) })
	}
}

// A term may last 1% of MaxTTL longer than asked. What a mutant adds has to be more than that to be noticed.
func TestMutants(t *testing.T) {
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) { drivertest.RunMutants(t, harness(n, &Options{MaxTTL: 2 * time.Second}, nil)) })
	}
}

func TestHistory(t *testing.T) {
	for _, n := range []int{3, 5} {
		for s := range uint64(2) {
			t.Run(fmt.Sprintf("%d/%d", n, s), func(t *testing.T) {
				t.Parallel()
				drivertest.RunHistory(t, harness(n, nil, nil), s)
			})
		}
	}
}

// rates lets the clocks of the nodes run differently from the caller's and from each other, by up to share.
func rates(share float64) func(i int, d driver.Driver) driver.Driver {
	return func(i int, d driver.Driver) driver.Driver {
		return skewed{d.(able), []float64{share, -share, share, 0, -share}[i%5]}
	}
}

// able is a driver that can do everything a quorum can use.
type able interface {
	driver.Driver
	driver.Breaker
	driver.Lister
	driver.Waiter
}

// skewed is a node whose clock runs faster by rate.
type skewed struct {
	able
	rate float64
}

func (s skewed) scale(t time.Duration) time.Duration { return time.Duration(float64(t) / (1 + s.rate)) }

func (s skewed) Acquire(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	r := *req
	r.TTL, r.MinHold = s.scale(r.TTL), s.scale(r.MinHold)
	g, err := s.able.Acquire(ctx, &r)
	var held *driver.HeldError
	if errors.As(err, &held) {
		held.Term.Remaining = s.shown(held.Term.Remaining)
	}
	return g, err
}

// shown turns a true duration into one on the node's clock.
func (s skewed) shown(t time.Duration) time.Duration { return time.Duration(float64(t) * (1 + s.rate)) }

func (s skewed) Inspect(ctx context.Context, key string) (driver.Term, bool, error) {
	t, ok, err := s.able.Inspect(ctx, key)
	t.Remaining = s.shown(t.Remaining)
	return t, ok, err
}

func (s skewed) Renew(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
	r := *req
	r.TTL = s.scale(r.TTL)
	return s.able.Renew(ctx, &r)
}

func (s skewed) Release(ctx context.Context, req *driver.ReleaseRequest) error {
	r := *req
	r.KeepFor = s.scale(r.KeepFor)
	return s.able.Release(ctx, &r)
}

// Clocks may differ by 0.5% from true time.
func TestConformanceWithSkewedClocks(t *testing.T) {
	drivertest.Run(t, harness(5, nil, rates(0.005)))
	drivertest.RunHistory(t, harness(5, nil, rates(0.005)), 7)
}

// earlyBy returns by how much a term ends too early, over nodes whose clocks run faster by share.
func earlyBy(t *testing.T, share float64, off broken) (early time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		const ttl = 20 * time.Second
		h := harness(3, nil, func(_ int, d driver.Driver) driver.Driver { return skewed{d.(able), share} })
		store := h.NewStore(t)
		a, _ := store.Open()
		defer a.Close()
		b, _ := store.Open()
		defer b.Close()
		a.(*Driver).broken = off
		sent := time.Now()
		if _, err := a.Acquire(t.Context(), request("k", ttl)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(ttl * 9 / 10)
		for {
			if _, err := b.Acquire(t.Context(), request("k", ttl)); err == nil {
				early = time.Until(sent.Add(ttl))
				return
			}
			time.Sleep(time.Millisecond)
		}
	})
	return early
}

func TestClockRates(t *testing.T) {
	if early := earlyBy(t, 0.005, broken{}); early > 0 {
		t.Errorf("clocks that run 0.5%% faster: the term ended %v early", early)
	}
	if early := earlyBy(t, 0.01, broken{}); early > 0 {
		t.Errorf("clocks that run 1%% faster: the term ended %v early", early)
	}
	if early := earlyBy(t, 0.02, broken{}); early <= 0 {
		t.Error("the control: clocks that run 2% faster should end a term early")
	}
	if early := earlyBy(t, 0.005, broken{drift: true}); early <= 0 {
		t.Error("the control: without the allowance for drift 0.5% should end a term early")
	}
}
