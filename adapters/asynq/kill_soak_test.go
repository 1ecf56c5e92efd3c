//go:build soak && unix

package asynqonce

import "testing"

// 2,000 tasks published twice, to four workers that are killed at work.
func TestSoakKills(t *testing.T) {
	c := startCrew(t, "once", 4)
	kills(c, 2000, 30)
}
