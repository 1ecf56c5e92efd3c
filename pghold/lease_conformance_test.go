//go:build unix

package pghold

import (
	"context"
	"testing"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/drivertest"
	"github.com/holdlock/holdlock/internal/testenv"
)

// leaseHarness makes each store in a schema of its own; url is where the drivers connect.
func leaseHarness(p *testenv.Postgres, url string) drivertest.Harness {
	return drivertest.Harness{
		Patience: patience,
		NewStore: func(tb testing.TB) drivertest.Store {
			schema := migrated(tb, p)
			return drivertest.Store{
				Open: func() (driver.Driver, error) {
					return NewLeaseDriver(testContext(tb), url, &LeaseOptions{Schema: schema, Namespace: "suite", MaxConns: 2})
				},
				Leftovers: func() ([]string, error) { return leaseLeftovers(p, schema) },
			}
		},
	}
}

// leaseLeftovers names what is in the schema beside token counters: terms that are described, and waiters.
func leaseLeftovers(p *testenv.Postgres, schema string) ([]string, error) {
	return p.Rows(inSchema(`
		SELECT 'term ' || key FROM "holdlock".lease
		WHERE state <> 1 AND broken IS NULL AND holder || coalesce(prior, '') <> '' UNION ALL
		SELECT 'waiter ' || key || ' ' || channel FROM "holdlock".waiter`, schema))
}

func TestLeaseConformance(t *testing.T) {
	p := testenv.SharedPostgres(t)
	drivertest.Run(t, leaseHarness(p, p.URL()))
}

func TestLeaseConformanceBehindPgbouncer(t *testing.T) {
	p := testenv.SharedPostgres(t)
	b := testenv.StartPgbouncer(t, p, "transaction")
	drivertest.Run(t, leaseHarness(p, b.URL()))
}

func TestLeaseMutants(t *testing.T) {
	p := testenv.SharedPostgres(t)
	drivertest.RunMutants(t, leaseHarness(p, p.URL()))
}

func TestLeaseHistory(t *testing.T) {
	p := testenv.SharedPostgres(t)
	b := testenv.StartPgbouncer(t, p, "transaction")
	for seed := range uint64(2) {
		drivertest.RunHistory(t, leaseHarness(p, p.URL()), seed+1)
		drivertest.RunHistory(t, leaseHarness(p, b.URL()), seed+1)
	}
}

var _ = context.Background
