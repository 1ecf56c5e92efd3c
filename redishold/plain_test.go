//go:build unix

package redishold

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/drivertest"
	"github.com/holdlock/holdlock/internal/testenv"
)

// plainHarness gives every store a database of its own, because plain keys have no namespace.
func plainHarness(t *testing.T) drivertest.Harness {
	r := testenv.StartRedis(t, "--databases", "2000")
	var next atomic.Int64
	return drivertest.Harness{
		Overtaken: true,
		NewStore: func(testing.TB) drivertest.Store {
			db := int(next.Add(1))
			dial := func() redis.UniversalClient {
				return redis.NewClient(&redis.Options{Addr: r.Addr, DB: db, ContextTimeoutEnabled: true, MaxRetries: -1, PoolSize: 20, MaintNotificationsConfig: noMaintenance})
			}
			return drivertest.Store{
				Open:      func() (driver.Driver, error) { return openOwn(dial(), &Options{PlainKeys: true}) },
				Leftovers: func() ([]string, error) { return leftovers(dial, "holdlock") },
			}
		},
	}
}

// The two usual ways to lock a Redis key, as their documentation has them.
var foreignUnlocks = map[string]*redis.Script{
	"redis-py": redis.NewScript(`
		local token = redis.call('get', KEYS[1])
		if not token or token ~= ARGV[1] then return 0 end
		redis.call('del', KEYS[1])
		return 1`),
	"redsync": redis.NewScript(`
		local val = redis.call("GET", KEYS[1])
		if val == ARGV[1] then return redis.call("DEL", KEYS[1])
		elseif val == false then return -1
		else return 0 end`),
}

// Programs that know nothing of holdlock, and holdlock, take turns on one key and never overlap.
func TestPlainKeysExcludeEachOther(t *testing.T) {
	t.Parallel()
	if overlaps := takeTurns(t, true); overlaps > 0 {
		t.Errorf("%d overlaps", overlaps)
	}
	if overlaps := takeTurns(t, false); overlaps == 0 { // without PlainKeys they do not exclude each other
		t.Error("no overlap without PlainKeys: the test tells nothing")
	}
}

func takeTurns(t *testing.T, plain bool) (overlaps int64) {
	const turns = 1000
	r := testenv.StartRedis(t)
	var inside, wrong atomic.Int64
	work := func() {
		if inside.Add(1) > 1 {
			wrong.Add(1)
		}
		time.Sleep(20 * time.Microsecond)
		inside.Add(-1)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	counts := map[string]*atomic.Int64{}
	done := func() bool {
		for _, n := range counts {
			if n.Load() < turns {
				return false
			}
		}
		return true
	}
	var players sync.WaitGroup
	play := map[string]func(n *atomic.Int64){}
	for name, unlock := range foreignUnlocks {
		rdb := client(r.Addr)
		t.Cleanup(func() { rdb.Close() })
		play[name] = func(n *atomic.Int64) {
			value := randomHex(16)
			if name == "redsync" {
				value = "d2hhdGV2ZXI=" + value
			}
			if ok, err := rdb.SetNX(ctx, "the/key", value, 10*time.Second).Result(); err != nil || !ok {
				return
			}
			work()
			n.Add(1)
			if got, err := unlock.Run(ctx, rdb, []string{"the/key"}, value).Int(); err != nil || got != 1 {
				t.Errorf("%s: unlock gave %d, %v", name, got, err)
			}
		}
	}
	l := newLock(t, open(t, r.Addr, &Options{PlainKeys: plain}), "the", 10*time.Second).For("key")
	play["holdlock"] = func(n *atomic.Int64) {
		lease, err := l.TryAcquire(ctx)
		if err != nil {
			return
		}
		work()
		n.Add(1)
		if err := lease.Release(ctx); err != nil {
			t.Errorf("Release: %v", err)
		}
	}
	for name := range play {
		counts[name] = &atomic.Int64{}
	}
	for name, f := range play {
		players.Go(func() {
			for ctx.Err() == nil && !done() {
				f(counts[name])
				time.Sleep(50 * time.Microsecond) // so that nobody starves
			}
		})
	}
	players.Wait()
	for name, n := range counts {
		t.Logf("PlainKeys %v: %s had %d turns", plain, name, n.Load())
		if n.Load() < turns {
			t.Errorf("%s had %d turns in a minute, want %d", name, n.Load(), turns)
		}
	}
	return wrong.Load()
}

// A foreign lock is seen, is not released or renewed by us, and can be broken.
func TestForeignLocks(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d := openDriver(t, r.Addr, &Options{PlainKeys: true})
	r.Do(t, "SET", "k", "somebody", "PX", "60000")
	var held *driver.HeldError
	if _, err := d.Acquire(t.Context(), request("k", time.Second)); !errors.As(err, &held) {
		t.Fatalf("Acquire: %v, want held", err)
	}
	if held.Term.Remaining > time.Minute || held.Term.Remaining < 30*time.Second || held.Term.Holder.Label == "" {
		t.Errorf("the foreign term is %+v", held.Term)
	}
	term, ok := present(t, d, "k")
	if !ok {
		t.Fatal("Inspect does not see it")
	}
	ref := driver.Ref{Key: "k", Nonce: term.Nonce}
	if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: ref}); !errors.Is(err, driver.ErrGone) {
		t.Errorf("Release of a foreign lock: %v", err)
	}
	if err := d.Break(t.Context(), &driver.BreakRequest{Ref: ref, By: "x"}); err == nil || errors.Is(err, driver.ErrGone) {
		t.Errorf("Break of a foreign lock, not at once: %v, want a refusal", err)
	}
	if err := d.Break(t.Context(), &driver.BreakRequest{Ref: ref, By: "x", Now: true}); err != nil {
		t.Errorf("Break at once: %v", err)
	}
	// Ours, as the others see it: the key, the nonce alone as its value, an expiry.
	req := request("k", time.Minute)
	if g := grant(t, d, req); g.Token != 0 {
		t.Errorf("token %d, but plain keys have none", g.Token)
	}
	if got := r.Do(t, "GET", "k"); got != req.Ref.Nonce {
		t.Errorf("the plain key holds %q", got)
	}
	r.Do(t, "DEL", "k") // by hand
	if _, err := d.Renew(t.Context(), &driver.RenewRequest{Ref: req.Ref, TTL: time.Minute}); !errors.Is(err, driver.ErrGone) {
		t.Errorf("Renew after a DEL by hand: %v, want ErrGone", err)
	}
	// What is described beside the key may get lost, and the key still counts.
	req = request("k", time.Minute)
	grant(t, d, req)
	r.Do(t, "DEL", d.plainSlotKey("k"))
	if _, err := d.Renew(t.Context(), &driver.RenewRequest{Ref: req.Ref, TTL: time.Minute}); err != nil {
		t.Errorf("Renew without its slot: %v", err)
	}
	if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
		t.Errorf("Release: %v", err)
	}
	if got := r.Do(t, "EXISTS", "k"); got != "0" {
		t.Error("the key is still there")
	}
}

func TestHarmfulIsRefusedOnPlainKeys(t *testing.T) {
	t.Parallel()
	c := open(t, "127.0.0.1:1", &Options{PlainKeys: true})
	l, err := c.NewLock("k", &holdlock.LockOptions{DoubleRun: holdlock.Harmful, Guard: holdlock.Fenced})
	if err == nil {
		_, err = l.TryAcquire(t.Context())
	}
	if !errors.Is(err, holdlock.ErrRefused) || !strings.Contains(err.Error(), "no tokens") {
		t.Errorf("a Harmful lock on plain keys: %v, want ErrRefused", err)
	}
}
