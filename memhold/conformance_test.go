package memhold

import (
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
