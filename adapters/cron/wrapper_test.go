//go:build unix

package cronlock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"
	"go.uber.org/goleak"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/internal/testenv"
	"github.com/holdlock/holdlock/memhold"
	"github.com/holdlock/holdlock/once"
	"github.com/holdlock/holdlock/pghold"
	"github.com/holdlock/holdlock/redishold"
	"github.com/holdlock/holdlock/sqlitehold"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wrong is a schedule as a clock sees it that is off.
type wrong struct {
	cron.Schedule
	by time.Duration
}

func (w wrong) Next(t time.Time) time.Time { return w.Schedule.Next(t.Add(w.by)).Add(-w.by) }

// tooLate is what MinHold leaves for a machine that stands still.
const tooLate = 1500 * time.Millisecond

// play runs five replicas whose clocks are off by up to two seconds either way until so many ticks have come to which none of them
// was late, and returns how many ran once and how many did not.
func play(
	t *testing.T, ticks int, spec string, every, minHold time.Duration, wrap bool, open func() (*holdlock.Client, error),
) (once, other int) {
	t.Helper()
	opts := &Options{Error: func(err error) {
		if !errors.Is(err, holdlock.ErrHeld) {
			t.Error(err)
		}
	}}
	const replicas, skew = 5, 2 * time.Second
	schedule, err := cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow).Parse(spec)
	if err != nil {
		t.Error(err)
		return 0, 0
	}
	r := testenv.NewTicks(every, tooLate)
	run := func() { r.Ran(); time.Sleep(time.Millisecond) }
	var stop []func()
	for i := range replicas {
		client, err := open()
		if err != nil {
			t.Error(err)
			return 0, 0
		}
		lock, err := client.NewLock("tick", &holdlock.LockOptions{MinHold: minHold})
		if err != nil {
			t.Error(err)
			return 0, 0
		}
		job, err := Job(lock, func(context.Context, *holdlock.Lease) error { run(); return nil }, opts)
		if wrap {
			var w cron.JobWrapper
			if w, err = Wrapper(lock, opts); err == nil {
				job = cron.NewChain(w).Then(cron.FuncJob(run))
			}
		}
		if err != nil {
			t.Error(err)
			return 0, 0
		}
		by := time.Duration(int64(skew) * int64(2*i-(replicas-1)) / (replicas - 1)) // −skew … skew
		c := cron.New()
		c.Schedule(wrong{schedule, by}, cron.FuncJob(func() { r.Try(time.Now().Add(by)); job.Run() }))
		c.Start()
		stop = append(stop, func() {
			<-c.Stop().Done()
			if err := client.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	once, other = r.Wait(t, ticks)
	for _, f := range stop {
		f()
	}
	return once, other
}

// 200 ticks on five replicas with clocks that differ by four seconds, and a job of a millisecond: each runs once. With a MinHold
// that is too short some run again.
func TestOneRunPerTick(t *testing.T) {
	const ticks = 200
	for _, c := range []struct {
		minHold time.Duration
		wrap    bool
		once    bool
	}{{5 * time.Second, false, true}, {5 * time.Second, true, true}, {time.Millisecond, false, false}} {
		synctest.Test(t, func(t *testing.T) {
			store := memhold.NewStore()
			once, other := play(t, ticks, "0 * * * * *", time.Minute, c.minHold, c.wrap, func() (*holdlock.Client, error) {
				return memhold.Open(&memhold.Options{Store: store})
			})
			if right := once == ticks && other == 0; right != c.once {
				t.Errorf("%+v: %d ticks of %d ran once, %d did not", c, once, ticks, other)
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
			if once, other := play(t, ticks, "*/10 * * * * *", every, minHold, false, open); once != ticks || other != 0 {
				t.Errorf("%s: %d ticks of %d ran once, %d did not", name, once, ticks, other)
			}
		})
	}
	all.Wait()
}

// A replica that was suspended over a tick fires it when it wakes: within MinHold that is skipped, and after it the tick runs again. As a job
// of its scheduled time it does not.
func TestLateReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, err := memhold.Open(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Shutdown(context.Background())
		const minHold = 5 * time.Second
		lock, err := client.NewLock("tick", &holdlock.LockOptions{MinHold: minHold})
		if err != nil {
			t.Fatal(err)
		}
		ran, ranOnce, tick := 0, 0, time.Now().UTC().Format(time.RFC3339)
		job, err := Job(lock, func(context.Context, *holdlock.Lease) error { ran++; return nil }, nil)
		if err != nil {
			t.Fatal(err)
		}
		plain, err := client.NewLock("report", nil)
		if err != nil {
			t.Fatal(err)
		}
		fire := func() {
			job.Run()
			if _, err := once.Do(t.Context(), plain.For(tick), &once.Options{Keep: time.Hour}, func(context.Context, *once.Run) ([]byte, error) {
				ranOnce++
				return nil, nil
			}); err != nil {
				t.Error(err)
			}
		}
		fire()
		time.Sleep(minHold - time.Millisecond)
		fire()
		if ran != 1 || ranOnce != 1 {
			t.Errorf("a replica that is late by less than MinHold: the tick ran %d times, its job %d", ran, ranOnce)
		}
		time.Sleep(2 * time.Millisecond)
		fire()
		if ran != 2 || ranOnce != 1 {
			t.Errorf("a replica that is late by more than MinHold: the tick ran %d times, its job %d", ran, ranOnce)
		}
	})
}

// A replica that dies in its run keeps the next tick from running until its term is over, and no longer.
func TestDeadReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memhold.NewStore()
		open := func() *holdlock.Lock {
			client, err := memhold.Open(&memhold.Options{Store: store})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = client.Shutdown(context.Background()) })
			lock, err := client.NewLock("tick", &holdlock.LockOptions{TTL: 10 * time.Second, MinHold: time.Second, Renew: holdlock.RenewOff})
			if err != nil {
				t.Fatal(err)
			}
			return lock
		}
		if _, err := open().TryAcquire(t.Context()); err != nil { // and is never heard of again
			t.Fatal(err)
		}
		ran, skipped := 0, 0
		job, err := Job(open(), func(context.Context, *holdlock.Lease) error { ran++; return nil }, &Options{Error: func(error) { skipped++ }})
		if err != nil {
			t.Fatal(err)
		}
		job.Run()
		if ran != 0 || skipped != 1 {
			t.Errorf("while the dead one holds it: ran %d times, skipped %d", ran, skipped)
		}
		time.Sleep(10*time.Second + time.Millisecond)
		job.Run()
		if ran != 1 {
			t.Errorf("after its TTL: ran %d times", ran)
		}
	})
}

// The work of Job is told when its lease is lost, and errors reach the program.
func TestErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, err := memhold.Open(nil)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Shutdown(context.Background())
		lock, err := client.NewLock("tick", &holdlock.LockOptions{TTL: time.Second, MaxHold: 10 * time.Second, MinHold: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		var got error
		job, err := Job(lock, func(ctx context.Context, _ *holdlock.Lease) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}, &Options{Error: func(err error) { got = err }})
		if err != nil {
			t.Fatal(err)
		}
		job.Run()
		if !errors.Is(got, holdlock.ErrLost) {
			t.Errorf("work that reached MaxHold: %v, want ErrLost", got)
		}
		bare, err := client.NewLock("bare", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Job(bare, nil, nil); !errors.Is(err, ErrMinHold) {
			t.Errorf("Job on a lock without MinHold: %v", err)
		}
		if _, err := Wrapper(bare, nil); !errors.Is(err, ErrMinHold) {
			t.Errorf("Wrapper on a lock without MinHold: %v", err)
		}
		for _, wait := range []time.Duration{time.Minute, holdlock.Forever} {
			patient, err := client.NewLock("patient", &holdlock.LockOptions{MinHold: time.Second, Wait: wait})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := Job(patient, nil, nil); !errors.Is(err, ErrWait) || !strings.Contains(err.Error(), "patient") {
				t.Errorf("Job on a lock that waits for %s: %v", wait, err)
			}
			if _, err := Wrapper(patient, nil); !errors.Is(err, ErrWait) {
				t.Errorf("Wrapper on a lock that waits for %s: %v", wait, err)
			}
		}
	})
}

// What no tick could pass is refused when the program starts: with Options nil nobody would ever be told.
func TestRefusedLocks(t *testing.T) {
	work := func(context.Context, *holdlock.Lease) error { return nil }
	client, err := memhold.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	lock := func(o holdlock.LockOptions) *holdlock.Lock {
		o.MinHold = time.Second
		l, err := client.NewLock("report", &o)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	fine := lock(holdlock.LockOptions{DoubleRun: holdlock.Harmful, AcceptRisk: "a test"})
	harmful, long := lock(holdlock.LockOptions{DoubleRun: holdlock.Harmful}), fine.For(strings.Repeat("x", 600))
	shadow := lock(holdlock.LockOptions{DoubleRun: holdlock.Costly, Mode: holdlock.Shadow})
	for _, l := range []*holdlock.Lock{fine, shadow} {
		if _, err := Job(l, work, nil); err != nil {
			t.Error(err)
		}
		if _, err := Wrapper(l, nil); err != nil {
			t.Error(err)
		}
	}
	if _, err := Job(fine, nil, nil); !errors.Is(err, holdlock.ErrInvalid) || !strings.Contains(err.Error(), "lock report") {
		t.Errorf("without work: %v", err)
	}
	refused := func(what string, l *holdlock.Lock, want error, words string) {
		t.Helper()
		if _, err := Job(l, work, nil); !errors.Is(err, want) || !strings.Contains(err.Error(), words) {
			t.Errorf("Job, %s: %v", what, err)
		}
		if _, err := Wrapper(l, nil); !errors.Is(err, want) || !strings.Contains(err.Error(), words) {
			t.Errorf("Wrapper, %s: %v", what, err)
		}
	}
	refused("no lock", nil, holdlock.ErrInvalid, "cronlock")
	refused("a Harmful lock", harmful, holdlock.ErrRefused, "lock report")
	refused("a key that no lock can have", long, holdlock.ErrInvalid, "lock report")
	if err := client.Shutdown(context.Background()); err != nil {
		t.Fatal(err)
	}
	refused("a client that has ended", fine, holdlock.ErrShutdown, "lock report")
	refused("a client that has ended, in shadow mode", shadow, holdlock.ErrShutdown, "lock report")
}

// Why a lock must not wait: five replicas that do run each tick five times.
func TestWaitingRunsAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memhold.NewStore()
		var ran atomic.Int64
		var all sync.WaitGroup
		for range 5 {
			client, err := memhold.Open(&memhold.Options{Store: store})
			if err != nil {
				t.Fatal(err)
			}
			defer client.Shutdown(context.Background())
			lock, err := client.NewLock("tick", &holdlock.LockOptions{MinHold: time.Second, Wait: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			all.Go(func() {
				if err := lock.Do(t.Context(), func(context.Context, *holdlock.Lease) error { ran.Add(1); return nil }); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if n := ran.Load(); n != 5 {
			t.Errorf("it ran %d times; then there is no need to refuse it", n)
		}
	})
}
