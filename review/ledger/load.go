package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// Lock is what the ledger knows of one lock.
type Lock struct {
	Name     string
	Days     map[driver.Day]*Usage // by day; a sum by its first one
	Declared []Declaration         // the one that was in use last comes first
	Partial  bool                  // some of its records could not be read, so that more may have happened than is known
}

// An UnreadError is about records that could not be read. It wraps ErrNewer, ErrDamaged or driver.ErrDamaged.
type UnreadError struct {
	Lock string // the lock whose record it is; "" if there may be records of any
	Err  error
}

// Error says which record it is, and what to do.
func (e *UnreadError) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong with it.
func (e *UnreadError) Unwrap() error { return e.Err }

// Total returns all days in one.
func (l *Lock) Total() *Usage {
	u := &Usage{}
	for _, day := range l.Days {
		u.Merge(day)
	}
	return u
}

// Load reads what happened from the day first to the day last, and what the locks are declared as. Records that cannot be read, because they are of a
// newer release, damaged, or something else that stands in their place, are left out and named in problems, each an *UnreadError; the locks whose records they are, are Partial. Locks come in the order of their names. Only the last days are told apart; before that there are sums
// of ten days (Usage.Covers), of which the first one may begin before the day first.
func Load(ctx context.Context, l driver.Ledger, first, last driver.Day) (locks []*Lock, problems []error, err error) {
	byName := map[string]*Lock{}
	of := func(name string) *Lock {
		k := byName[name]
		if k == nil {
			k = &Lock{Name: name, Days: map[driver.Day]*Usage{}}
			byName[name] = k
			locks = append(locks, k)
		}
		return k
	}
	// What is none of ours is a problem beside what is read.
	whole := func(err error) error {
		if !errors.Is(err, driver.ErrDamaged) {
			return err
		}
		problems = append(problems, &UnreadError{Err: err})
		return nil
	}
	// The lock is there all the same, and nobody is to take it for one of which nothing is known.
	unread := func(name string, err error) {
		problems = append(problems, &UnreadError{name, err})
		of(name).Partial = true
	}
	read := func(day driver.Day, name string, record []byte) error {
		u, _, err := decode(record)
		when, covers := day, 1
		if day < 0 {
			when, covers = -day, spanDays
		}
		if err != nil {
			unread(name, fmt.Errorf("lock %s on %s (record of day %d): %w", name, when.Start().Format("2006-01-02"), day, err))
			return nil
		}
		u.Covers = covers
		of(name).Days[when] = u
		return nil
	}
	first, single := max(first, 1), cut(driver.DayOf(time.Now()))
	if err := whole(l.ReadRecords(ctx, max(first, single), max(last, single), read)); err != nil {
		return nil, nil, err
	}
	if first < single {
		if err := whole(l.ReadRecords(ctx, spanOf(min(last, single-1)), min(spanOf(first), -1), read)); err != nil {
			return nil, nil, err
		}
	}
	err = whole(l.ReadRecords(ctx, 0, 0, func(_ driver.Day, name string, record []byte) error {
		list, err := decodeDeclarations(record)
		if err != nil {
			unread(name, fmt.Errorf("declaration of lock %s (record of day 0): %w", name, err))
			return nil
		}
		of(name).Declared = list
		return nil
	}))
	for _, p := range problems {
		if about, ok := p.(*UnreadError); ok && about.Lock == "" {
			for _, l := range locks {
				l.Partial = true
			}
		}
	}
	slices.SortFunc(locks, func(a, b *Lock) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return locks, problems, err
}
