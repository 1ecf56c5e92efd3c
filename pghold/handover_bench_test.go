//go:build unix

package pghold

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// BenchmarkHandOver is the time from before a release in one process to after the grant in another one that waits for it,
// for lease rows, for session locks, and for the least that it can be: one statement that deletes a row and notifies, a
// connection that listens, and one that writes the row. They take turns; the medians are reported. The processes are two
// clients with connections of their own.
func BenchmarkHandOver(b *testing.B) {
	for _, fsync := range []string{"on", "off"} {
		b.Run("fsync="+fsync, func(b *testing.B) {
			p := testenv.StartPostgres(b, "fsync="+fsync)
			schema := migrated(b, p)
			inLine := func() bool {
				return p.Do(b, inSchema(`SELECT count(*) FROM "holdlock".waiter`, schema)) == "1"
			}
			rows := handOver(b, inLine, func() driver.Driver { return leaseDriver(b, p.URL(), schema, LeaseOptions{}) })
			sessions := handOver(b, inLine, func() driver.Driver {
				return sessionDriver(b, p.URL(), schema, SessionOptions{Namespace: "sessions"})
			})
			bare := bareHandOver(b, p)
			times := make([][]time.Duration, 3)
			for b.Loop() {
				for i, f := range []func() time.Duration{rows, sessions, bare} {
					times[i] = append(times[i], f())
				}
			}
			for i := range times {
				slices.Sort(times[i])
			}
			p50 := func(i int) float64 { return float64(times[i][len(times[i])/2].Microseconds()) }
			p99 := func(i int) float64 { return float64(times[i][len(times[i])*99/100].Microseconds()) }
			b.ReportMetric(0, "ns/op") // it is of all three, and of the waiting for them
			b.ReportMetric(p50(0), "µs/rows-p50")
			b.ReportMetric(p99(0), "µs/rows-p99")
			b.ReportMetric(p50(1), "µs/sessions-p50")
			b.ReportMetric(p50(2), "µs/bare-p50")
			b.ReportMetric(p50(0)/p50(2), "rows-times-bare")
			b.ReportMetric(p50(1)/p50(2), "sessions-times-bare")
		})
	}
}

func handOver(b *testing.B, inLine func() bool, open func() driver.Driver) func() time.Duration {
	b.Helper()
	var locks [2]*holdlock.Lock
	for i := range locks {
		c, err := holdlock.NewClient(open(), nil)
		must(b, err)
		b.Cleanup(func() { c.Shutdown(context.Background()) })
		locks[i] = newLock(b, c, "job", time.Minute)
	}
	lease := mustTry(b, locks[0])
	b.Cleanup(func() { lease.Release(context.Background()) })
	turn := 0
	return func() time.Duration {
		turn++
		next := locks[turn%2]
		granted := make(chan time.Time, 1)
		var got *holdlock.Lease
		go func() {
			l, err := next.Acquire(context.Background())
			if err != nil {
				panic(err)
			}
			got = l
			granted <- time.Now()
		}()
		for !inLine() {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(5 * time.Millisecond) // its try after it came into line
		start := time.Now()
		must(b, lease.Release(context.Background()))
		end := <-granted
		lease = got
		return end.Sub(start)
	}
}

func bareHandOver(b *testing.B, p *testenv.Postgres) func() time.Duration {
	b.Helper()
	ctx := context.Background()
	p.Do(b, bareTable)
	holder, waiter, listener := connect(b, p.URL()), connect(b, p.URL()), connect(b, p.URL())
	_, err := listener.Exec(ctx, "LISTEN bare")
	must(b, err)
	upsert := func(c *pgx.Conn, nonce string) {
		var got string
		must(b, c.QueryRow(ctx, bareUpsert, execMode, "job", nonce, int64(60e6)).Scan(&got))
	}
	turn := 0
	nonce := func() string { return fmt.Sprintf("%032d", turn) }
	upsert(holder, nonce())
	return func() time.Duration {
		granted := make(chan time.Time, 1)
		go func() {
			n, err := listener.WaitForNotification(ctx)
			if err != nil || n.Payload != "job" {
				panic(err)
			}
			upsert(waiter, fmt.Sprintf("%032d", turn+1))
			granted <- time.Now()
		}()
		time.Sleep(5 * time.Millisecond)
		start := time.Now()
		_, err := holder.Exec(ctx, `WITH d AS (DELETE FROM bare WHERE key = $1 AND nonce = $2 RETURNING key)
			SELECT pg_notify('bare', key) FROM d`, execMode, "job", nonce())
		must(b, err)
		end := <-granted
		turn++
		holder, waiter = waiter, holder
		return end.Sub(start)
	}
}
