package sqlitehold

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/drivertest"
)

func BenchmarkDriver(b *testing.B) { drivertest.RunBenchmarks(b, harness()) }

// BenchmarkPair is an acquire and a release. Compare it with BenchmarkBarePair: run both several times, in turn.
func BenchmarkPair(b *testing.B) {
	for _, durable := range []bool{false, true} {
		b.Run(fmt.Sprintf("Durable=%v", durable), func(b *testing.B) {
			d, err := NewDriver(filepath.Join(b.TempDir(), "locks.db"), &Options{Durable: durable})
			if err != nil {
				b.Fatal(err)
			}
			defer d.Close()
			ctx := context.Background()
			req := acquire("job/1", 30*time.Second)
			for b.Loop() {
				if _, err := d.Acquire(ctx, req); err != nil {
					b.Fatal(err)
				}
				if err := d.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkBarePair is the least that a lock in SQLite can be: two transactions of one statement each, the one writes a
// row and the other deletes it, with the same engine, the same settings and prepared statements.
func BenchmarkBarePair(b *testing.B) {
	for _, durable := range []bool{false, true} {
		b.Run(fmt.Sprintf("Durable=%v", durable), func(b *testing.B) {
			w, err := connect(filepath.Join(b.TempDir(), "bare.db"), "rwc", durable)
			if err != nil {
				b.Fatal(err)
			}
			defer w.close()
			for _, q := range []string{"PRAGMA journal_mode = WAL", "CREATE TABLE lock (key TEXT PRIMARY KEY, holder TEXT, expiry INTEGER)"} {
				if _, err := w.once(q); err != nil {
					b.Fatal(err)
				}
			}
			prepare := func(q string) *sql.Stmt {
				st, err := w.statement(q)
				if err != nil {
					b.Fatal(err)
				}
				return st
			}
			begin, commit := prepare("BEGIN IMMEDIATE"), prepare("COMMIT")
			upsert := prepare(`INSERT INTO lock VALUES (?, ?, ?)
				ON CONFLICT (key) DO UPDATE SET holder = excluded.holder, expiry = excluded.expiry WHERE expiry < ?`)
			del := prepare("DELETE FROM lock WHERE key = ?")
			run := func(st *sql.Stmt, args ...any) {
				if _, err := st.ExecContext(context.Background(), args...); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				now := time.Now().UnixNano()
				run(begin)
				run(upsert, "job/1", `{"host":"worker","pid":4711}`, now+30e9, now)
				run(commit)
				run(begin)
				run(del, "job/1")
				run(commit)
			}
		})
	}
}
