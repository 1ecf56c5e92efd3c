package ledger

import (
	"maps"
	"slices"

	"github.com/holdlock/holdlock/driver"
)

// DaysOfUse returns the days on which the lock was attempted or stood, in order. Of what an older release has counted it knows the last of a record only.
func (l *Lock) DaysOfUse() []driver.Day {
	days := map[driver.Day]bool{}
	for day, u := range l.Days {
		first := day - day%spanDays
		for i := range driver.Day(spanDays) {
			if u.Used>>i&1 == 1 {
				days[first+i] = true
			}
		}
		if u.Used == 0 && !u.LastUse().IsZero() {
			days[driver.DayOf(u.LastUse())] = true
		}
	}
	return slices.Sorted(maps.Keys(days))
}
