//go:build soak

package ledger

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
	"github.com/holdlock/holdlock/pghold"
	"github.com/holdlock/holdlock/redishold"
	"github.com/holdlock/holdlock/sqlitehold"
)

const (
	sizeLocks = 1000
	sizeDays  = 90
	sizeMost  = 20 << 20 // bytes
)

// aDay makes the events of one lock on one day: some hundred attempts, of all outcomes, with holds and waits over three magnitudes.
func aDay(r *Recorder, rng *rand.Rand, lock string) {
	spread := func(median time.Duration) time.Duration {
		return time.Duration(float64(median) * math.Exp(rng.NormFloat64()))
	}
	median := time.Duration(math.Exp(rng.Float64()*math.Log(1e6))) * time.Millisecond / 100 // 10 µs to 10 s
	for range 50 + rng.IntN(400) {
		e := holdlock.Event{Kind: holdlock.Granted, Name: lock, Waited: spread(median), Contended: rng.IntN(3) == 0}
		if rng.IntN(4) == 0 {
			e.Kind, e.Token, e.GaveUp = holdlock.Skipped, holdlock.Token(1.7e15)+holdlock.Token(rng.IntN(5)), true
			r.Observe(e)
			continue
		}
		r.Observe(e)
		e.Kind, e.Held = holdlock.Released, spread(median)
		if rng.IntN(50) == 0 {
			e.Kind = holdlock.Lost
			for e.Reason = range losses { // any
				break
			}
		}
		r.Observe(e)
	}
	r.Observe(holdlock.Event{Kind: holdlock.Renewed, Name: lock}) // once a day it is told that a term stands
	for _, kind := range []holdlock.EventKind{holdlock.Failed, holdlock.Lapsed, holdlock.RenewFailed} {
		if rng.IntN(5) == 0 {
			r.Observe(holdlock.Event{Kind: kind, Name: lock, Ending: driver.Lapsed, Prior: &driver.Term{Nonce: fmt.Sprint(rng.Uint64())}})
		}
	}
	if rng.IntN(5) == 0 {
		r.Observe(holdlock.Event{Kind: holdlock.Unreleased, Name: lock, Abandoned: true, Left: &driver.Ref{Nonce: fmt.Sprint(rng.Uint64())}})
	}
}

// TestSoakSize fills ledgers on real stores with a thousand locks in 90 days, each record written by two programs, and measures them.
func TestSoakSize(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) (l driver.Ledger, tidy func(), size func() int64){
		"sqlite":   onSQLite,
		"redis":    onRedis,
		"postgres": onPostgres,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l, tidy, size := open(t)
			before, began := size(), time.Now()
			for d := range sizeDays {
				for program := range 2 {
					r := started(l, &Options{Every: 24 * time.Hour})
					day := time.Now().Add(-time.Duration(sizeDays-1-d) * 24 * time.Hour)
					r.now = func() time.Time { return day }
					rng := rand.New(rand.NewPCG(uint64(d), uint64(program)))
					for i := range sizeLocks - 1 {
						lock := fmt.Sprintf("report-of-department-%04d", i)
						if d == 0 || d == sizeDays-1 {
							r.Declare(lock, holdlock.LockOptions{TTL: time.Minute, Purpose: "one report a day for each", DoubleRun: holdlock.Costly})
						}
						aDay(r, rng, lock)
					}
					if err := r.Stop(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				tidy()
			}
			locks, problems, err := Load(t.Context(), l, driver.DayOf(began)-sizeDays, driver.DayOf(began)+1)
			if err != nil || len(problems) > 0 || len(locks) != sizeLocks-1 || len(locks[0].Days) < sizeDays/spanDays {
				t.Fatalf("%d locks, problems %v, %v", len(locks), problems, err)
			}
			bytes, records := 0, 0
			_ = l.ReadRecords(t.Context(), -1<<30, 1<<30, func(_ driver.Day, _ string, record []byte) error {
				bytes += len(record)
				records++
				return nil
			})
			grown := size() - before
			t.Logf("%d locks in %d days: %.1f MB, of which %.1f MB are %d records of %d bytes on average; written in %s",
				sizeLocks, sizeDays, float64(grown)/(1<<20), float64(bytes)/(1<<20), records, bytes/max(records, 1), time.Since(began).Round(time.Second))
			if grown > sizeMost {
				t.Errorf("the ledger takes %d bytes, more than %d", grown, sizeMost)
			}
		})
	}
}

func onSQLite(t *testing.T) (driver.Ledger, func(), func() int64) {
	file := filepath.Join(t.TempDir(), "locks.db")
	d, err := sqlitehold.NewDriver(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d, func() {}, func() (sum int64) {
		for _, name := range []string{file, file + "-wal"} {
			if info, err := os.Stat(name); err == nil {
				sum += info.Size()
			}
		}
		return sum
	}
}

func onRedis(t *testing.T) (driver.Ledger, func(), func() int64) {
	r := testenv.StartRedis(t)
	c := redis.NewClient(&redis.Options{Addr: r.Addr})
	d, err := redishold.NewDriver(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = d.Close(), c.Close() })
	keys := func() []string {
		keys, err := c.Keys(t.Context(), "*").Result()
		if err != nil {
			t.Fatal(err)
		}
		return keys
	}
	tidy := func() { // in real time, single days would have expired since
		for _, k := range keys() {
			var day driver.Day
			if _, err := fmt.Sscanf(k, "holdlock:{usage:%d}", &day); err == nil && day > 0 && driver.DayOf(time.Now().Add(-driver.DayTTL)) > day {
				c.Del(t.Context(), k)
			}
		}
	}
	return d, tidy, func() (sum int64) { // what keys take, with all overhead, and not what the server takes for itself
		for _, k := range keys() {
			n, err := c.MemoryUsage(t.Context(), k, 0).Result()
			if err != nil {
				t.Fatal(err)
			}
			sum += n
		}
		return sum
	}
}

func onPostgres(t *testing.T) (driver.Ledger, func(), func() int64) {
	p := testenv.StartPostgres(t)
	conn, err := pgx.Connect(t.Context(), p.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if err := pghold.Migrate(t.Context(), conn, ""); err != nil {
		t.Fatal(err)
	}
	d, err := pghold.NewLeaseDriver(t.Context(), p.URL(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	tidy := func() {
		for range 300 { // a day has thousands of flushes, of which one in fifty looks for what is old
			if err := d.UpdateRecords(t.Context(), driver.DayOf(time.Now()), nil, nil); err != nil {
				t.Fatal(err)
			}
		}
		p.Do(t, `VACUUM "holdlock".usage`) // as the server does by itself now and then
	}
	return d, tidy, func() int64 {
		n, err := strconv.ParseInt(strings.TrimSpace(p.Do(t, `SELECT pg_total_relation_size('"holdlock".usage')`)), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
}
