//go:build soak

package once_test

import "testing"

// Many more histories than in every run of the tests.
func TestHistorySoak(t *testing.T) {
	*seeds = 20_000
	TestHistory(t)
}
