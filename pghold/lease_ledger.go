package pghold

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdlock/holdlock/driver"
)

const (
	usageStatement = `SELECT lock, record FROM "holdlock".usage WHERE namespace = $1 AND day = $2 AND lock = ANY ($3)`

	// A record is written if it is still the one that the new one was made from; the answer is the locks of which it was.
	// $3 locks, $4 what their records were, NULL if there was none, $5 what they are to be.
	writeUsageStatement = `
WITH u AS MATERIALIZED (SELECT * FROM ROWS FROM (pg_catalog.unnest($3::text[]), pg_catalog.unnest($4::bytea[]),
	pg_catalog.unnest($5::bytea[])) AS u (lock, old, new) ORDER BY 1),
changed AS (UPDATE "holdlock".usage x SET record = u.new FROM u
	WHERE x.namespace = $1 AND x.day = $2 AND x.lock = u.lock AND x.record = u.old RETURNING x.lock),
made AS (INSERT INTO "holdlock".usage (namespace, day, lock, record) SELECT $1, $2, u.lock, u.new FROM u WHERE u.old IS NULL
	ON CONFLICT DO NOTHING RETURNING lock)
SELECT lock FROM changed UNION ALL SELECT lock FROM made`

	readUsageStatement = `SELECT day, lock, record FROM "holdlock".usage WHERE namespace = $1 AND day BETWEEN $2 AND $3`

	// What is old is said by the server's clock, which is one for all: by its own, a program whose clock is ahead would remove
	// what the others have counted. $2 and $3 are for how many days single days and sums are kept.
	oldUsageStatement = `
DELETE FROM "holdlock".usage x
USING (SELECT pg_catalog.floor(extract(epoch FROM pg_catalog.clock_timestamp()) / 86400)::int AS today) AS now
WHERE x.namespace = $1 AND (x.day BETWEEN 1 AND now.today - $2 - 1 OR x.day BETWEEN $3 + 1 - now.today AND -1)`

	usageBatch = 200 // records in one statement
	usageTries = 500 // as often as others may get in between; somebody gets on each time
	usageSweep = 50  // about one update in so many removes old records
)

// UpdateRecords implements driver.Ledger.
func (d *LeaseDriver) UpdateRecords(ctx context.Context, day driver.Day, locks []string, merge func(lock string, old []byte) []byte) error {
	const verb = "update the usage of"
	for len(locks) > 0 {
		some := locks[:min(len(locks), usageBatch)]
		locks = locks[len(some):]
		for try := 0; len(some) > 0; try++ {
			if try == usageTries {
				return leaseFailure(verb, strings.Join(some[:min(len(some), 3)], " "), fmt.Errorf("others changed it %d times in between", usageTries))
			}
			left, err := d.updateRecords(ctx, verb, day, some, merge)
			if err != nil && code(err) != deadlockDetected { // two programs in different order; one is told, and nothing was done
				return err
			}
			some = left
		}
	}
	if rand.N(usageSweep) == 0 {
		const day = 24 * time.Hour
		return d.step(ctx, verb, "old locks", d.sql.oldUsage, []any{d.namespace, int32(driver.DayTTL / day), int32(driver.RecordTTL / day)}, nothing)
	}
	return nil
}

func nothing(pgx.Rows) error { return nil }

// updateRecords makes one try and returns the locks whose records others have changed meanwhile.
func (d *LeaseDriver) updateRecords(
	ctx context.Context, verb string, day driver.Day, locks []string, merge func(lock string, old []byte) []byte,
) (left []string, err error) {
	was := map[string][]byte{}
	err = d.step(ctx, verb, locks[0], d.sql.usage, []any{d.namespace, int32(day), locks}, func(rows pgx.Rows) error {
		var lock string
		var record []byte
		err := rows.Scan(&lock, &record)
		was[lock] = record
		return err
	})
	if err != nil {
		return locks, err
	}
	old, made := make([][]byte, len(locks)), make([][]byte, len(locks))
	for i, lock := range locks {
		old[i] = was[lock]
		if made[i] = merge(lock, old[i]); made[i] == nil {
			made[i] = []byte{} // the column is not null
		}
	}
	written := map[string]bool{}
	err = d.step(ctx, verb, locks[0], d.sql.writeUsage, []any{d.namespace, int32(day), locks, old, made}, func(rows pgx.Rows) error {
		var lock string
		err := rows.Scan(&lock)
		written[lock] = true
		return err
	})
	for _, lock := range locks {
		if !written[lock] || err != nil {
			left = append(left, lock)
		}
	}
	return left, err
}

// ReadRecords implements driver.Ledger.
func (d *LeaseDriver) ReadRecords(ctx context.Context, first, last driver.Day, f func(day driver.Day, lock string, record []byte) error) error {
	type row struct {
		day    int32
		lock   string
		record []byte
	}
	var found []row
	err := d.step(ctx, "read the usage of", "locks", d.sql.readUsage, []any{d.namespace, int32(first), int32(last)}, func(rows pgx.Rows) error {
		var r row
		err := rows.Scan(&r.day, &r.lock, &r.record)
		found = append(found, r)
		return err
	})
	if err != nil {
		return err
	}
	for _, r := range found { // f may take its time, and must not keep a connection
		if err := f(driver.Day(r.day), r.lock, r.record); err != nil {
			return err
		}
	}
	return nil
}
