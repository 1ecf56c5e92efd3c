//go:build unix

package pghold

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// The least that a job with a lock and a record can be in a database: two transactions, each of one round trip, that write one row for
// the lock and one for the job; and one read for a duplicate.
const (
	bareJobTable = `CREATE TABLE barejob (key text PRIMARY KEY, state int NOT NULL, result bytea, expires timestamptz NOT NULL)`
	bareClaim    = `INSERT INTO barejob VALUES ($1, 2, NULL, clock_timestamp() + interval '1 week') ON CONFLICT (key) DO UPDATE SET state = 2 WHERE barejob.state <> 5`
	bareRecord   = `UPDATE barejob SET state = 5, result = $2, expires = clock_timestamp() + interval '1 week' WHERE key = $1`
	bareLook     = `SELECT state, result FROM barejob WHERE key = $1`
)

// BenchmarkJob is a run of a job, and a duplicate of one that is done, each beside its bare twin and in turn with it.
func BenchmarkJob(b *testing.B) {
	for _, fsync := range []string{"on", "off"} {
		p := testenv.StartPostgres(b, "fsync="+fsync)
		d := leaseDriver(b, p.URL(), migrated(b, p), LeaseOptions{})
		p.Do(b, bareTable)
		p.Do(b, bareJobTable)
		ctx := context.Background()
		n := 0
		key := func() string {
			n++
			return fmt.Sprintf("job/%d", n)
		}
		batch := func(queue func(q *pgx.Batch)) error {
			var q pgx.Batch
			q.Queue("BEGIN")
			queue(&q)
			q.Queue("COMMIT")
			return d.pool.SendBatch(ctx, &q).Close()
		}
		bareRun := func() error {
			key, nonce := key(), leaseRequest("", 0).Ref.Nonce
			err := batch(func(q *pgx.Batch) { q.Queue(bareUpsert, key, nonce, int64(30e6)); q.Queue(bareClaim, key) })
			if err != nil {
				return err
			}
			return batch(func(q *pgx.Batch) { q.Queue(bareDelete, key, nonce); q.Queue(bareRecord, key, []byte("receipt")) })
		}
		report := func(b *testing.B, ours, bare func() error) {
			took := inTurn(b, []func() error{ours, bare})
			b.ReportMetric(0, "ns/op") // it is of both
			b.ReportMetric(float64(took[0].Microseconds()), "µs/ours")
			b.ReportMetric(float64(took[1].Microseconds()), "µs/bare")
			b.ReportMetric(float64(took[1])/float64(took[0]), "of-bare")
		}
		b.Run("run/fsync="+fsync, func(b *testing.B) {
			report(b, func() error {
				req := jobRequest(key(), 30*time.Second, driver.Rerun)
				if _, err := d.Acquire(ctx, req); err != nil {
					return err
				}
				return d.Release(ctx, finishing(req.Ref, "receipt"))
			}, bareRun)
		})
		b.Run("duplicate/fsync="+fsync, func(b *testing.B) {
			mustFinish(b, d, mustClaim(b, d, "done", driver.Rerun), "receipt")
			p.Do(b, `INSERT INTO barejob VALUES ('done', 5, 'receipt', now() + interval '1 week') ON CONFLICT DO NOTHING`)
			report(b, func() error {
				if _, err := d.Acquire(ctx, jobRequest("done", time.Minute, driver.Rerun)); err == nil {
					b.Fatal("a job that is done was run again")
				}
				return nil
			}, func() error {
				var state int
				var result []byte
				return d.pool.QueryRow(ctx, bareLook, "done").Scan(&state, &result)
			})
		})
	}
}
