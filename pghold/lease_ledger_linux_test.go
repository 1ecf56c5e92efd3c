package pghold

import (
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// Which records are old is said by the clock of the server, whatever a program's own says: one program whose clock is ahead would
// otherwise remove what all have counted.
func TestRecordsAreKeptByTheServersClock(t *testing.T) {
	t.Parallel()
	p, clock := testenv.StartPostgresWithClock(t)
	schema := migrated(t, p)
	d := leaseDriver(t, p.URL(), schema, LeaseOptions{})
	single, all := driver.Day(driver.DayTTL/(24*time.Hour)), driver.Day(driver.RecordTTL/(24*time.Hour))
	for _, ahead := range []time.Duration{150 * 24 * time.Hour, 20 * 24 * time.Hour, 0, -150 * 24 * time.Hour} { // the program's clock
		clock.Set(t, -ahead)
		today := driver.DayOf(time.Now().Add(-ahead))
		update := func(day driver.Day) {
			err := d.UpdateRecords(t.Context(), day, []string{"job"}, func(string, []byte) []byte { return []byte("x") })
			if err != nil {
				t.Fatal(err)
			}
		}
		old := []driver.Day{today - single - 5, -(today - all - 5)}
		kept := []driver.Day{0, today - single + 1, today - 1, today, today + 1, -today, -(today - all + 1)} // midnight may pass meanwhile
		have := func() map[driver.Day]bool {
			days := map[driver.Day]bool{}
			err := d.ReadRecords(t.Context(), -1<<31, 1<<31-1, func(day driver.Day, _ string, _ []byte) error {
				days[day] = true
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			return days
		}
		for _, day := range kept {
			update(day)
		}
		for _, day := range old {
			update(day)
		}
		for n := 0; have()[old[0]] || have()[old[1]]; n++ { // an update in fifty looks for old ones
			if n == 5000 {
				t.Fatalf("the program's clock being %v ahead: what is older than %v is still there: %v", ahead, driver.RecordTTL, have())
			}
			update(0)
		}
		days := have()
		for _, day := range kept {
			if !days[day] {
				t.Errorf("the program's clock being %v ahead, and today being %d: the record of day %d has gone", ahead, today, day)
			}
		}
		p.Do(t, inSchema(`DELETE FROM "holdlock".usage`, schema))
	}
}
