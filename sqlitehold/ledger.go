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
	dropUsageStatement = `DELETE FROM usage WHERE namespace = ?1 AND day BETWEEN ?2 AND ?3`
	readUsageStatement = `SELECT day, lock, record FROM usage WHERE namespace = ?1 AND day BETWEEN ?2 AND ?3`

	// The next older single day and sum that have records; ?2 is where to begin.
	dayBeforeStatement = `SELECT day FROM usage WHERE namespace = ?1 AND day BETWEEN 1 AND ?2 ORDER BY day DESC LIMIT 1`
	sumBeforeStatement = `SELECT day FROM usage WHERE namespace = ?1 AND day BETWEEN ?2 AND -1 ORDER BY day LIMIT 1`

	// usageStep is how many records one transaction changes: others wait for it.
	usageStep = 100
)

// What is old? The file has no clock but those of the programs, and one that is ahead would remove what all have counted. So what is
// old by the clock of a program goes only if the file itself has seen as much time go by: if there are records of as many later days
// as fit into the time for which it is kept. A wrong clock makes such days too, for as long as it is wrong, hence wrongDays more.
// What lies in the future by the program's own clock is not counted: it has been made by one that was wrong.
//
// So records survive a program whose clock is wrong by however much, and a machine whose clock is wrong for some hours, as after it has
// been started, if that befalls them on no more than wrongDays. A clock that stays wrong for longer is believed. In a file that is
// rarely used records are kept for longer.
const (
	wrongDays = 2
	laterDays = int(driver.DayTTL/(24*time.Hour)) + 1 + wrongDays // the day itself has to be over
	laterSums = int(driver.RecordTTL/(driver.SumDays*24*time.Hour)) + wrongDays
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
	return d.dropOld(w)
}

// dropOld removes the records of days and sums that are old.
func (d *Driver) dropOld(w *writer) error {
	today := int64(driver.DayOf(d.wall()))
	cutoff := func(ttl time.Duration) int64 { return int64(driver.DayOf(d.wall().Add(-ttl - 24*time.Hour))) }
	day, ok, err := w.nthDay(dayBeforeStatement, d.namespace, today, -1, laterDays)
	if err != nil {
		return err
	}
	if ok {
		if _, err := w.exec(dropUsageStatement, d.namespace, 1, min(day-1, cutoff(driver.DayTTL))); err != nil {
			return err
		}
	}
	sum, ok, err := w.nthDay(sumBeforeStatement, d.namespace, -today, +1, laterSums)
	if err != nil || !ok {
		return err
	}
	_, err = w.exec(dropUsageStatement, d.namespace, max(sum+1, -cutoff(driver.RecordTTL)), -1)
	return err
}

// nthDay returns the n-th of the days that have records, from one to the past; next is the step to the past.
func (w *writer) nthDay(query, namespace string, from, next int64, n int) (day int64, ok bool, err error) {
	for range n {
		if ok, err = w.row(query, []any{namespace, from}, &day); err != nil || !ok {
			return 0, false, err
		}
		from = day + next
	}
	return day, true, nil
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
