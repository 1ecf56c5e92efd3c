package quorumhold

import (
	"flag"
	"fmt"
	"testing"
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
		for s := range uint64(3) {
			t.Run(fmt.Sprintf("%d/%d", n, s), func(t *testing.T) {
				t.Parallel()
				drivertest.RunHistory(t, harness(n, nil, nil), s)
			})
		}
	}
}
