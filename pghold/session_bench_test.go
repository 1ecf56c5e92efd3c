//go:build unix

package pghold

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/drivertest"
	"github.com/holdlock/holdlock/internal/testenv"
)

func BenchmarkSessionDriver(b *testing.B) {
	p := testenv.StartPostgres(b, "fsync=on")
	drivertest.RunBenchmarks(b, sessionHarness(p, Block))
}

// The least that a session lock with a token can be: the advisory lock, a row that has the next token and who has it, and
// the unlock; three statements, prepared.
const (
	bareTry   = `SELECT pg_try_advisory_lock($1)`
	bareToken = `INSERT INTO "holdlock".lease (namespace, key, nonce, state, token, expiry, acquired, used, holder, previous)
		VALUES ($1, $2, $3, 1, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, clock_timestamp() + interval '30 seconds',
			clock_timestamp(), clock_timestamp(), $4, 0)
		ON CONFLICT (namespace, key) DO UPDATE SET nonce = excluded.nonce, state = 1, token = greatest(lease.token + 1, excluded.token),
			expiry = excluded.expiry, acquired = excluded.acquired, used = excluded.used, holder = excluded.holder, previous = 1
		RETURNING token`
	bareUnlock = `SELECT pg_advisory_unlock($1)`
)

// bareQuerier is a connection or a pool.
type bareQuerier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func bareSession(q bareQuerier, token string, key, nonce string) error {
	ctx := context.Background()
	id := LockID("bare", key)
	var ok bool
	if err := q.QueryRow(ctx, bareTry, id).Scan(&ok); err != nil || !ok {
		return errors.Join(err, errFails)
	}
	var n int64
	if err := q.QueryRow(ctx, token, "bare", key, nonce, `{"host":"worker","pid":4711,"purpose":"calls the payments API"}`).Scan(&n); err != nil {
		return err
	}
	return q.QueryRow(ctx, bareUnlock, id).Scan(&ok)
}

// bareAdvisory is the advisory pair alone, without a token.
func bareAdvisory(q bareQuerier, key string) error {
	var ok bool
	id := LockID("bare", key)
	err := q.QueryRow(context.Background(), bareTry, id).Scan(&ok)
	return errors.Join(err, q.QueryRow(context.Background(), bareUnlock, id).Scan(&ok))
}

func sessionDriver(tb testing.TB, url, schema string, opts SessionOptions) *SessionDriver {
	tb.Helper()
	opts.Schema = schema
	if opts.Namespace == "" {
		opts.Namespace = fmt.Sprint("session ", namespaces.Add(1))
	}
	d, err := NewSessionDriver(testContext(tb), url, &opts)
	must(tb, err)
	tb.Cleanup(func() { d.Close() })
	return d
}

func sessionPair(d driver.Driver, key string) error {
	req := leaseRequest(key, 30*time.Second)
	if _, err := d.Acquire(context.Background(), req); err != nil {
		return err
	}
	return d.Release(context.Background(), &driver.ReleaseRequest{Ref: req.Ref})
}

// BenchmarkSessionPair is an acquire and a release, and in turn with it the bare statements on one connection.
func BenchmarkSessionPair(b *testing.B) {
	for _, fsync := range []string{"on", "off"} {
		for _, keys := range []string{"distinct", "one"} {
			b.Run(fmt.Sprintf("fsync=%s/keys=%s", fsync, keys), func(b *testing.B) {
				p := testenv.StartPostgres(b, "fsync="+fsync)
				schema := migrated(b, p)
				d := sessionDriver(b, p.URL(), schema, SessionOptions{})
				conn, err := pgx.Connect(context.Background(), p.URL())
				must(b, err)
				defer conn.Close(context.Background())
				token := inSchema(bareToken, schema)
				n := 0
				key := func() string {
					if keys == "one" {
						return "job"
					}
					n++
					return fmt.Sprintf("job/%d", n)
				}
				took := inTurn(b, []func() error{
					func() error { return sessionPair(d, key()) },
					func() error { return bareSession(conn, token, key(), leaseRequest("", 0).Ref.Nonce) },
					func() error { return bareAdvisory(conn, key()) },
				})
				b.ReportMetric(0, "ns/op") // it is of all three
				b.ReportMetric(float64(took[0].Microseconds()), "µs/pair")
				b.ReportMetric(float64(took[1].Microseconds()), "µs/bare")
				b.ReportMetric(float64(took[2].Microseconds()), "µs/bare-advisory")
				b.ReportMetric(float64(took[1])/float64(took[0]), "of-bare")
			})
		}
	}
}

// BenchmarkSession64 is 64 callers with a key each, and in turn with it the bare statements on a pool of 64 connections,
// each held for its three statements. Rounds of half a second take turns; ratio is that of the medians.
func BenchmarkSession64(b *testing.B) {
	for _, fsync := range []string{"on", "off"} {
		b.Run("fsync="+fsync, func(b *testing.B) {
			p := testenv.StartPostgres(b, "fsync="+fsync)
			schema := migrated(b, p)
			d := sessionDriver(b, p.URL(), schema, SessionOptions{})
			conf, err := pgxpool.ParseConfig(p.URL())
			must(b, err)
			conf.MaxConns = 64
			pool, err := pgxpool.NewWithConfig(context.Background(), conf)
			must(b, err)
			defer pool.Close()
			token := inSchema(bareToken, schema)
			took := roundsInTurn(b, 64, []func(caller, n int) error{
				func(caller, n int) error { return sessionPair(d, fmt.Sprintf("job/%d/%d", caller, n%20)) },
				func(caller, n int) error {
					conn, err := pool.Acquire(context.Background())
					if err != nil {
						return err
					}
					defer conn.Release()
					return bareSession(conn, token, fmt.Sprintf("job/%d/%d", caller, n%20), leaseRequest("", 0).Ref.Nonce)
				},
			})
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(took[0], "pairs/s")
			b.ReportMetric(took[1], "bare/s")
			b.ReportMetric(took[0]/took[1], "of-bare")
		})
	}
}

// roundsInTurn has callers call each function for half a second in turn, and returns the medians of calls a second.
func roundsInTurn(b *testing.B, callers int, what []func(caller, n int) error) []float64 {
	b.Helper()
	const round = 500 * time.Millisecond
	rates := make([][]float64, len(what))
	for b.Loop() {
		for i, f := range what {
			var calls atomic.Int64
			var wg sync.WaitGroup
			start := time.Now()
			for c := range callers {
				wg.Go(func() {
					for n := 0; time.Since(start) < round; n++ {
						if err := f(c, n); err != nil {
							b.Error(err)
							return
						}
						calls.Add(1)
					}
				})
			}
			wg.Wait()
			rates[i] = append(rates[i], float64(calls.Load())/time.Since(start).Seconds())
		}
	}
	return medians(rates)
}

func medians(of [][]float64) []float64 {
	out := make([]float64, len(of))
	for i, some := range of {
		slices.Sort(some)
		out[i] = some[len(some)/2]
	}
	return out
}
