package pghold

import (
	"context"

	"github.com/holdlock/holdlock/driver"
)

// Session locks share their names with lease rows, and so their records: both add to the same. They are written on the
// connections that look, never on one that locks live on.

// UpdateRecords implements driver.Ledger.
func (d *SessionDriver) UpdateRecords(ctx context.Context, day driver.Day, locks []string, merge func(lock string, old []byte) []byte) error {
	return d.rows.UpdateRecords(ctx, day, locks, merge)
}

// ReadRecords implements driver.Ledger.
func (d *SessionDriver) ReadRecords(ctx context.Context, first, last driver.Day, f func(day driver.Day, lock string, record []byte) error) error {
	return d.rows.ReadRecords(ctx, first, last, f)
}
