package ledger

import (
	"time"

	"github.com/holdlock/holdlock/driver"
)

// Each batch goes to two records of a lock: that of its day, which is kept for some days, and the sum of the ten days to which that
// belongs, which is kept for as long as reviews look back. So a review sees the last days one by one, and a ledger has thirty records for
// a lock at most instead of a hundred. Nothing is ever moved from one to the other, so nothing can be counted in none or twice.

// spanDays is how many days a sum has.
const spanDays = driver.SumDays

// spanOf returns the sum to which a day belongs.
func spanOf(d driver.Day) driver.Day { return -(d - d%spanDays) }

// cut returns the day from which days are looked at one by one; before it there are sums. None of the days from there to today is
// collected yet, at least three are before today, and it is the first of a sum.
func cut(today driver.Day) driver.Day {
	single := driver.Day(driver.DayTTL/(24*time.Hour)) - 1 // a host's clock may be a day ahead
	oldest := today - single
	return -spanOf(oldest + spanDays - 1)
}
