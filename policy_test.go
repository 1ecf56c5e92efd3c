package holdlock

import (
	"testing"

	"github.com/holdlock/holdlock/driver"
)

// The truth table of Harmful, cell by cell.
func TestPermit(t *testing.T) {
	fencings := []driver.Fencing{driver.NoTokens, driver.WhileDataSurvives, driver.Durable}
	guards := []Guard{Unguarded, Fenced, IdempotencyKey}
	records := []driver.Keeping{driver.NoRecords, driver.WhileItLasts, driver.SyncedRecords}
	cells := 0
	for _, d := range []DoubleRun{Undeclared, Harmless, Costly, Harmful} {
		for _, e := range []entry{entryLease, entryTransaction, entryHold} {
			for _, g := range guards {
				for _, f := range fencings {
					for _, k := range records {
						for _, accept := range []string{"", "the vendor refunds duplicates"} {
							want := d != Harmful || e == entryTransaction || accept != "" || g != Unguarded && f == driver.Durable ||
								e == entryHold && k == driver.SyncedRecords
							if got := permit(e, d, g, f, k, accept) == ""; got != want {
								t.Errorf("permit(%v, %v, %v, %v, %v, %q) = %v, want %v", e, d, g, f, k, accept, got, want)
							}
							cells++
						}
					}
				}
			}
		}
	}
	if cells != 648 {
		t.Errorf("%d cells", cells)
	}
}
