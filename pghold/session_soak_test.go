//go:build soak && unix

package pghold

import (
	"fmt"
	"testing"

	"github.com/holdlock/holdlock/driver/drivertest"
	"github.com/holdlock/holdlock/internal/testenv"
)

func TestSoakSessionHistory(t *testing.T) {
	p := testenv.SharedPostgres(t)
	for seed := range uint64(40) {
		for _, frozen := range []Frozen{Block, Expire} {
			t.Run(fmt.Sprint(seed, frozen), func(t *testing.T) {
				t.Parallel()
				drivertest.RunHistory(t, sessionHarness(p, frozen), 100+seed)
			})
		}
	}
}
