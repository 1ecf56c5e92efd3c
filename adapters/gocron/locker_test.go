//go:build unix

package gocronlock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jonboulle/clockwork"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/internal/testenv"
	"github.com/holdlock/holdlock/memhold"
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

// runs counts when a job has run.
type runs struct {
	mu sync.Mutex
	at []time.Time
}

func (r *runs) job(takes time.Duration) func(context.Context) {
	return func(ctx context.Context) {
		r.mu.Lock()
		r.at = append(r.at, time.Now())
		r.mu.Unlock()
		select {
		case <-time.After(takes):
		case <-ctx.Done():
		}
	}
}

// ticks returns how often each tick was run. A run belongs to the tick that it is nearest to.
func (r *runs) ticks(every time.Duration) map[time.Time]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := map[time.Time]int{}
	for _, at := range r.at {
		n[at.Round(every)]++
	}
	return n
}

// play runs replicas whose clocks are off by up to skew either way, for so many ticks.
func play(t *testing.T, ticks int, every, takes, skew, minHold time.Duration, schedule func() gocron.JobDefinition,
	open func(*testing.T) *holdlock.Client,
) map[time.Time]int {
	var r runs
	const replicas = 5
	var stop []func() error
	for i := range replicas {
		client := open(t)
		locker, err := New(client, &Options{Lock: holdlock.LockOptions{TTL: 10 * time.Second, MinHold: minHold}})
		if err != nil {
			t.Fatal(err)
		}
		by := time.Duration(int64(skew) * int64(2*i-(replicas-1)) / (replicas - 1)) // −skew … skew
		s, err := gocron.NewScheduler(gocron.WithClock(wrong{clockwork.NewRealClock(), by}), gocron.WithDistributedLocker(locker))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.NewJob(schedule(), gocron.NewTask(r.job(takes)), gocron.WithName("job")); err != nil {
			t.Fatal(err)
		}
		s.Start()
		stop = append(stop, s.Shutdown, func() error { return client.Shutdown(context.Background()) })
	}
	time.Sleep(time.Until(time.Now().Round(every).Add(time.Duration(ticks)*every + every/2)))
	for _, f := range stop {
		if err := f(); err != nil {
			t.Error(err)
		}
	}
	return r.ticks(every)
}

// each checks that every tick but the first, before which a replica may have started too late, ran once.
func each(t *testing.T, got map[time.Time]int, ticks int) (wrong int) {
	t.Helper()
	whole := 0
	for _, n := range got {
		whole++
		if n != 1 {
			wrong++
		}
	}
	if whole < ticks-1 || whole > ticks+1 {
		t.Errorf("%d ticks ran, want %d", whole, ticks)
	}
	return wrong
}

// 200 ticks on five replicas with clocks that differ by four seconds, and a job of a millisecond: each runs once. Without MinHold
// some run again.
func TestOneRunPerTick(t *testing.T) {
	const ticks = 200
	for _, c := range []struct {
		minHold time.Duration
		once    bool
	}{{0, true}, {time.Nanosecond, false}} { // 0 is the default
		synctest.Test(t, func(t *testing.T) {
			store := memhold.NewStore()
			got := play(t, ticks, time.Minute, time.Millisecond, 2*time.Second, c.minHold, func() gocron.JobDefinition { return gocron.CronJob("* * * * *", false) },
				func(t *testing.T) *holdlock.Client {
					client, err := memhold.Open(&memhold.Options{Store: store})
					if err != nil {
						t.Fatal(err)
					}
					return client
				})
			if wrong := each(t, got, ticks); (wrong == 0) != c.once {
				t.Errorf("MinHold %s: %d ticks did not run once", c.minHold, wrong)
			}
		})
	}
}

// The same on real stores, in real time.
func TestOnRealStores(t *testing.T) {
	path, addr := t.TempDir()+"/locks", testenv.StartRedis(t).Addr
	for name, open := range map[string]func(t *testing.T) (*holdlock.Client, error){
		"sqlite": func(*testing.T) (*holdlock.Client, error) { return sqlitehold.Open(path, nil) },
		"redis": func(t *testing.T) (*holdlock.Client, error) {
			rdb := redis.NewClient(&redis.Options{Addr: addr})
			t.Cleanup(func() { _ = rdb.Close() })
			return redishold.Open(rdb, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const ticks = 10
			got := play(t, ticks, 2*time.Second, time.Millisecond, 200*time.Millisecond, time.Second,
				func() gocron.JobDefinition { return gocron.CronJob("*/2 * * * * *", true) },
				func(t *testing.T) *holdlock.Client {
					client, err := open(t)
					if err != nil {
						t.Fatal(err)
					}
					return client
				})
			for tick, n := range got {
				if n != 1 {
					t.Errorf("the tick at %s ran %d times", tick, n)
				}
			}
			if len(got) < ticks-2 { // a machine that stands still may swallow one
				t.Errorf("%d ticks ran, want %d", len(got), ticks)
			}
		})
	}
}

// A replica that dies in its run does not keep the next tick from running.
func TestDeadReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, err := memhold.Open(nil)
		if err != nil {
			t.Fatal(err)
		}
		locker, err := New(client, &Options{Lock: holdlock.LockOptions{TTL: 10 * time.Second, Renew: holdlock.RenewOff}})
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

func TestBadInput(t *testing.T) {
	client, err := memhold.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Shutdown(context.Background())
	for _, o := range []*Options{
		{Name: "a/b"}, {Lock: holdlock.LockOptions{Wait: time.Second}}, {Lock: holdlock.LockOptions{TTL: 1}},
	} {
		if _, err := New(client, o); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
	locker, err := New(client, nil)
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
