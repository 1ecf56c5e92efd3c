package memhold

import (
	"flag"
	"fmt"
	"testing"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/drivertest"
)

func harness() drivertest.Harness {
	return drivertest.Harness{
		Virtual: true,
		NewStore: func(tb testing.TB) drivertest.Store {
			s := NewStore()
			return drivertest.Store{Open: func() (driver.Driver, error) { return NewDriver(&Options{Store: s}), nil }}
		},
	}
}

func TestConformance(t *testing.T) { drivertest.Run(t, harness()) }

func TestMutants(t *testing.T) { drivertest.RunMutants(t, harness()) }

// seed lets TestHistory be run with other seeds than the first few: go test ./memhold -run History -seed 42
var seed = flag.Uint64("seed", 0, "seed of TestHistory; 0 tries several")

func TestHistory(t *testing.T) {
	seeds := []uint64{2, 3, 4}
	if *seed != 0 {
		seeds = []uint64{*seed}
	}
	for _, s := range seeds {
		t.Run(fmt.Sprint(s), func(t *testing.T) {
			t.Parallel()
			drivertest.RunHistory(t, harness(), s)
		})
	}
}

func BenchmarkStore(b *testing.B) { drivertest.RunBenchmarks(b, harness()) }
