package sqlitehold

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// Run-once jobs, beside the least that they can be in SQLite: the same two synced transactions, each of which writes one row
// for the lock and one for the job, with the same engine, settings and prepared statements; and one read for a duplicate.
// The two take turns, so that both meet the same disk; the ratio is that of the medians.

func BenchmarkJob(b *testing.B) {
	d, err := NewDriver(filepath.Join(b.TempDir(), "locks.db"), nil)
	check(b, err)
	defer d.Close()
	run, w := bareJobs(b)
	n := 0
	check(b, d.Release(ctx, finish(mustClaim(b, d, "done", driver.Rerun), "receipt")))
	run(bareClaim, "done", "{}", 1)
	run(bareRecord, 1, []byte("receipt"), "done")
	b.Run("Run", func(b *testing.B) {
		beside(b, func() {
			n++
			check(b, d.Release(ctx, finish(mustClaim(b, d, fmt.Sprint("job/", n), driver.Rerun), "receipt")))
		}, func() {
			key, now, holder := fmt.Sprint("job/", n), time.Now().UnixNano(), `{"host":"worker","pid":4711}`
			run("BEGIN IMMEDIATE")
			run(bareAcquire, key, holder, now+30e9, now)
			run(bareClaim, key, holder, now)
			run("COMMIT")
			run("BEGIN IMMEDIATE")
			run("DELETE FROM lock WHERE key = ?", key)
			run(bareRecord, now, []byte("receipt"), key)
			run("COMMIT")
		})
	})
	b.Run("Duplicate", func(b *testing.B) {
		beside(b, func() {
			if _, err := d.Acquire(ctx, claim("done", time.Minute, driver.Rerun)); err == nil {
				b.Fatal("a job that is done was run again")
			}
		}, func() {
			var state int
			var result []byte
			if ok, err := w.row("SELECT state, result FROM job WHERE key = ?", []any{"done"}, &state, &result); !ok || err != nil {
				b.Fatal(err)
			}
		})
	})
}

// beside measures ours and the bare statements in turn.
func beside(b *testing.B, ours, bare func()) {
	var times [2][]time.Duration
	for b.Loop() {
		for i, f := range []func(){ours, bare} {
			start := time.Now()
			f()
			times[i] = append(times[i], time.Since(start))
		}
	}
	for i := range times {
		slices.Sort(times[i])
	}
	mine, least := times[0][len(times[0])/2], times[1][len(times[1])/2]
	b.ReportMetric(0, "ns/op") // of both together it says nothing
	b.ReportMetric(float64(mine.Nanoseconds()), "ns/ours")
	b.ReportMetric(float64(least.Nanoseconds()), "ns/bare")
	b.ReportMetric(float64(least)/float64(mine), "bare/ours")
}

// bareJobs is a connection with the tables of the least.
func bareJobs(b *testing.B) (run func(q string, args ...any), w *writer) {
	w, err := connect(filepath.Join(b.TempDir(), "bare.db"), "rwc", true) // synced, as claims and records are
	check(b, err)
	b.Cleanup(func() { w.close() })
	for _, q := range []string{
		"PRAGMA journal_mode = WAL", "CREATE TABLE lock (key TEXT PRIMARY KEY, holder TEXT, expiry INTEGER)",
		"CREATE TABLE job (key TEXT PRIMARY KEY, state INTEGER, holder TEXT, expires INTEGER, result BLOB)",
	} {
		_, err := w.once(q)
		check(b, err)
	}
	return func(q string, args ...any) {
		st, err := w.statement(q)
		check(b, err)
		_, err = st.ExecContext(context.Background(), args...)
		check(b, err)
	}, w
}

const (
	bareAcquire = `INSERT INTO lock VALUES (?, ?, ?)
		ON CONFLICT (key) DO UPDATE SET holder = excluded.holder, expiry = excluded.expiry WHERE expiry < ?`
	bareClaim  = `INSERT INTO job VALUES (?, 2, ?, ?, NULL) ON CONFLICT (key) DO UPDATE SET state = 2, holder = excluded.holder`
	bareRecord = `UPDATE job SET state = 5, expires = ?, result = ? WHERE key = ? AND state = 2`
)
