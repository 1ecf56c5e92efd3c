package memhold

import (
	"context"
	"maps"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// recordID names a record of the ledger.
type recordID struct {
	day  driver.Day
	lock string
}

type record struct {
	bytes   []byte
	changed time.Time
}

// UpdateRecords implements driver.Ledger.
func (d *Driver) UpdateRecords(ctx context.Context, day driver.Day, locks []string, merge func(string, []byte) []byte) error {
	if err := d.usable(ctx, "update records of", "the ledger"); err != nil {
		return err
	}
	s := d.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.records == nil {
		s.records = map[recordID]record{}
	}
	now := time.Now()
	for _, lock := range locks {
		id := recordID{day, lock}
		s.records[id] = record{merge(lock, s.records[id].bytes), now}
	}
	if now.Sub(s.swept) > time.Hour {
		s.swept = now
		maps.DeleteFunc(s.records, func(id recordID, r record) bool { return now.Sub(r.changed) > id.day.TTL() })
	}
	return nil
}

// ReadRecords implements driver.Ledger.
func (d *Driver) ReadRecords(ctx context.Context, first, last driver.Day, f func(driver.Day, string, []byte) error) error {
	if err := d.usable(ctx, "read records of", "the ledger"); err != nil {
		return err
	}
	s := d.store
	s.mu.Lock()
	found := map[recordID][]byte{}
	for id, r := range s.records {
		if id.day >= first && id.day <= last {
			found[id] = r.bytes
		}
	}
	s.mu.Unlock()
	for id, b := range found {
		if err := f(id.day, id.lock, b); err != nil {
			return err
		}
	}
	return nil
}
