package drivertest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// R12: each record of the ledger changes in one atomic step, and no lock has to do with it.
var ledgerCases = []testCase{
	{"R12/WhatIsWrittenIsRead", func(r *rig) {
		l := r.ledger(r.open())
		if l == nil {
			return
		}
		names := []string{"a", "A", "with space", "ünï/{}\n'\"", "a\x01"}
		for _, day := range []driver.Day{0, today(), today() + 1, -today(), -today() + 9} {
			r.update(l, day, names, func(lock string, old []byte) []byte {
				if old != nil {
					r.Errorf("R12: the record of %q on day %d is %q before anybody wrote it", lock, day, old)
				}
				return fmt.Appendf(nil, "%d \x00\xff %s", day, lock)
			})
		}
		other := r.ledger(r.open())
		got := r.records(other, 1, today())
		if len(got) != len(names) {
			r.Errorf("R12: today has %d records, want %d", len(got), len(names))
		}
		for _, lock := range names {
			if want := fmt.Sprintf("%d \x00\xff %s", today(), lock); got[fmt.Sprint(today(), " ", lock)] != want {
				r.Errorf("R12: the record of %q is %q, want %q", lock, got[fmt.Sprint(today(), " ", lock)], want)
			}
		}
		for _, c := range []struct{ first, last, days driver.Day }{{0, 0, 1}, {-today(), -today(), 1}, {-today() - 1, -today() + 20, 2}} {
			if n := len(r.records(other, c.first, c.last)); n != len(names)*int(c.days) {
				r.Errorf("R12: days %d to %d have %d records, want %d", c.first, c.last, n, len(names)*int(c.days))
			}
		}
	}},
	{"R12/MergeSeesWhatIsThere", func(r *rig) {
		a, b := r.ledger(r.open()), r.ledger(r.open())
		if a == nil {
			return
		}
		for i, l := range []driver.Ledger{a, b, a} {
			r.update(l, today(), []string{"x"}, func(_ string, old []byte) []byte {
				if len(old) != i {
					r.Errorf("R12: the record is %q before the update number %d", old, i)
				}
				return append(bytes.Clone(old), 'x')
			})
		}
	}},
	{"R12/NoUpdateUndoesAnother", func(r *rig) {
		const programs, rounds = 4, 25
		names := []string{"a", "b", "c"}
		var wg sync.WaitGroup
		for range programs {
			l := r.ledger(r.open())
			if l == nil {
				return
			}
			wg.Go(func() {
				for range rounds {
					err := l.UpdateRecords(r.ctx, today(), names, func(_ string, old []byte) []byte {
						n := uint64(1)
						if old != nil {
							n += binary.BigEndian.Uint64(old)
						}
						return binary.BigEndian.AppendUint64(nil, n)
					})
					if err != nil {
						r.Errorf("UpdateRecords: %v", err)
					}
				}
			})
		}
		wg.Wait()
		for id, record := range r.records(r.ledger(r.open()), today(), today()) {
			if n := binary.BigEndian.Uint64([]byte(record)); n != programs*rounds {
				r.Errorf("R12: record %s has counted %d of %d updates", id, n, programs*rounds)
			}
		}
	}},
	{"R12/LargeAndMany", func(r *rig) {
		l := r.ledger(r.open())
		if l == nil {
			return
		}
		var names []string
		for i := range 1001 {
			names = append(names, fmt.Sprintf("lock%04d", i))
		}
		r.update(l, today(), names, func(lock string, _ []byte) []byte { return []byte(lock) })
		large := bytes.Repeat([]byte{7}, driver.MaxRecord)
		r.update(l, today(), names[:1], func(string, []byte) []byte { return large })
		got := r.records(l, today(), today())
		if len(got) != len(names) || got[fmt.Sprint(today(), " lock0000")] != string(large) || got[fmt.Sprint(today(), " lock1000")] != "lock1000" {
			r.Errorf("R12: %d records, want %d", len(got), len(names))
		}
	}},
	{"R12/ReadingStopsAtAnError", func(r *rig) {
		l := r.ledger(r.open())
		if l == nil {
			return
		}
		r.update(l, today(), []string{"a", "b"}, func(string, []byte) []byte { return []byte("x") })
		enough, n := errors.New("enough"), 0
		err := l.ReadRecords(r.ctx, today(), today(), func(driver.Day, string, []byte) error {
			n++
			return enough
		})
		if !errors.Is(err, enough) || n != 1 {
			r.Errorf("R12: ReadRecords called %d times and returned %v", n, err)
		}
	}},
	{"R12/AnyDays", func(r *rig) { // a range that has all days in it is read in no time
		l := r.ledger(r.open())
		if l == nil {
			return
		}
		days := []driver.Day{-today(), 0, today() - 1, today()}
		for _, day := range days {
			r.update(l, day, []string{"a"}, func(string, []byte) []byte { return []byte("x") })
		}
		if got := r.records(l, math.MinInt32, math.MaxInt32); len(got) != len(days) {
			r.Errorf("R12: of %d records, %d are found in all days: %v", len(days), len(got), got)
		}
	}},
	{"R12/ADayAheadEndsNoOther", func(r *rig) { // a program whose clock is ahead writes to days that have not come
		l := r.ledger(r.open())
		if l == nil {
			return
		}
		write := func(day driver.Day) {
			r.update(l, day, []string{"a"}, func(string, []byte) []byte { return []byte("x") })
		}
		first := today() - driver.Day(driver.DayTTL/(24*time.Hour)) + 1 // midnight may pass meanwhile
		days := []driver.Day{0, first, today() - 1, today(), -first, -today()}
		for _, day := range days {
			write(day)
		}
		ahead := today() + 150
		for range 100 { // stores may look for old ones now and then only
			write(ahead)
			write(-ahead)
		}
		got := r.records(l, -today(), today())
		for _, day := range days {
			if got[fmt.Sprint(day, " a")] == "" {
				r.Errorf("R12: the record of day %d has gone, today being %d, since somebody wrote to day %d", day, today(), ahead)
			}
		}
	}},
	{"R12/LocksAreNotTouched", func(r *rig) {
		d := r.open()
		l := r.ledger(d)
		if l == nil {
			return
		}
		t := r.acquire(d, "a", r.long)
		r.update(l, today(), []string{"a"}, func(string, []byte) []byte { return []byte("x") })
		if lister := r.lister(d); lister != nil {
			if got := keysOf(r.list(lister, "", "", 10)); len(got) != 1 {
				r.Errorf("R12: List shows %q beside a record, want the lock alone", got)
			}
		}
		r.release(t)
	}},
	{"R12/EndedContext", func(r *rig) {
		l := r.ledger(r.open())
		if l == nil {
			return
		}
		ctx, cancel := context.WithCancel(r.ctx)
		cancel()
		if err := l.UpdateRecords(ctx, today(), []string{"a"}, func(string, []byte) []byte { return []byte("x") }); !errors.Is(err, context.Canceled) {
			r.Errorf("R9: UpdateRecords with an ended context: %v", err)
		}
		if err := l.ReadRecords(ctx, 1, today(), func(driver.Day, string, []byte) error { return nil }); !errors.Is(err, context.Canceled) {
			r.Errorf("R9: ReadRecords with an ended context: %v", err)
		}
		if n := len(r.records(l, today(), today())); n != 0 {
			r.Errorf("R9: an update with an ended context wrote %d records", n)
		}
	}},
}

// today is the day that is written to: stores may refuse to look far back.
func today() driver.Day { return driver.DayOf(time.Now()) }

// ledger returns the driver's ledger, or nil if it has none.
func (r *rig) ledger(d driver.Driver) driver.Ledger {
	l, _ := driver.As[driver.Ledger](d)
	return l
}

func (r *rig) update(l driver.Ledger, day driver.Day, locks []string, merge func(string, []byte) []byte) {
	r.Helper()
	if err := l.UpdateRecords(r.ctx, day, locks, merge); err != nil {
		r.Fatalf("UpdateRecords: %v", err)
	}
}

// records returns what there is, by "day lock".
func (r *rig) records(l driver.Ledger, first, last driver.Day) map[string]string {
	r.Helper()
	got := map[string]string{}
	err := l.ReadRecords(r.ctx, first, last, func(day driver.Day, lock string, record []byte) error {
		got[fmt.Sprint(day, " ", lock)] = string(record)
		return nil
	})
	if err != nil {
		r.Fatalf("ReadRecords: %v", err)
	}
	return got
}

// Faults of ledgers.
func ledgerMutants() []Mutant {
	mutant := func(name, found string, how func(b *bent, l driver.Ledger)) Mutant {
		return Mutant{Name: name, Cases: []string{found}, Needs: has[driver.Ledger], Wrap: bend(func(b *bent) {
			l, _ := driver.As[driver.Ledger](b.Driver)
			how(b, l)
		})}
	}
	type merge = func(string, []byte) []byte
	return []Mutant{
		mutant("a record is read and written in two steps", "R12/NoUpdateUndoesAnother", func(b *bent, l driver.Ledger) {
			b.updateRecords = func(ctx context.Context, day driver.Day, locks []string, m merge) error {
				seen := map[string][]byte{}
				err := l.ReadRecords(ctx, day, day, func(_ driver.Day, lock string, record []byte) error {
					seen[lock] = bytes.Clone(record)
					return nil
				})
				if err != nil {
					return err
				}
				time.Sleep(time.Millisecond) // for others to get in between
				return l.UpdateRecords(ctx, day, locks, func(lock string, _ []byte) []byte { return m(lock, seen[lock]) })
			}
		}),
		mutant("an update forgets what was there", "R12/MergeSeesWhatIsThere", func(b *bent, l driver.Ledger) {
			b.updateRecords = func(ctx context.Context, day driver.Day, locks []string, m merge) error {
				return l.UpdateRecords(ctx, day, locks, func(lock string, _ []byte) []byte { return m(lock, nil) })
			}
		}),
		mutant("all days are one", "R12/WhatIsWrittenIsRead", func(b *bent, l driver.Ledger) {
			b.updateRecords = func(ctx context.Context, _ driver.Day, locks []string, m merge) error {
				return l.UpdateRecords(ctx, today(), locks, m)
			}
		}),
		mutant("the last day is not read", "R12/WhatIsWrittenIsRead", func(b *bent, l driver.Ledger) {
			b.readRecords = func(ctx context.Context, first, last driver.Day, f func(driver.Day, string, []byte) error) error {
				return l.ReadRecords(ctx, first, last-1, f)
			}
		}),
		mutant("sums are not read together with days", "R12/AnyDays", func(b *bent, l driver.Ledger) {
			b.readRecords = func(ctx context.Context, first, last driver.Day, f func(driver.Day, string, []byte) error) error {
				if last > 0 {
					first = max(first, 1)
				}
				return l.ReadRecords(ctx, first, last, f)
			}
		}),
		mutant("the newest record says what is old", "R12/ADayAheadEndsNoOther", func(b *bent, l driver.Ledger) {
			newest := new(atomic.Int32)
			b.updateRecords = func(ctx context.Context, day driver.Day, locks []string, m merge) error {
				if int32(day) > newest.Load() {
					newest.Store(int32(day))
				}
				return l.UpdateRecords(ctx, day, locks, m)
			}
			b.readRecords = func(ctx context.Context, first, last driver.Day, f func(driver.Day, string, []byte) error) error {
				return l.ReadRecords(ctx, first, last, func(day driver.Day, lock string, record []byte) error {
					if day > 0 && driver.Day(newest.Load())-day > driver.Day(driver.DayTTL/(24*time.Hour)) {
						return nil
					}
					return f(day, lock, record)
				})
			}
		}),
		mutant("an update stops after 500 locks", "R12/LargeAndMany", func(b *bent, l driver.Ledger) {
			b.updateRecords = func(ctx context.Context, day driver.Day, locks []string, m merge) error {
				return l.UpdateRecords(ctx, day, locks[:min(len(locks), 500)], m)
			}
		}),
		mutant("reading goes on after an error", "R12/ReadingStopsAtAnError", func(b *bent, l driver.Ledger) {
			b.readRecords = func(ctx context.Context, first, last driver.Day, f func(driver.Day, string, []byte) error) error {
				var first1 error
				err := l.ReadRecords(ctx, first, last, func(day driver.Day, lock string, record []byte) error {
					if err := f(day, lock, record); first1 == nil {
						first1 = err
					}
					return nil
				})
				return errors.Join(err, first1)
			}
		}),
		mutant("records are kept as locks", "R12/LocksAreNotTouched", func(b *bent, l driver.Ledger) {
			b.updateRecords = func(ctx context.Context, day driver.Day, locks []string, m merge) error {
				for _, lock := range locks {
					_, _ = b.Driver.Acquire(ctx, &driver.AcquireRequest{Ref: driver.Ref{Key: "record of " + lock, Nonce: newNonce()}, TTL: time.Hour})
				}
				return l.UpdateRecords(ctx, day, locks, m)
			}
		}),
		mutant("an ended context does not matter", "R12/EndedContext", func(b *bent, l driver.Ledger) {
			b.updateRecords = func(ctx context.Context, day driver.Day, locks []string, m merge) error {
				return l.UpdateRecords(context.WithoutCancel(ctx), day, locks, m)
			}
		}),
	}
}
