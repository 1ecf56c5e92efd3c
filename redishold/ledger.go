package redishold

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// The records of one day are a hash, N:{usage:DAY}, with a field for each lock. A lock's slot is N:{:…}, so the two never meet.
func (d *Driver) usageKey(day driver.Day) string {
	return d.ns + ":{usage:" + strconv.Itoa(int(day)) + "}"
}

const (
	usageBatch = 200 // records in one request
	usageTries = 500 // as often as others may get in between; somebody gets on each time
)

// UpdateRecords implements driver.Ledger. A record is written if it is still the one that the new one was made from.
func (d *Driver) UpdateRecords(ctx context.Context, day driver.Day, locks []string, merge func(lock string, old []byte) []byte) error {
	const verb = "update the usage in"
	if err := d.usable(ctx, verb, "locks"); err != nil {
		return err
	}
	for len(locks) > 0 {
		n := min(len(locks), usageBatch)
		if err := d.updateRecords(ctx, d.usageKey(day), day.TTL(), locks[:n], merge); err != nil {
			return d.usageFailure(verb, d.usageKey(day), err)
		}
		locks = locks[n:]
	}
	return nil
}

func (d *Driver) updateRecords(ctx context.Context, key string, ttl time.Duration, locks []string, merge func(lock string, old []byte) []byte) error {
	for range usageTries {
		old, err := bounded(ctx, d, func(ctx context.Context) ([]any, error) { return d.client.HMGet(ctx, key, locks...).Result() })
		if err != nil {
			return err
		}
		args := []any{int64(ttl / time.Second)}
		for i, lock := range locks {
			was, _ := old[i].(string)
			var record []byte
			if old[i] != nil {
				record = []byte(was)
			}
			args = append(args, lock, was, merge(lock, record))
		}
		reply, err := d.call(ctx, d.scripts.ledger, []string{key}, args...)
		if err != nil {
			return err
		}
		late, ok := reply.([]any)
		if !ok {
			return fmt.Errorf("the script answered %v", reply)
		}
		if len(late) == 0 {
			return nil
		}
		var again []string
		for _, i := range late {
			n, ok := i.(int64)
			if !ok || n < 0 || n >= int64(len(locks)) {
				return fmt.Errorf("the script answered %v", reply)
			}
			again = append(again, locks[n])
		}
		locks = again
	}
	return fmt.Errorf("others changed it %d times in between", usageTries)
}

// ReadRecords implements driver.Ledger.
func (d *Driver) ReadRecords(ctx context.Context, first, last driver.Day, f func(day driver.Day, lock string, record []byte) error) error {
	const verb = "read the usage in"
	if err := d.usable(ctx, verb, "locks"); err != nil {
		return err
	}
	var foreign []string // keys that are none of ours
	var why error
	for _, day := range recordDays(first, last, driver.DayOf(time.Now())) {
		seen := map[string]bool{} // a scan may show a field twice
		for cursor := uint64(0); ; {
			type page struct {
				fields []string
				next   uint64
			}
			p, err := bounded(ctx, d, func(ctx context.Context) (p page, err error) {
				p.fields, p.next, err = d.client.HScan(ctx, d.usageKey(day), cursor, "", scanCount).Result()
				return p, err
			})
			if damaged(err) {
				foreign, why = append(foreign, d.usageKey(day)), err
				break
			}
			if err != nil {
				return d.failed(verb, recordsOf(day), err)
			}
			for i := 0; i+1 < len(p.fields); i += 2 {
				if seen[p.fields[i]] {
					continue
				}
				seen[p.fields[i]] = true
				if err := f(day, p.fields[i], []byte(p.fields[i+1])); err != nil {
					return err
				}
			}
			if cursor = p.next; cursor == 0 {
				break
			}
		}
	}
	if why != nil {
		return d.usageFailure(verb, strings.Join(foreign, " "), why)
	}
	return nil
}

// recordDays returns the days from first to last of which there can be records. None is older than this, nor younger but by a clock
// that is wrong, and nobody wants to ask for a million days.
func recordDays(first, last, today driver.Day) (days []driver.Day) {
	oldest, youngest := today-driver.Day(2*driver.RecordTTL/(24*time.Hour)), today+oddDays
	for day := max(first, -youngest); day <= min(last, -oldest); day++ { // sums: the younger, the more negative
		days = append(days, day)
	}
	if first <= 0 && last >= 0 {
		days = append(days, 0)
	}
	for day := max(first, oldest); day <= min(last, youngest); day++ {
		days = append(days, day)
	}
	return days
}

// usageFailure is failure for the records of a day, and says what helps if they are none.
func (d *Driver) usageFailure(verb, key string, err error) error {
	if damaged(err) {
		err = fmt.Errorf("%w; another program has written there: once you have moved it away, with RENAME or DEL, usage is counted again", err)
	}
	return d.failed(verb, key, err)
}

// oddDays is how far the clock of a program may be ahead of ours for its records to be found.
const oddDays = 3

// recordsOf names the records of a day for people.
func recordsOf(day driver.Day) string {
	switch {
	case day == 0:
		return "what locks are declared as"
	case day < 0:
		return "the days from " + (-day).Start().Format(time.DateOnly)
	}
	return day.Start().Format(time.DateOnly)
}
