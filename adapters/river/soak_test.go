//go:build soak && unix

package riverlock

import "testing"

var soak = storm{n: 2000, workers: 4, kills: 25, rescue: true}

func TestSoakInTransactions(t *testing.T) { inTransactions(t, soak) }

func TestSoakUnderLeases(t *testing.T) { underLeases(t, soak) }
