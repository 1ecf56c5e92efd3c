//go:build unix

package pghold

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/drivertest"
	"github.com/holdlock/holdlock/internal/testenv"
)

var namespaces atomic.Int64

// sessionHarness makes each store in a schema and a namespace of its own: advisory locks know nothing of schemas.
func sessionHarness(p *testenv.Postgres, frozen Frozen) drivertest.Harness {
	return drivertest.Harness{
		Patience: patience,
		NewStore: func(tb testing.TB) drivertest.Store {
			opts := SessionOptions{Schema: migrated(tb, p), Namespace: fmt.Sprint("suite ", namespaces.Add(1)), OnFrozen: frozen}
			return drivertest.Store{
				Open:      func() (driver.Driver, error) { return NewSessionDriver(testContext(tb), p.URL(), &opts) },
				Leftovers: func() ([]string, error) { return leaseLeftovers(p, opts.Schema) },
			}
		},
	}
}

func TestSessionConformance(t *testing.T) {
	p := testenv.SharedPostgres(t)
	drivertest.Run(t, sessionHarness(p, Block))
}

func TestSessionMutants(t *testing.T) {
	p := testenv.SharedPostgres(t)
	drivertest.RunMutants(t, sessionHarness(p, Block))
}

func TestSessionHistory(t *testing.T) {
	p := testenv.SharedPostgres(t)
	for seed := range uint64(2) {
		drivertest.RunHistory(t, sessionHarness(p, Block), seed+1)
		drivertest.RunHistory(t, sessionHarness(p, Expire), seed+1)
	}
}
