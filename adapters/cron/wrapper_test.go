//go:build unix

package cronlock

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/robfig/cron/v3"
	"go.uber.org/goleak"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/internal/testenv"
	"github.com/holdlock/holdlock/memhold"
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

// play runs five replicas whose clocks are off by up to skew either way, and returns how often each tick ran.
func play(t *testing.T, ticks int, spec string, every, skew, minHold time.Duration, wrap bool, open func() (*holdlock.Client, error)) map[time.Time]int {
	t.Helper()
	var mu sync.Mutex
	ran := map[time.Time]int{}
	run := func() {
		mu.Lock()
		ran[time.Now().Round(every)]++
		mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	opts := &Options{Error: func(err error) {
		if !errors.Is(err, holdlock.ErrHeld) {
			t.Error(err)
		}
	}}
	const replicas = 5
	schedule, err := cron.NewParser(cron.Second | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow).Parse(spec)
	if err != nil {
		t.Fatal(err)
	}
	var stop []func()
	for i := range replicas {
		client, err := open()
		if err != nil {
			t.Fatal(err)
		}
		lock, err := client.NewLock("tick", &holdlock.LockOptions{MinHold: minHold})
		if err != nil {
			t.Fatal(err)
		}
		job, err := Job(lock, func(context.Context, *holdlock.Lease) error { run(); return nil }, opts)
		if wrap {
			var w cron.JobWrapper
			if w, err = Wrapper(lock, opts); err == nil {
				job = cron.NewChain(w).Then(cron.FuncJob(run))
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		c := cron.New()
		c.Schedule(wrong{schedule, time.Duration(int64(skew) * int64(2*i-(replicas-1)) / (replicas - 1))}, job)
		c.Start()
		stop = append(stop, func() {
			<-c.Stop().Done()
			if err := client.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	time.Sleep(time.Until(time.Now().Round(every).Add(time.Duration(ticks)*every + every/2)))
	for _, f := range stop {
		f()
	}
	mu.Lock()
	defer mu.Unlock()
	return ran
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
			ran := play(t, ticks, "0 * * * * *", time.Minute, 2*time.Second, c.minHold, c.wrap, func() (*holdlock.Client, error) {
				return memhold.Open(&memhold.Options{Store: store})
			})
			if len(ran) < ticks-1 || len(ran) > ticks+1 {
				t.Errorf("%d ticks ran, want %d", len(ran), ticks)
			}
			again := 0
			for _, n := range ran {
				if n != 1 {
					again++
				}
			}
			if (again == 0) != c.once {
				t.Errorf("%+v: %d ticks did not run once", c, again)
			}
		})
	}
}

// The same on real stores, in real time.
func TestOnRealStores(t *testing.T) {
	path, rdb := t.TempDir()+"/locks", redis.NewClient(&redis.Options{Addr: testenv.StartRedis(t).Addr})
	t.Cleanup(func() { _ = rdb.Close() })
	for name, open := range map[string]func() (*holdlock.Client, error){
		"sqlite": func() (*holdlock.Client, error) { return sqlitehold.Open(path, nil) },
		"redis":  func() (*holdlock.Client, error) { return redishold.Open(rdb, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const ticks = 10
			ran := play(t, ticks, "*/2 * * * * *", 2*time.Second, 200*time.Millisecond, time.Second, false, open)
			for tick, n := range ran {
				if n != 1 {
					t.Errorf("the tick at %s ran %d times", tick, n)
				}
			}
			if len(ran) < ticks-2 { // a machine that stands still may swallow one
				t.Errorf("%d ticks ran, want %d", len(ran), ticks)
			}
		})
	}
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
	})
}
