package sqlitehold

import (
	"context"
	"database/sql"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// The records of what locks have done, one for each lock and day. They need not survive a power cut to the last.
const (
	createUsage = `CREATE TABLE usage (
	namespace TEXT    NOT NULL,
	day       INTEGER NOT NULL, -- since 1970, UTC; 0: what the lock is declared as
	lock      TEXT    NOT NULL,
	record    BLOB    NOT NULL, -- of package review/ledger
	PRIMARY KEY (namespace, day, lock)
) STRICT, WITHOUT ROWID`

	usageStatement      = `SELECT record FROM usage WHERE namespace = ?1 AND day = ?2 AND lock = ?3`
	writeUsageStatement = `INSERT INTO usage (namespace, day, lock, record) VALUES (?1, ?2, ?3, ?4)
		ON CONFLICT DO UPDATE SET record = excluded.record`
	oldUsageStatement  = `DELETE FROM usage WHERE namespace = ?1 AND (day BETWEEN 1 AND ?2 OR day BETWEEN -?3 AND -1)`
	readUsageStatement = `SELECT day, lock, record FROM usage WHERE namespace = ?1 AND day BETWEEN ?2 AND ?3`

	// usageStep is how many records one transaction changes: others wait for it.
	usageStep = 100
)

// UpdateRecords implements driver.Ledger.
func (d *Driver) UpdateRecords(ctx context.Context, day driver.Day, locks []string, merge func(lock string, old []byte) []byte) error {
	const verb = "update the usage of locks"
	if err := d.inPlace(verb, ""); err != nil {
		return err
	}
	for len(locks) > 0 {
		some := locks[:min(len(locks), usageStep)]
		err := d.call(ctx, verb, "", func(w *writer) error {
			return w.transaction("BEGIN IMMEDIATE", func() error { return d.updateRecords(w, day, some, merge) })
		})
		if err != nil {
			return err
		}
		locks = locks[len(some):]
	}
	return nil
}

func (d *Driver) updateRecords(w *writer, day driver.Day, locks []string, merge func(lock string, old []byte) []byte) error {
	for _, lock := range locks {
		var old []byte
		if _, err := w.row(usageStatement, []any{d.namespace, int64(day), lock}, &old); err != nil {
			return err
		}
		record := merge(lock, old)
		if record == nil {
			record = []byte{} // the column is not null
		}
		if _, err := w.exec(writeUsageStatement, d.namespace, int64(day), lock, record); err != nil {
			return err
		}
	}
	old := func(ttl time.Duration) int64 { return int64(driver.DayOf(d.wall().Add(-ttl - 24*time.Hour))) }
	_, err := w.exec(oldUsageStatement, d.namespace, old(driver.DayTTL), old(driver.RecordTTL))
	return err
}

// ReadRecords implements driver.Ledger.
func (d *Driver) ReadRecords(ctx context.Context, first, last driver.Day, f func(day driver.Day, lock string, record []byte) error) error {
	type row struct {
		day    driver.Day
		lock   string
		record []byte
	}
	var found []row
	err := d.look(ctx, "read the usage of locks", "", func(c *sql.Conn) error {
		found = nil
		rows, err := c.QueryContext(ctx, readUsageStatement, d.namespace, int64(first), int64(last))
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var r row
			if err := rows.Scan(&r.day, &r.lock, &r.record); err != nil {
				return err
			}
			found = append(found, r)
		}
		return rows.Err()
	})
	if err != nil {
		return err
	}
	for _, r := range found { // f may take its time, and must not hold up the file's log
		if err := f(r.day, r.lock, r.record); err != nil {
			return err
		}
	}
	return nil
}
