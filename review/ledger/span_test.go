package ledger

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// Whatever day it is: the days that are looked at one by one are all there, are enough to see the last ones, and begin with a sum.
func TestCut(t *testing.T) {
	kept := driver.Day(driver.DayTTL / (24 * time.Hour))
	for today := driver.Day(20_000); today < 20_000+2*spanDays; today++ {
		c := cut(today)
		if c%spanDays != 0 || today-c >= kept || today-c < 3 {
			t.Errorf("on day %d days count from %d on, of %d that are kept", today, c, kept)
		}
	}
	for d, want := range map[driver.Day]driver.Day{20_000: -20_000, 20_009: -20_000, 20_010: -20_010} {
		if got := spanOf(d); got != want {
			t.Errorf("day %d is in sum %d, want %d", d, got, want)
		}
	}
}

// Every day counts once, on each day of a quarter and for each length of the look back.
func TestSpans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		begin := driver.DayOf(time.Now())
		for day := range driver.Day(95) {
			r := started(l, nil)
			granted(r, "a", 1)
			if err := r.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			today := begin + day
			for _, back := range []driver.Day{0, 1, 3, 7, 14, 30, 90} {
				locks, problems, err := Load(t.Context(), l, today-back, today+1)
				if err != nil || len(problems) > 0 || len(locks) != 1 {
					t.Fatalf("Load: %v, %v, %v", locks, problems, err)
				}
				got, want := driver.Day(locks[0].Total().Get(Granted)), min(day, back)+1
				slack := driver.Day(0)
				if today-back < cut(today) { // the first sum may begin before
					slack = spanDays - 1
				}
				if got < want || got > min(day+1, want+slack) {
					t.Errorf("day %d, %d days back: %d grants, want %d", day, back, got, want)
				}
			}
			time.Sleep(24 * time.Hour)
		}
		records := 0
		_ = l.ReadRecords(t.Context(), -1<<30, 1<<30, func(driver.Day, string, []byte) error { records++; return nil })
		if most := int((driver.RecordTTL+driver.DayTTL)/(24*time.Hour)) / 4; records > most {
			t.Errorf("%d records of one lock, want at most %d", records, most)
		}
	})
}
