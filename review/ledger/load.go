package ledger

import (
	"context"
	"fmt"
	"slices"

	"github.com/holdlock/holdlock/driver"
)

// Lock is what the ledger knows of one lock.
type Lock struct {
	Name     string
	Days     map[driver.Day]*Usage
	Declared []Declaration // the one that was in use last comes first
}

// Total returns all days in one.
func (l *Lock) Total() *Usage {
	u := &Usage{}
	for _, day := range l.Days {
		u.Merge(day)
	}
	return u
}

// Load reads the days from first to last, and what the locks are declared as. Records that cannot be read, because they are of a
// newer release or damaged, are left out and named in problems. Locks come in the order of their names.
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
	read := func(day driver.Day, name string, record []byte) error {
		u, _, err := decode(record)
		if err != nil {
			problems = append(problems, fmt.Errorf("lock %s on %s: %w", name, day.Start().Format("2006-01-02"), err))
			return nil
		}
		of(name).Days[day] = u
		return nil
	}
	if err := l.ReadRecords(ctx, max(first, 1), last, read); err != nil {
		return nil, nil, err
	}
	err = l.ReadRecords(ctx, 0, 0, func(_ driver.Day, name string, record []byte) error {
		list, err := decodeDeclarations(record)
		if err != nil {
			problems = append(problems, fmt.Errorf("declaration of lock %s: %w", name, err))
			return nil
		}
		of(name).Declared = list
		return nil
	})
	slices.SortFunc(locks, func(a, b *Lock) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return locks, problems, err
}
