//go:build soak

package e2e

import "testing"

func TestCounterSoak(t *testing.T) { count(t, 50, 20, 0) }

func TestCounterSoakWithKills(t *testing.T) { count(t, 50, 20, 100) }
