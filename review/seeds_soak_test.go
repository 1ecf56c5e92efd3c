//go:build soak

package review

import (
	"testing"
	"testing/synctest"
)

// TestSoakSeeds is both simulations over many seeds: 200 of each, and a tenth of that under the race detector, to which seeds do not matter.
func TestSoakSeeds(t *testing.T) {
	many := uint64(200)
	if raceDetector {
		many = 20
	}
	for n := range many {
		t.Run("simulation", func(t *testing.T) {
			t.Parallel()
			judgeLives(t, n+1)
		})
		t.Run("users", func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { compare(t, n+1) })
		})
	}
}
