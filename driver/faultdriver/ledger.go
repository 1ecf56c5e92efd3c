package faultdriver

import (
	"context"

	"github.com/holdlock/holdlock/driver"
)

// UpdateRecords implements driver.Ledger. A fault strikes all records.
func (d *Driver) UpdateRecords(ctx context.Context, day driver.Day, locks []string, merge func(string, []byte) []byte) error {
	_, err := call(ctx, d.plan(UpdateRecords, ""), func(ctx context.Context) (struct{}, error) {
		ledger, err := inner[driver.Ledger](d, UpdateRecords)
		if err != nil {
			return struct{}{}, err
		}
		return struct{}{}, ledger.UpdateRecords(ctx, day, locks, merge)
	})
	return err
}

// ReadRecords implements driver.Ledger.
func (d *Driver) ReadRecords(ctx context.Context, first, last driver.Day, f func(driver.Day, string, []byte) error) error {
	_, err := call(ctx, d.plan(ReadRecords, ""), func(ctx context.Context) (struct{}, error) {
		ledger, err := inner[driver.Ledger](d, ReadRecords)
		if err != nil {
			return struct{}{}, err
		}
		return struct{}{}, ledger.ReadRecords(ctx, first, last, f)
	})
	return err
}
