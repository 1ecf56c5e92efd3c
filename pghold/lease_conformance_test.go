//go:build unix

package pghold

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/drivertest"
	"github.com/holdlock/holdlock/internal/testenv"
)

// leaseHarness makes each store in a namespace of its own; url is where the drivers connect.
func leaseHarness(tb testing.TB, p *testenv.Postgres, url string) drivertest.Harness {
	tb.Helper()
	schema := migrated(tb, p)
	var stores atomic.Int64
	return drivertest.Harness{
		Overtaken: true,
		Patience:  patience,
		NewStore: func(tb testing.TB) drivertest.Store {
			namespace := fmt.Sprintf("suite %d", stores.Add(1))
			return drivertest.Store{
				Open: func() (driver.Driver, error) {
					return NewLeaseDriver(testContext(tb), url, &LeaseOptions{Schema: schema, Namespace: namespace, MaxConns: 2})
				},
				Leftovers: func() ([]string, error) { return leaseLeftovers(p, schema, namespace) },
			}
		},
	}
}

// leaseLeftovers names what is in the schema beside token counters: terms that are described, and waiters.
func leaseLeftovers(p *testenv.Postgres, schema, namespace string) ([]string, error) {
	return p.Rows(inSchema(strings.ReplaceAll(`
		SELECT 'term ' || key FROM "holdlock".lease
		WHERE namespace = 'NAMESPACE' AND state <> 1 AND broken IS NULL AND holder || coalesce(prior, '') <> '' UNION ALL
		SELECT 'waiter ' || key || ' ' || channel FROM "holdlock".waiter WHERE namespace = 'NAMESPACE'`, "NAMESPACE", namespace), schema))
}

func TestLeaseConformance(t *testing.T) {
	p := testenv.SharedPostgres(t)
	drivertest.Run(t, leaseHarness(t, p, p.URL()))
}

func TestLeaseConformanceBehindPgbouncer(t *testing.T) {
	p := testenv.SharedPostgres(t)
	b := testenv.StartPgbouncer(t, p, "transaction")
	drivertest.Run(t, leaseHarness(t, p, b.URL()))
}

func TestLeaseMutants(t *testing.T) {
	p := testenv.SharedPostgres(t)
	drivertest.RunMutants(t, leaseHarness(t, p, p.URL()))
}

func TestLeaseHistory(t *testing.T) {
	p := testenv.SharedPostgres(t)
	b := testenv.StartPgbouncer(t, p, "transaction")
	for seed := range uint64(2) {
		drivertest.RunHistory(t, leaseHarness(t, p, p.URL()), seed+1)
		drivertest.RunHistory(t, leaseHarness(t, p, b.URL()), seed+1)
	}
}
