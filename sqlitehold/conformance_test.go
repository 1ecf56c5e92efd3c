package sqlitehold

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/drivertest"
)

func harness() drivertest.Harness {
	return drivertest.Harness{
		NewStore: func(tb testing.TB) drivertest.Store {
			path := filepath.Join(tb.TempDir(), "locks.db")
			return drivertest.Store{
				Open:      func() (driver.Driver, error) { return NewDriver(path, &Options{Namespace: "suite"}) },
				Leftovers: func() ([]string, error) { return leftovers(path) },
			}
		},
	}
}

// leftovers names what is in the file beside token counters: terms that are described, and waiters.
func leftovers(path string) ([]string, error) {
	w, err := connect(path, "ro", false)
	if err != nil {
		return nil, err
	}
	defer w.close()
	var left []string
	var row string
	for _, q := range []string{
		// Of a term that was not released its successor is told, so it stays as long as the counter does.
		`SELECT 'term ' || key FROM term WHERE state <> 1 AND broken IS NULL AND nonce || holder || coalesce(prior, '') <> ''`,
		`SELECT 'waiter ' || key || ' ' || address FROM waiter`,
	} {
		if err := w.all(q, nil, []any{&row}, func() { left = append(left, row) }); err != nil {
			return nil, fmt.Errorf("%s: %w", q, err)
		}
	}
	return left, nil
}

func TestConformance(t *testing.T) { drivertest.Run(t, harness()) }

func TestMutants(t *testing.T) { drivertest.RunMutants(t, harness()) }

func TestHistory(t *testing.T) {
	for seed := range uint64(3) {
		drivertest.RunHistory(t, harness(), seed+1)
	}
}
