//go:build unix

package gocronlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jonboulle/clockwork"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/internal/testenv"
	"github.com/holdlock/holdlock/memhold"
	"github.com/holdlock/holdlock/pghold"
	"github.com/holdlock/holdlock/redishold"
	"github.com/holdlock/holdlock/sqlitehold"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wrong is a clock that is off.
type wrong struct {
	clockwork.Clock
	by time.Duration
}

func (w wrong) Now() time.Time                  { return w.Clock.Now().Add(w.by) }
func (w wrong) Since(t time.Time) time.Duration { return w.Now().Sub(t) }
func (w wrong) Until(t time.Time) time.Duration { return t.Sub(w.Now()) }

// tooLate is what MinHold leaves for a machine that stands still.
const tooLate = 1500 * time.Millisecond

// noted is a Locker that notes when it is asked.
type noted struct {
	gocron.Locker
	note func()
}

func (n noted) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	n.note()
	return n.Locker.Lock(ctx, job)
}

// play runs five replicas whose clocks are off by up to two seconds either way until so many ticks have come to which none of them
// was late, and returns how many ran once and how many did not.
func play(t *testing.T, ticks int, every, minHold time.Duration, schedule gocron.JobDefinition, open func() (*holdlock.Client, error)) (once, other int) {
	t.Helper()
	const replicas, skew = 5, 2 * time.Second
	r := testenv.NewTicks(every, tooLate)
	var stop []func() error
	for i := range replicas {
		client, err := open()
		if err != nil {
			t.Error(err)
			return 0, 0
		}
		locker, err := New(client, &Options{Lock: holdlock.LockOptions{TTL: 10 * time.Second, MinHold: minHold}})
		if err != nil {
			t.Error(err)
			return 0, 0
		}
		clock := wrong{clockwork.NewRealClock(), time.Duration(int64(skew) * int64(2*i-(replicas-1)) / (replicas - 1))} // −skew … skew
		s, err := gocron.NewScheduler(gocron.WithClock(clock), gocron.WithDistributedLocker(noted{locker, func() { r.Try(clock.Now()) }}))
		if err != nil {
			t.Error(err)
			return 0, 0
		}
		if _, err := s.NewJob(schedule, gocron.NewTask(func() { r.Ran(); time.Sleep(time.Millisecond) }), gocron.WithName("job")); err != nil {
			t.Error(err)
			return 0, 0
		}
		s.Start()
		stop = append(stop, s.Shutdown, func() error { return client.Shutdown(context.Background()) })
	}
	once, other = r.Wait(t, ticks)
	for _, f := range stop {
		if err := f(); err != nil {
			t.Error(err)
		}
	}
	return once, other
}

// 200 ticks on five replicas with clocks that differ by four seconds, and a job of a millisecond: each runs once. With a MinHold
// that is too short all run again.
func TestOneRunPerTick(t *testing.T) {
	const ticks = 200
	for _, minHold := range []time.Duration{5 * time.Second, time.Nanosecond} {
		synctest.Test(t, func(t *testing.T) {
			store := memhold.NewStore()
			once, other := play(t, ticks, time.Minute, minHold, gocron.CronJob("* * * * *", false), func() (*holdlock.Client, error) {
				return memhold.Open(&memhold.Options{Store: store})
			})
			if right := once == ticks && other == 0; right != (minHold == 5*time.Second) {
				t.Errorf("MinHold %s: %d ticks of %d ran once, %d did not", minHold, once, ticks, other)
			}
		})
	}
}

// Five replicas of a job that runs every two seconds. If MinHold is longer than that, two ticks of three are dropped, and that is told on every replica;
// with a shorter one all run and nothing is told, though four replicas of five are refused at each.
func TestTicksCloserThanMinHold(t *testing.T) {
	for minHold, want := range map[time.Duration]int{5 * time.Second: 10, time.Second: 30} {
		synctest.Test(t, func(t *testing.T) {
			store := memhold.NewStore()
			var runs, told, refused atomic.Int64
			var stop []func()
			for range 5 {
				client, err := memhold.Open(&memhold.Options{Store: store})
				if err != nil {
					t.Fatal(err)
				}
				locker, err := New(client, &Options{Lock: holdlock.LockOptions{MinHold: minHold}})
				if err != nil {
					t.Fatal(err)
				}
				s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
				if err != nil {
					t.Fatal(err)
				}
				_, err = s.NewJob(gocron.CronJob("*/2 * * * * *", true), gocron.NewTask(func() { runs.Add(1) }), gocron.WithName("job"),
					gocron.WithEventListeners(gocron.AfterLockError(func(_ uuid.UUID, job string, err error) {
						if !errors.Is(err, holdlock.ErrHeld) {
							t.Errorf("%s: %v", job, err)
						}
						refused.Add(1)
						if errors.Is(err, ErrTooOften) {
							told.Add(1)
						}
					})))
				if err != nil {
					t.Fatal(err)
				}
				s.Start()
				stop = append(stop, func() { _ = s.Shutdown(); _ = client.Shutdown(context.Background()) })
			}
			time.Sleep(61 * time.Second) // 30 ticks, of a virtual clock
			for _, f := range stop {
				f()
			}
			if n := runs.Load(); n != int64(want) {
				t.Errorf("MinHold %s: %d ticks of 30 ran, want %d", minHold, n, want)
			}
			dropped := int64(30 - want)
			if told.Load() < 5*dropped || dropped == 0 && told.Load() != 0 || refused.Load() < 4*30 {
				t.Errorf("MinHold %s: %d ticks dropped, told %d times; refused %d times", minHold, dropped, told.Load(), refused.Load())
			}
		})
	}
}

// The same on real stores, in real time.
func TestOnRealStores(t *testing.T) {
	const ticks, every, minHold = 10, 10 * time.Second, 6500 * time.Millisecond
	path, rdb := t.TempDir()+"/locks", redis.NewClient(&redis.Options{Addr: testenv.StartRedis(t).Addr})
	t.Cleanup(func() { _ = rdb.Close() })
	pg := testenv.StartPostgres(t).URL()
	conn, err := pgx.Connect(t.Context(), pg)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(pghold.Migrate(t.Context(), conn, ""), conn.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	stores := map[string]func() (*holdlock.Client, error){
		"sqlite":   func() (*holdlock.Client, error) { return sqlitehold.Open(path, nil) },
		"redis":    func() (*holdlock.Client, error) { return redishold.Open(rdb, nil) },
		"postgres": func() (*holdlock.Client, error) { return pghold.Open(context.Background(), pg, nil) },
	}
	var all sync.WaitGroup // and not parallel tests, of which there are no more at a time than processors
	for name, open := range stores {
		all.Go(func() {
			if once, other := play(t, ticks, every, minHold, gocron.CronJob("*/10 * * * * *", true), open); once != ticks || other != 0 {
				t.Errorf("%s: %d ticks of %d ran once, %d did not", name, once, ticks, other)
			}
		})
	}
	all.Wait()
}

// A replica that dies in its run does not keep the next tick from running.
func TestDeadReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, err := memhold.Open(nil)
		if err != nil {
			t.Fatal(err)
		}
		locker, err := New(client, &Options{Lock: holdlock.LockOptions{TTL: 10 * time.Second, MinHold: 5 * time.Second, Renew: holdlock.RenewOff}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := locker.Lock(t.Context(), "job"); err != nil {
			t.Fatal(err)
		}
		if _, err := locker.Lock(t.Context(), "job"); err == nil || !strings.Contains(err.Error(), `lock "gocron" key "job" is held by`) {
			t.Errorf("while it is held: %v", err)
		}
		time.Sleep(time.Minute)
		lock, err := locker.Lock(t.Context(), "job")
		if err != nil {
			t.Fatal(err)
		}
		if err := lock.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		if err := client.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// A locker remembers the jobs of the last MinHold and little more: a scheduler may have had a million that ran once.
func TestJobsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		locks, err := memhold.Open(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer locks.Shutdown(context.Background())
		l, err := New(locks, &Options{Lock: holdlock.LockOptions{MinHold: 10 * time.Second}})
		if err != nil {
			t.Fatal(err)
		}
		most := 0
		for i := range 20_000 {
			l.ask(fmt.Sprint("once ", i))
			if i%50 == 0 {
				if since, again := l.ask("often"); again != (i > 0) || again && since != 5*time.Second {
					t.Fatalf("a job that comes again: %v after %s", again, since)
				}
			}
			most = max(most, len(l.asked))
			time.Sleep(100 * time.Millisecond)
		}
		if most < 101 || most > 500 { // 101 are asked for within MinHold
			t.Errorf("%d jobs are remembered", most)
		}
	})
}

func TestBadInput(t *testing.T) {
	client, err := memhold.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Shutdown(context.Background())
	for _, o := range []*Options{
		{Name: "a/b", Lock: holdlock.LockOptions{MinHold: 1}},
		{Lock: holdlock.LockOptions{MinHold: 1, Wait: time.Second}},
		{Lock: holdlock.LockOptions{MinHold: 1, TTL: 1}},
	} {
		if _, err := New(client, o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
	for _, o := range []*Options{nil, {}, {Lock: holdlock.LockOptions{TTL: time.Minute}}} {
		if _, err := New(client, o); !errors.Is(err, ErrMinHold) {
			t.Errorf("%+v: %v, want ErrMinHold", o, err)
		}
	}
	locker, err := New(client, &Options{Lock: holdlock.LockOptions{MinHold: 5 * time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", "a\x00b", strings.Repeat("x", 600)} {
		if _, err := locker.Lock(t.Context(), name); err == nil {
			t.Errorf("the job name %.10q is accepted", name)
		}
	}
	for range 3 {
		name := fmt.Sprint("main.func1/", rand.Int())
		if lock, err := locker.Lock(t.Context(), name); err != nil {
			t.Error(err)
		} else if err := lock.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// What no tick could pass is refused when the program starts: without a listener nobody would ever be told.
func TestRefusedLocks(t *testing.T) {
	if _, err := New(nil, &Options{Lock: holdlock.LockOptions{MinHold: time.Second}}); !errors.Is(err, holdlock.ErrInvalid) || !strings.Contains(err.Error(), "lock gocron") {
		t.Errorf("without a client: %v", err)
	}
	client, err := memhold.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	harmful := &Options{Name: "reports", Lock: holdlock.LockOptions{MinHold: time.Second, DoubleRun: holdlock.Harmful}}
	if _, err := New(client, harmful); !errors.Is(err, holdlock.ErrRefused) || !strings.Contains(err.Error(), "lock reports") {
		t.Errorf("a Harmful lock: %v", err)
	}
	harmful.Lock.AcceptRisk = "a test"
	if _, err := New(client, harmful); err != nil {
		t.Errorf("an accepted risk: %v", err)
	}
	shadow := &Options{Lock: holdlock.LockOptions{MinHold: time.Second, DoubleRun: holdlock.Costly, Mode: holdlock.Shadow}}
	if _, err := New(client, shadow); err != nil {
		t.Errorf("in shadow mode: %v", err)
	}
	if err := client.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, o := range []*Options{harmful, shadow} {
		if _, err := New(client, o); !errors.Is(err, holdlock.ErrShutdown) || !strings.Contains(err.Error(), "lock ") {
			t.Errorf("a client that has ended: %v", err)
		}
	}
}
