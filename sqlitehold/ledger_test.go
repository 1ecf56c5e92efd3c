package sqlitehold

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
)

const aDay = 24 * time.Hour

// countAt writes what a program counts at a time: to the record of the day and to the sum.
func countAt(tb testing.TB, d *Driver, at time.Time) {
	tb.Helper()
	day := driver.DayOf(at)
	for _, to := range []driver.Day{day, -(day - day%driver.SumDays)} {
		check(tb, d.UpdateRecords(ctx, to, []string{"job"}, func(string, []byte) []byte { return []byte("x") }))
	}
}

// recordDays returns the days that have records.
func recordDays(tb testing.TB, d *Driver) map[driver.Day]bool {
	tb.Helper()
	days := map[driver.Day]bool{}
	check(tb, d.ReadRecords(ctx, math.MinInt32, math.MaxInt32, func(day driver.Day, _ string, _ []byte) error {
		days[day] = true
		return nil
	}))
	return days
}

// wantRecords fails if a record has gone that is to be kept at a time: of the last days and of the sums.
func wantRecords(tb testing.TB, what string, days map[driver.Day]bool, first, now time.Time) {
	tb.Helper()
	today := driver.DayOf(now)
	for day := driver.DayOf(first); day <= today; day++ {
		sum := -(day - day%driver.SumDays)
		if (today-day)*driver.Day(aDay/time.Hour) <= driver.Day(driver.DayTTL/time.Hour) && !days[day] {
			tb.Errorf("%s: the record of %d days ago has gone", what, today-day)
		}
		if (today+sum)*driver.Day(aDay/time.Hour) <= driver.Day(driver.RecordTTL/time.Hour) && !days[sum] {
			tb.Errorf("%s: the sum with %d days ago has gone", what, today-day)
		}
	}
}

// A program whose clock is wrong, or a machine on which all are for some hours, removes nothing that the others have counted.
func TestAWrongClockRemovesNoRecords(t *testing.T) {
	t.Parallel()
	for _, step := range []time.Duration{5 * aDay, 20 * aDay, 156 * aDay, 3650 * aDay, -150 * aDay} {
		t.Run(fmt.Sprint(int(step/aDay), " days"), func(t *testing.T) {
			t.Parallel()
			path, m := tempFile(t), newMachine()
			d := openOn(t, path, m)
			first := d.wall()
			for day := range 146 {
				countAt(t, d, d.wall())
				if day == 60 { // what is even further ahead stays for ever, and says nothing of what a clock says that is less so
					m.wall.Add((20_000 * aDay).Microseconds())
					countAt(t, d, d.wall())
					m.wall.Add((-20_000 * aDay).Microseconds())
				}
				if day == 130 { // in the evening, and over midnight
					for range 10 {
						m.wall.Add((step + 10*time.Hour).Microseconds())
						countAt(t, d, d.wall())
						m.wall.Add((4 * time.Hour).Microseconds())
						countAt(t, d, d.wall())
						m.wall.Add((-step - 14*time.Hour).Microseconds())
					}
					wantRecords(t, "beside a wrong clock", recordDays(t, d), first, d.wall())
				}
				if day%10 == 0 || day >= 130 {
					wantRecords(t, fmt.Sprintf("on day %d", day), recordDays(t, d), first, d.wall())
				}
				m.pass(aDay)
			}
		})
	}
}

// What is old goes, also in a file that is rarely used, and also if a clock was wrong long ago.
func TestOldRecordsGo(t *testing.T) {
	t.Parallel()
	for _, every := range []time.Duration{aDay, 7 * aDay, 40 * aDay} {
		path, m := tempFile(t), newMachine()
		d := openOn(t, path, m)
		m.wall.Add((3000 * aDay).Microseconds())
		countAt(t, d, d.wall())
		m.wall.Add((-3000 * aDay).Microseconds())
		for range 160 {
			m.pass(every)
			countAt(t, d, d.wall())
		}
		days := slices.Sorted(maps.Keys(recordDays(t, d)))
		if most := laterDays + laterSums + 2; len(days) > most {
			t.Errorf("with records every %v there are %d, want %d at most: %v", every, len(days), most, days)
		}
	}
}
