//go:build unix

package pghold

import (
	"fmt"
	"sync"
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
		Overtaken: true,
		Patience:  patience,
		NewStore: func(tb testing.TB) drivertest.Store {
			opts := SessionOptions{Schema: migrated(tb, p), Namespace: fmt.Sprint("suite ", namespaces.Add(1)), OnFrozen: frozen}
			var mu sync.Mutex
			var all []*SessionDriver
			return drivertest.Store{
				Open: func() (driver.Driver, error) {
					d, err := NewSessionDriver(testContext(tb), p.URL(), &opts)
					if err == nil {
						mu.Lock()
						defer mu.Unlock()
						all = append(all, d)
					}
					return d, err
				},
				Sever: func() error {
					mu.Lock()
					defer mu.Unlock()
					for _, d := range all {
						for _, pid := range d.backends() {
							if _, err := p.Rows(fmt.Sprintf("SELECT pg_terminate_backend(%d)", pid)); err != nil {
								return err
							}
						}
					}
					return nil
				},
				Leftovers: func() ([]string, error) { return leaseLeftovers(p, opts.Schema, opts.Namespace) },
			}
		},
	}
}

func TestSessionConformance(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	drivertest.Run(t, sessionHarness(p, Block))
}

func TestSessionMutants(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	drivertest.RunMutants(t, sessionHarness(p, Block))
}

func TestSessionHistory(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	for seed := range uint64(2) {
		drivertest.RunHistory(t, sessionHarness(p, Block), seed+1)
		drivertest.RunHistory(t, sessionHarness(p, Expire), seed+1)
	}
}

// backends are the server processes behind the sessions of a driver.
func (d *SessionDriver) backends() (pids []uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, s := range d.sessions {
		s.mu.Lock()
		if s.backend != 0 {
			pids = append(pids, s.backend)
		}
		s.mu.Unlock()
	}
	return pids
}
