//go:build unix

package redishold

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/internal/testenv"
)

// A storm is what administrators and networks do to a server and its connections. It strikes once.
type storm func(r *testenv.Redis, admin *redis.Client, p *testenv.Proxy)

var storms = map[string]storm{
	"calm": func(*testenv.Redis, *redis.Client, *testenv.Proxy) {},
	"CLIENT KILL": func(r *testenv.Redis, _ *redis.Client, _ *testenv.Proxy) {
		_, _ = r.Try("CLIENT", "KILL", "TYPE", "normal")
		_, _ = r.Try("CLIENT", "KILL", "TYPE", "pubsub")
	},
	"CLIENT PAUSE ALL": func(r *testenv.Redis, _ *redis.Client, _ *testenv.Proxy) {
		_, _ = r.Try("CLIENT", "PAUSE", "20", "ALL")
	},
	"CLIENT PAUSE WRITE": func(r *testenv.Redis, _ *redis.Client, _ *testenv.Proxy) {
		_, _ = r.Try("CLIENT", "PAUSE", "20", "WRITE")
	},
	"DEBUG SLEEP":  func(r *testenv.Redis, _ *redis.Client, _ *testenv.Proxy) { _, _ = r.Try("DEBUG", "SLEEP", "0.02") },
	"SCRIPT FLUSH": func(r *testenv.Redis, _ *redis.Client, _ *testenv.Proxy) { _, _ = r.Try("SCRIPT", "FLUSH") },
	"maxclients": func(_ *testenv.Redis, admin *redis.Client, p *testenv.Proxy) {
		admin.ConfigSet(context.Background(), "maxclients", "1") // new ones are refused from here on
		p.CutAll()
		time.Sleep(5 * time.Millisecond)
		admin.ConfigSet(context.Background(), "maxclients", "10000")
	},
	"cuts": func(_ *testenv.Redis, _ *redis.Client, p *testenv.Proxy) { p.CutAll() },
	"a lost reply": func(_ *testenv.Redis, _ *redis.Client, p *testenv.Proxy) {
		rule, _ := once(testenv.LoseReply, func([]byte) bool { return true })
		p.SetScript(rule)
	},
	"a lost request": func(_ *testenv.Redis, _ *redis.Client, p *testenv.Proxy) {
		rule, _ := once(testenv.Cut, func([]byte) bool { return true })
		p.SetScript(rule)
	},
	"out of memory": func(_ *testenv.Redis, admin *redis.Client, _ *testenv.Proxy) {
		admin.ConfigSet(context.Background(), "maxmemory", "1")
		time.Sleep(5 * time.Millisecond)
		admin.ConfigSet(context.Background(), "maxmemory", "0")
	},
}

// Programs take turns on a few locks in a storm that strikes every few turns. There is never a second holder, nothing but
// the four answers, and nothing stays behind.
func TestStorms(t *testing.T) {
	t.Parallel()
	for name, strike := range storms {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if overlaps := weather(t, strike, true, 100, time.Minute); overlaps > 0 {
				t.Errorf("%d overlaps", overlaps)
			}
		})
	}
	t.Run("without exclusion", func(t *testing.T) { // the control: overlaps would be seen
		t.Parallel()
		if overlaps := weather(t, storms["calm"], false, 100, time.Minute); overlaps == 0 {
			t.Error("no overlap was seen among locks that do not exclude each other, so the test tells nothing")
		}
	})
}

// weather lets programs take turns until there were enough, or for so long, and returns how often two were inside.
func weather(t *testing.T, strike storm, exclude bool, turns int64, limit time.Duration) (overlaps int64) {
	t.Helper()
	const programs, locks, ttl = 4, 2, 5 * time.Minute
	r := testenv.StartRedis(t)
	p := testenv.StartProxy(t, r.Addr, nil)
	admin := redis.NewClient(&redis.Options{Addr: r.Addr, MaxRetries: -1, PoolSize: 1, MaintNotificationsConfig: noMaintenance})
	defer admin.Close()
	if err := admin.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), limit)
	defer stop()
	var inside [locks]atomic.Int64
	var highest [locks]atomic.Uint64
	var done, wrong, failed atomic.Int64
	var all sync.WaitGroup
	for i := range programs {
		o := &Options{}
		if !exclude {
			o.Namespace = "program" + strconv.Itoa(i)
		}
		c := open(t, p.Addr, o)
		all.Go(func() {
			for ctx.Err() == nil && done.Load() < turns {
				k := rand.N(locks)
				l, err := c.NewLock("k"+strconv.Itoa(k), &holdlock.LockOptions{TTL: ttl})
				if err != nil {
					t.Error(err)
					return
				}
				lease, err := tryOrWait(ctx, l)
				if err != nil {
					known := errors.Is(err, holdlock.ErrUnreachable) || errors.Is(err, holdlock.ErrUnknown)
					if known {
						failed.Add(1)
					}
					if !known && !errors.Is(err, holdlock.ErrHeld) && !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("acquire: %v", err)
					}
					time.Sleep(rand.N(5 * time.Millisecond))
					continue
				}
				if inside[k].Add(1) > 1 {
					wrong.Add(1)
				}
				if before := highest[k].Swap(uint64(lease.Token())); exclude && before >= uint64(lease.Token()) {
					t.Errorf("token %d after %d", lease.Token(), before)
				}
				time.Sleep(rand.N(2 * time.Millisecond))
				inside[k].Add(-1)
				done.Add(1)
				err = lease.Release(context.Background())
				if err != nil && !errors.Is(err, holdlock.ErrUnknown) && !errors.Is(err, holdlock.ErrUnreachable) {
					t.Errorf("release: %v", err)
				}
			}
		})
	}
	over := make(chan struct{})
	strikes := 0
	stormy, calm := context.WithCancel(ctx)
	go func() {
		defer close(over)
		for stormy.Err() == nil {
			// Every few turns, or nothing would be achieved; and now and then if nothing is.
			before, few := done.Load(), rand.N(int64(5))
			for begun := time.Now(); stormy.Err() == nil && done.Load() <= before+few && time.Since(begun) < 2*time.Second; {
				time.Sleep(time.Millisecond)
			}
			strike(r, admin, p)
			strikes++
		}
	}()
	all.Wait()
	calm()
	<-over
	p.SetScript(nil)
	t.Logf("%d turns, %d strikes, %d failures of the store", done.Load(), strikes, failed.Load())
	if done.Load() < 5 || strikes < 3 {
		t.Error("too little has happened to tell anything")
	}
	if exclude {
		d := openDriver(t, r.Addr, nil)
		testenv.Eventually(t, "what nobody knows to hold was given back", func() bool { // its TTL alone would take as long
			terms, err := d.List(context.Background(), "", "", 10)
			return err == nil && len(terms) == 0
		})
	}
	if n, err := (site{servers: []*testenv.Redis{r}}).eternal(); err != nil || n != 0 {
		t.Errorf("%d keys without expiry, %v", n, err)
	}
	return wrong.Load()
}

// tryOrWait tries once, or waits, whichever.
func tryOrWait(ctx context.Context, l *holdlock.Lock) (*holdlock.Lease, error) {
	if rand.N(2) == 0 {
		return l.TryAcquire(ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return l.Acquire(ctx)
}

// A server that is emptied over and over forgets who holds what, and tokens rise all the same.
func TestTokensRiseThroughFlushes(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	c := open(t, r.Addr, nil)
	l := newLock(t, c, "k", 10*time.Second)
	ctx, stop := context.WithCancel(t.Context())
	var flushing sync.WaitGroup
	flushing.Go(func() {
		for ctx.Err() == nil {
			_, _ = r.Try("FLUSHALL")
		}
	})
	n := naive{client(r.Addr)}
	defer n.client.Close()
	var last, naiveLast holdlock.Token
	fell := 0
	for range 500 {
		lease, err := l.TryAcquire(t.Context())
		if err != nil {
			t.Fatalf("TryAcquire: %v", err)
		}
		if lease.Token() <= last {
			t.Errorf("token %d after %d", lease.Token(), last)
		}
		last = lease.Token()
		if err := lease.Release(t.Context()); err != nil && !errors.Is(err, holdlock.ErrLost) {
			t.Errorf("Release: %v", err)
		}
		if g, err := n.Acquire(t.Context(), request("k", time.Minute)); err == nil {
			if g.Token <= naiveLast {
				fell++
			}
			naiveLast = g.Token
			n.client.Del(t.Context(), naiveKey("k"))
		}
	}
	stop()
	flushing.Wait()
	if fell == 0 {
		t.Error("naive tokens rose as well, so the test tells nothing")
	}
}
