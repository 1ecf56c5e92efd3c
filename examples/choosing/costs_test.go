//go:build unix

package choosing

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/internal/testenv"
	"github.com/holdlock/holdlock/memhold"
	"github.com/holdlock/holdlock/once"
	"github.com/holdlock/holdlock/pghold"
	"github.com/holdlock/holdlock/redishold"
	"github.com/holdlock/holdlock/sqlitehold"
)

var costs = flag.Bool("costs", false, "measure what each store costs, and write it to the page")

// A contestant is one way to run a job under a lock; run is one run, of a job of its own.
type contestant struct {
	name  string
	run   func(ctx context.Context, n int) error
	times []float64 // µs of a run, one value a round
}

// TestCosts measures all stores in turns, on private servers. Without -costs it makes one round to see that all works.
func TestCosts(t *testing.T) {
	rounds, window := 1, 5*time.Millisecond
	if *costs {
		rounds, window = 15, 100*time.Millisecond
	}
	all, machine := contestants(t)
	n := 0
	for round := range rounds {
		order := slices.Clone(all)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, c := range order {
			begin, runs := time.Now(), 0
			for ; time.Since(begin) < window; runs++ {
				n++
				if err := c.run(t.Context(), n); err != nil {
					t.Fatalf("%s: %v", c.name, err)
				}
			}
			c.times = append(c.times, float64(time.Since(begin).Microseconds())/float64(runs))
		}
	}
	table := costsTable(all, machine)
	t.Log("\n" + table)
	if !*costs {
		return
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, found1 := strings.Cut(string(text), "<!-- costs -->\n")
	_, tail, found2 := strings.Cut(rest, "<!-- /costs -->")
	if !found1 || !found2 {
		t.Fatalf("%s has no place for the table", page)
	}
	if err := os.WriteFile(page, []byte(head+"<!-- costs -->\n"+table+"<!-- /costs -->"+tail), 0o600); err != nil {
		t.Fatal(err)
	}
}

func median(values []float64) float64 {
	s := slices.Sorted(slices.Values(values))
	return s[len(s)/2]
}

func costsTable(all []*contestant, machine string) string {
	times := map[string]float64{}
	for _, c := range all {
		times[c.name] = median(c.times)
	}
	unit := times["Redis, one server"]
	var b strings.Builder
	fmt.Fprintf(&b, "%s.\n\n| store | one run, Redis = 1 | µs |\n|---|---:|---:|\n", machine)
	for _, c := range all {
		fmt.Fprintf(&b, "| %s | %.2f | %.0f |\n", c.name, times[c.name]/unit, times[c.name])
	}
	return b.String()
}

// locked runs nothing under a lock, each time with another key.
func locked(t *testing.T, client *holdlock.Client, err error) func(context.Context, int) error {
	t.Helper()
	lock := declared(t, client, err)
	return func(ctx context.Context, n int) error {
		return lock.For(fmt.Sprint(n)).Do(ctx, func(context.Context, *holdlock.Lease) error { return nil })
	}
}

// recorded runs nothing once.
func recorded(t *testing.T, client *holdlock.Client, err error) func(context.Context, int) error {
	t.Helper()
	lock := declared(t, client, err)
	return func(ctx context.Context, n int) error {
		_, err := once.Do(ctx, lock.For(fmt.Sprint(n)), nil, func(context.Context, *once.Run) ([]byte, error) { return nil, nil })
		return err
	}
}

func declared(t *testing.T, client *holdlock.Client, err error) *holdlock.Lock {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Shutdown(context.Background()) })
	lock, err := client.NewLock("cost", nil)
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func contestants(t *testing.T) (all []*contestant, machine string) {
	t.Helper()
	ctx := context.Background()
	server := func() redis.UniversalClient {
		c := redis.NewClient(&redis.Options{Addr: testenv.StartRedis(t).Addr})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	single := server()
	var nodes []redis.UniversalClient
	for range 5 {
		nodes = append(nodes, server())
	}
	if err := redishold.InitQuorum(ctx, nodes, nil); err != nil {
		t.Fatal(err)
	}
	pg := testenv.StartPostgres(t, "fsync=on")
	pool, err := pgxpool.New(ctx, pg.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	migrate(t, pool)
	if _, err := pool.Exec(ctx, "CREATE TABLE effects (n bigint)"); err != nil {
		t.Fatal(err)
	}
	transactions, err := pghold.OpenTransactions(nil)
	inTx := declared(t, transactions, err)
	tx := func(lock func(context.Context, pgx.Tx, *holdlock.Lock) error) func(context.Context, int) error {
		return func(ctx context.Context, n int) error {
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				if err := lock(ctx, tx, inTx.For(fmt.Sprint(n))); err != nil {
					return err
				}
				_, err := tx.Exec(ctx, "INSERT INTO effects VALUES ($1)", n)
				return err
			})
		}
	}
	add := func(name string, run func(context.Context, int) error) {
		all = append(all, &contestant{name: name, run: run})
	}
	client, err := memhold.Open(nil)
	add("memory of one process", locked(t, client, err))
	client, err = sqlitehold.Open(filepath.Join(t.TempDir(), "locks.db"), nil)
	add("SQLite, one machine", locked(t, client, err))
	client, err = redishold.Open(single, nil)
	add("Redis, one server", locked(t, client, err))
	client, err = redishold.OpenQuorum(nodes, nil)
	add("Redis, five nodes", locked(t, client, err))
	client, err = pghold.Open(ctx, pg.URL(), nil)
	add("PostgreSQL, lease row", locked(t, client, err))
	client, err = pghold.OpenSessions(ctx, pg.URL(), nil)
	add("PostgreSQL, session", locked(t, client, err))
	add("PostgreSQL: a transaction with one write, no lock", tx(func(context.Context, pgx.Tx, *holdlock.Lock) error { return nil }))
	add("the same, with `pghold.Lock` in it", tx(func(ctx context.Context, tx pgx.Tx, l *holdlock.Lock) error { return pghold.Lock(ctx, tx, l) }))
	add("the same, with `pghold.Once` in it", tx(func(ctx context.Context, tx pgx.Tx, l *holdlock.Lock) error {
		_, err := pghold.Once(ctx, tx, l, nil)
		return err
	}))
	client, err = memhold.Open(nil)
	add("run once, record in memory", recorded(t, client, err))
	client, err = sqlitehold.Open(filepath.Join(t.TempDir(), "records.db"), nil)
	add("run once, record in SQLite, synced", recorded(t, client, err))
	client, err = redishold.Open(single, &redishold.Options{Namespace: "records"})
	add("run once, record in Redis", recorded(t, client, err))
	client, err = pghold.Open(ctx, pg.URL(), nil)
	add("run once, record in PostgreSQL", recorded(t, client, err))

	version := regexp.MustCompile(`redis_version:(\S+)`).FindStringSubmatch(single.Info(ctx, "server").Val())
	var postgres string
	if err := pool.QueryRow(ctx, "SHOW server_version").Scan(&postgres); err != nil || version == nil {
		t.Fatal(err, version)
	}
	return all, fmt.Sprintf("%s, Redis %s without a disk, PostgreSQL %s with fsync, %s/%s, %d cores shared by client and servers, one caller, every time another key, no work",
		runtime.Version(), version[1], strings.Fields(postgres)[0], runtime.GOOS, runtime.GOARCH, runtime.NumCPU())
}
