//go:build unix

package pghold

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	mrand "math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/drivertest"
	"github.com/holdlock/holdlock/internal/testenv"
)

func BenchmarkLeaseDriver(b *testing.B) {
	p := testenv.StartPostgres(b, "fsync=on")
	drivertest.RunBenchmarks(b, leaseHarness(b, p, p.URL()))
}

// leaseRequest returns a request with a nonce of its own.
func leaseRequest(key string, ttl time.Duration) *driver.AcquireRequest {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return &driver.AcquireRequest{
		Ref: driver.Ref{Key: key, Nonce: hex.EncodeToString(b[:])}, TTL: ttl,
		Floor: driver.TokenAt(time.Now()), Holder: driver.Holder{Host: "worker", PID: 4711, Purpose: "calls the payments API"},
	}
}

func leaseDriver(tb testing.TB, url, schema string, opts LeaseOptions) *LeaseDriver {
	tb.Helper()
	opts.Schema = schema
	d, err := NewLeaseDriver(testContext(tb), url, &opts)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { d.Close() })
	return d
}

// The least that a lock in a table can be: one statement writes a row unless there is one that has not expired, and one
// deletes it.
const (
	bareTable  = `CREATE TABLE bare (key text PRIMARY KEY, nonce text NOT NULL, expiry timestamptz NOT NULL)`
	bareUpsert = `INSERT INTO bare VALUES ($1, $2, clock_timestamp() + $3 * interval '1 microsecond') ON CONFLICT (key) DO UPDATE
		SET nonce = excluded.nonce, expiry = excluded.expiry WHERE bare.expiry <= clock_timestamp() RETURNING key`
	bareDelete = `DELETE FROM bare WHERE key = $1 AND nonce = $2`
)

func barePair(pool *pgxpool.Pool, key, nonce string) error {
	ctx := context.Background()
	var got string
	if err := pool.QueryRow(ctx, bareUpsert, key, nonce, int64(30e6)).Scan(&got); err != nil {
		return err
	}
	_, err := pool.Exec(ctx, bareDelete, key, nonce)
	return err
}

// BenchmarkLeasePair is an acquire and a release, and beside it, in turn, the two bare statements on a pool with the same
// settings, and with prepared statements, which lease rows do without. It reports the medians and their ratio.
func BenchmarkLeasePair(b *testing.B) {
	for _, fsync := range []string{"on", "off"} {
		for _, keys := range []string{"distinct", "one"} {
			b.Run(fmt.Sprintf("fsync=%s/keys=%s", fsync, keys), func(b *testing.B) {
				p := testenv.StartPostgres(b, "fsync="+fsync)
				d := leaseDriver(b, p.URL(), migrated(b, p), LeaseOptions{})
				p.Do(b, bareTable)
				prepared, err := pgxpool.New(context.Background(), p.URL())
				if err != nil {
					b.Fatal(err)
				}
				defer prepared.Close()
				n := 0
				key := func() string {
					if keys == "one" {
						return "job"
					}
					n++
					return fmt.Sprintf("job/%d", n)
				}
				ctx := context.Background()
				what := []func() error{
					func() error {
						req := leaseRequest(key(), 30*time.Second)
						if _, err := d.Acquire(ctx, req); err != nil {
							return err
						}
						return d.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref})
					},
					func() error { return barePair(d.pool, key(), leaseRequest("", 0).Ref.Nonce) },
					func() error { return barePair(prepared, key(), leaseRequest("", 0).Ref.Nonce) },
				}
				took := inTurn(b, what)
				b.ReportMetric(0, "ns/op") // it is of all three
				b.ReportMetric(float64(took[0].Microseconds()), "µs/pair")
				b.ReportMetric(float64(took[1].Microseconds()), "µs/bare")
				b.ReportMetric(float64(took[2].Microseconds()), "µs/bare-prepared")
				b.ReportMetric(float64(took[1])/float64(took[0]), "of-bare")
				b.ReportMetric(float64(took[2])/float64(took[0]), "of-bare-prepared")
			})
		}
	}
}

// inTurn runs each function once per round, in changing order, because one can leave work for the next, and returns the
// medians.
func inTurn(b *testing.B, what []func() error) []time.Duration {
	b.Helper()
	times := make([][]time.Duration, len(what))
	for range 100 { // until plans and caches are there
		for _, f := range what {
			if err := f(); err != nil {
				b.Fatal(err)
			}
		}
	}
	for n := 0; b.Loop(); n++ {
		order := mrand.New(mrand.NewPCG(1, uint64(n))).Perm(len(what))
		for _, i := range order {
			start := time.Now()
			if err := what[i](); err != nil {
				b.Fatal(err)
			}
			times[i] = append(times[i], time.Since(start))
		}
	}
	medians := make([]time.Duration, len(what))
	for i, t := range times {
		slices.Sort(t)
		medians[i] = t[len(t)/2]
	}
	return medians
}
