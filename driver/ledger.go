package driver

import (
	"context"
	"time"
)

// A Ledger keeps what was counted about locks, in records of a lock and a Day, for reviews. The records are the business of
// package review/ledger; to a store they are bytes, of at most MaxRecord. No lock depends on them.
type Ledger interface {
	// UpdateRecords replaces the records of some locks on one day. For each, merge gets what the store has, nil if nothing,
	// and returns what it is to have. Each record changes in one atomic step, so that two programs that add to one do not undo
	// each other; for that merge may be called several times for a lock, and not in order. After an error some of the records
	// may have changed. A record is kept at least Day.TTL after its last change, whatever the clock of one program says; but a store
	// may count from the day itself, of a sum from its first, so that a record of a day that is long over may go at once. Only a store
	// that has no clock of its own may go by those of the programs; its package says then what wrong clock it bears.
	UpdateRecords(ctx context.Context, day Day, locks []string, merge func(lock string, old []byte) []byte) error

	// ReadRecords calls f for the records of the days from first to last, in no order, until f fails. It returns what f returned.
	// Something else that stands in the place of records does not hide the others: f is called for them, and then the error wraps
	// ErrDamaged and says where it is. UpdateRecords of it wraps ErrDamaged too.
	ReadRecords(ctx context.Context, first, last Day, f func(day Day, lock string, record []byte) error) error
}

const (
	// MaxRecord is the largest record in bytes.
	MaxRecord = 16 << 10
	// RecordTTL is how long a record is kept at least, but for those of single days. A store collects older ones by itself.
	RecordTTL = 110 * 24 * time.Hour
	// DayTTL is how long the record of a single day is kept at least. Only those that are new are of interest one by one, and to
	// keep all would take more room than all that holdlock keeps besides.
	DayTTL = 13 * 24 * time.Hour
	// SumDays is how many days a sum has.
	SumDays = 10
)

// Day is a day in UTC, counted from 1970-01-01. Day 0 is not a day: its records say what locks are declared as. A negative one is not
// one day either: its records sum up SumDays days, of which the first is -d.
type Day int32

// TTL returns how long records of d are kept at least after their last change.
func (d Day) TTL() time.Duration {
	if d > 0 {
		return DayTTL
	}
	return RecordTTL
}

// DayOf returns the day of a time.
func DayOf(t time.Time) Day { return Day(t.Unix() / 86400) }

// Start returns the first moment of the day, in UTC.
func (d Day) Start() time.Time { return time.Unix(int64(d)*86400, 0).UTC() }
