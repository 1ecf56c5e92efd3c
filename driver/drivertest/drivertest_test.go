package drivertest_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/drivertest"
	"github.com/holdlock/holdlock/memhold"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func memory(virtual bool) drivertest.Harness {
	return drivertest.Harness{
		Virtual: virtual,
		NewStore: func(testing.TB) drivertest.Store {
			s := memhold.NewStore()
			return drivertest.Store{Open: func() (driver.Driver, error) {
				return memhold.NewDriver(&memhold.Options{Store: s}), nil
			}}
		},
	}
}

// The suite itself is tested here as other stores use it: in real time.

func TestRealTime(t *testing.T) { drivertest.Run(t, memory(false)) }

func TestMutantsInRealTime(t *testing.T) { drivertest.RunMutants(t, memory(false)) }
