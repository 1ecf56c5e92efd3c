//go:build unix

// Package pg puts lease rows beside cirello.io/pglock, and session locks beside go-pglock too, on one server and in one run. It is a module of its own, so that
// nobody who uses holdlock downloads what it compares with:
//
//	cd bench/pg && GOWORK=off go test -bench .
package pg

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"cirello.io/pglock"
	gopglock "github.com/allisson/go-pglock/v3"
	"github.com/jackc/pgx/v5"
	_ "github.com/lib/pq" // what pglock.New asks for

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/internal/testenv"
	"github.com/holdlock/holdlock/pghold"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testenv.End()
	os.Exit(code)
}

var ctx = context.Background()

func must(b *testing.B, err error) {
	if err != nil {
		b.Helper()
		b.Fatal(err)
	}
}

// ours returns two clients as two processes have them, and theirs likewise.
func ours(b *testing.B, p *testenv.Postgres) (locks [2]*holdlock.Client) {
	b.Helper()
	conn, err := pgx.Connect(ctx, p.URL())
	must(b, err)
	must(b, pghold.Migrate(ctx, conn, ""))
	must(b, conn.Close(ctx))
	for i := range locks {
		locks[i], err = pghold.Open(ctx, p.URL(), nil)
		must(b, err)
		b.Cleanup(func() { locks[i].Shutdown(ctx) })
	}
	return locks
}

func theirs(b *testing.B, p *testenv.Postgres, opts ...pglock.ClientOption) (clients [2]*pglock.Client) {
	b.Helper()
	for i := range clients {
		db, err := sql.Open("postgres", p.URL())
		must(b, err)
		b.Cleanup(func() { db.Close() })
		clients[i], err = pglock.New(db, opts...)
		must(b, err)
	}
	must(b, clients[0].TryCreateTable())
	return clients
}

// BenchmarkPair is an acquire and a release of another lock each time, in turn.
func BenchmarkPair(b *testing.B) {
	p := testenv.StartPostgres(b, "fsync=on")
	own, other := ours(b, p), theirs(b, p)
	lock, err := own[0].NewLock("job", nil)
	must(b, err)
	n := 0
	times := inTurn(b, func() {
		n++
		lease, err := lock.For(fmt.Sprint(n)).TryAcquire(ctx)
		must(b, err)
		must(b, lease.Release(ctx))
	}, func() {
		l, err := other[0].AcquireContext(ctx, fmt.Sprint("job/", n), pglock.FailIfLocked())
		must(b, err)
		must(b, other[0].ReleaseContext(ctx, l))
	})
	report(b, times, "µs/holdlock", "µs/pglock")
}

// BenchmarkHandOver is the time from a release to the grant of who waits in another process. pglock has its usual lease
// of 20 s, and one of 200 ms.
func BenchmarkHandOver(b *testing.B) {
	for _, lease := range []time.Duration{200 * time.Millisecond, 20 * time.Second} {
		b.Run(fmt.Sprint("pglock-lease=", lease), func(b *testing.B) {
			p := testenv.StartPostgres(b, "fsync=on")
			own := ours(b, p)
			other := theirs(b, p, pglock.WithLeaseDuration(lease), pglock.WithHeartbeatFrequency(lease/4))
			var times [2][]time.Duration
			for b.Loop() {
				times[0] = append(times[0], handOver(func(i int) func() error {
					lock, err := own[i].NewLock("job", nil)
					must(b, err)
					lease, err := lock.Acquire(ctx)
					must(b, err)
					return func() error { return lease.Release(ctx) }
				}))
				times[1] = append(times[1], handOver(func(i int) func() error {
					l, err := other[i].AcquireContext(ctx, "job")
					must(b, err)
					return func() error { return other[i].ReleaseContext(ctx, l) }
				}))
			}
			report(b, times, "µs/holdlock", "µs/pglock")
		})
	}
}

// BenchmarkCallers64 is 64 callers who take and release locks of their own for a moment each, in turn: session locks, go-pglock,
// which has a connection for each lock that it holds, and pglock.
func BenchmarkCallers64(b *testing.B) {
	const callers, window = 64, 500 * time.Millisecond
	p := testenv.StartPostgres(b, "fsync=on", "max_connections=200")
	_ = ours(b, p) // makes the tables
	own, err := pghold.OpenSessions(ctx, p.URL(), nil)
	must(b, err)
	b.Cleanup(func() { own.Shutdown(ctx) })
	lock, err := own.NewLock("job", nil)
	must(b, err)
	db, err := sql.Open("postgres", p.URL())
	must(b, err)
	b.Cleanup(func() { db.Close() })
	db.SetMaxIdleConns(callers)
	other := theirs(b, p)
	contestants := []func(caller int) error{
		func(caller int) error {
			lease, err := lock.For(fmt.Sprint(caller)).TryAcquire(ctx)
			if err != nil {
				return err
			}
			return lease.Release(ctx)
		},
		func(caller int) error {
			l, err := gopglock.NewLock(ctx, int64(caller), db)
			if err != nil {
				return err
			}
			_, err = l.Lock(ctx)
			return errors.Join(err, l.Unlock(ctx), l.Close())
		},
		func(caller int) error {
			l, err := other[0].AcquireContext(ctx, fmt.Sprint("caller/", caller), pglock.FailIfLocked())
			if err != nil {
				return err
			}
			return other[0].ReleaseContext(ctx, l)
		},
	}
	rates := make([][]float64, len(contestants))
	for b.Loop() {
		for i, pair := range contestants {
			rates[i] = append(rates[i], perSecond(b, callers, window, pair))
		}
	}
	b.ReportMetric(0, "ns/op") // it is of all
	for i, name := range []string{"holdlock-pairs/s", "go-pglock-pairs/s", "pglock-pairs/s"} {
		slices.Sort(rates[i])
		b.ReportMetric(rates[i][len(rates[i])/2], name)
	}
}

// perSecond is how often callers together do something in a second.
func perSecond(b *testing.B, callers int, window time.Duration, do func(caller int) error) float64 {
	b.Helper()
	var wg sync.WaitGroup
	var mu sync.Mutex
	n, start := 0, time.Now()
	for caller := range callers {
		wg.Go(func() {
			own := 0
			for time.Since(start) < window {
				if err := do(caller); err != nil {
					b.Error(err)
					return
				}
				own++
			}
			mu.Lock()
			defer mu.Unlock()
			n += own
		})
	}
	wg.Wait()
	return float64(n) / time.Since(start).Seconds()
}

// handOver has two processes take a lock one after the other; acquire returns how to release it.
func handOver(acquire func(process int) (release func() error)) time.Duration {
	release := acquire(0)
	granted := make(chan time.Time)
	var err error
	go func() {
		next := acquire(1)
		granted <- time.Now()
		err = next()
		close(granted)
	}()
	time.Sleep(100 * time.Millisecond) // it waits by then
	start := time.Now()
	first := release()
	end := <-granted
	<-granted
	if err = errors.Join(first, err); err != nil {
		panic(err)
	}
	return end.Sub(start)
}

func inTurn(b *testing.B, what ...func()) (times [2][]time.Duration) {
	b.Helper()
	for b.Loop() {
		for i, f := range what {
			start := time.Now()
			f()
			times[i] = append(times[i], time.Since(start))
		}
	}
	return times
}

// report prints the medians.
func report(b *testing.B, times [2][]time.Duration, names ...string) {
	b.Helper()
	b.ReportMetric(0, "ns/op") // it is of both
	for i, name := range names {
		slices.Sort(times[i])
		b.ReportMetric(float64(times[i][len(times[i])/2].Microseconds()), name)
	}
}
