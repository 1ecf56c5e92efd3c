//go:build unix

package pghold

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/internal/testenv"
)

// BenchmarkTx is a transaction that takes a lock and commits, and in turn with it the same one with the bare statements: the
// advisory lock, and for Once a row that is inserted unless it is there. It reports the medians and their ratios.
func BenchmarkTx(b *testing.B) {
	p := testenv.StartPostgres(b, "fsync=on")
	schema := migrated(b, p)
	c, err := OpenTransactions(&TxOptions{Schema: schema})
	must(b, err)
	defer c.Shutdown(context.Background())
	lock, err := c.NewLock("settle", &holdlock.LockOptions{DoubleRun: holdlock.Harmful})
	must(b, err)
	conn := connect(b, p.URL())
	db := sql.OpenDB(stdlib.GetConnector(*mustParse(b, p.URL())))
	defer db.Close()
	db.SetMaxOpenConns(1)
	ctx := context.Background()
	n := 0
	key := func() string { n++; return fmt.Sprint("day ", n) }
	inPgx := func(f func(tx pgx.Tx, key string) error) func() error {
		return func() error { return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return f(tx, key()) }) }
	}
	inSQL := func(f func(tx *sql.Tx, key string) error) func() error {
		return func() error {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			if err := f(tx, key()); err != nil {
				_ = tx.Rollback()
				return err
			}
			return tx.Commit()
		}
	}
	const bareLock = "SELECT pg_advisory_xact_lock($1)"
	const bareDone = `INSERT INTO bare_done VALUES ($1, clock_timestamp()) ON CONFLICT DO NOTHING`
	p.Do(b, "CREATE TABLE bare_done (key text PRIMARY KEY, at timestamptz)")
	for _, bench := range []struct {
		name       string
		ours, bare func() error
	}{
		{
			"Lock/pgx",
			inPgx(func(tx pgx.Tx, key string) error { return Lock(ctx, tx, lock.For(key)) }),
			inPgx(func(tx pgx.Tx, key string) error {
				_, err := tx.Exec(ctx, bareLock, LockID("", "settle/"+key))
				return err
			}),
		},
		{
			"Lock with a deadline/pgx",
			inPgx(func(tx pgx.Tx, key string) error {
				ctx, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				return Lock(ctx, tx, lock.For(key))
			}),
			inPgx(func(tx pgx.Tx, key string) error {
				_, err := tx.Exec(ctx, "SET LOCAL lock_timeout = 60000")
				if err == nil {
					_, err = tx.Exec(ctx, bareLock, LockID("", "settle/"+key))
				}
				return err
			}),
		},
		{
			"Lock/sql",
			inSQL(func(tx *sql.Tx, key string) error { return Lock(ctx, SQL(tx), lock.For(key)) }),
			inSQL(func(tx *sql.Tx, key string) error {
				_, err := tx.ExecContext(ctx, bareLock, LockID("", "settle/"+key))
				return err
			}),
		},
		{
			"Once/pgx",
			inPgx(func(tx pgx.Tx, key string) error {
				_, err := Once(ctx, tx, lock.For(key), nil)
				return err
			}),
			inPgx(func(tx pgx.Tx, key string) error {
				_, err := tx.Exec(ctx, bareDone, key)
				return err
			}),
		},
	} {
		b.Run(bench.name, func(b *testing.B) {
			took := inTurn(b, []func() error{bench.ours, bench.bare})
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(took[0].Microseconds()), "µs/tx")
			b.ReportMetric(float64(took[1].Microseconds()), "µs/bare")
			b.ReportMetric(float64(took[1])/float64(took[0]), "of-bare")
		})
	}
}
