//go:build soak && unix

package redishold

import (
	"testing"
	"time"
)

// TestSoakStorms is TestStorms for longer: thousands of turns in each storm.
func TestSoakStorms(t *testing.T) {
	for name, strike := range storms {
		t.Run(name, func(t *testing.T) {
			if overlaps := weather(t, strike, true, 5000, 3*time.Minute); overlaps > 0 {
				t.Errorf("%d overlaps", overlaps)
			}
		})
	}
}
