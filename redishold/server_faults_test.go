//go:build unix

package redishold

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// A server that stands still takes requests and answers nothing. The work must have ended before the key can pass on.
func TestStoppedServerEndsTheWorkInTime(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	for _, stop := range []bool{true, false} { // without the stop nothing may be lost, or the test tells nothing
		r := testenv.StartRedis(t)
		d := openDriver(t, r.Addr, nil)
		lease := mustAcquire(t, newLock(t, open(t, r.Addr, nil), "k", ttl))
		if !stop {
			before := lease.Deadline()
			testenv.Eventually(t, "it is renewed past its TTL", func() bool {
				return lease.Err() != nil || lease.Deadline().Sub(before) > ttl*3/2
			})
			if lease.Err() != nil {
				t.Errorf("without a fault: %v", lease.Err())
			}
			continue
		}
		r.Freeze(t)
		lost(t, lease, holdlock.LossUnreachable)
		trusted := lease.Deadline()
		r.Thaw(t)
		end := freeAt(t, r, d.slotKey("k"))
		if left := end.Sub(trusted); left < ttl/20 {
			t.Errorf("trust ended %v before the key was free, want at least half of the margin of %v", left, ttl/10)
		}
	}
}

// Trust counts from the sending. Whoever counts it from the reply believes longer than the key is theirs.
func TestTrustCountsFromTheSending(t *testing.T) {
	t.Parallel()
	const ttl, delay = 20 * time.Second, 300 * time.Millisecond
	r := testenv.StartRedis(t)
	near := openDriver(t, r.Addr, nil)
	loadScripts(t, r, near)
	p := testenv.StartProxy(t, r.Addr, nil)
	asked := false
	p.SetScript(func(up bool, data []byte) testenv.Verdict {
		if up {
			asked = asked || calls(near.scripts.acquire, "k")(data)
			return testenv.Pass
		}
		if !asked {
			return testenv.Pass
		}
		asked = false
		time.AfterFunc(delay, p.Free)
		return testenv.Hold // the reply
	})
	lease := mustAcquire(t, newLock(t, open(t, p.Addr, nil), "k", ttl))
	naive := time.Now().Add(ttl)
	end := freeAt(t, r, near.slotKey("k"))
	if left := end.Sub(lease.Deadline()); left < ttl/20 {
		t.Errorf("trust ends %v before the key is free, want at least half of the margin of %v", left, ttl/10)
	}
	if !naive.After(end) {
		t.Error("who counts from the reply is right as well, so the test tells nothing")
	}
}

// freeAt returns when a key becomes free unless renewed, by the server's clock, which is also ours.
func freeAt(t *testing.T, r *testenv.Redis, slot string) time.Time {
	t.Helper()
	end, err := parseTime(r.Do(t, "GET", slot)[3:19])
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// A call to a server that stands still costs its budget, whatever the Redis client is set to.
func TestStoppedServerCostsTheBudget(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	// The client's own settings are the worst: ctx ignored, retries, seconds of waiting.
	rdb := redis.NewClient(&redis.Options{Addr: r.Addr, ReadTimeout: 20 * time.Second, MaxRetries: 5})
	d, err := NewDriver(rdb, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { r.Thaw(t); _, _ = d.Close(), rdb.Close() }()
	grant(t, d, request("warm", time.Second))
	r.Freeze(t)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	began := time.Now()
	_, err = d.Acquire(ctx, request("k", time.Hour))
	if !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrNotApplied) {
		t.Errorf("Acquire: %v, want the context's error and no certainty", err)
	}
	if took := time.Since(began); took > 10*time.Second { // the client itself takes 20 s
		t.Errorf("Acquire took %v after its context ended", took)
	}
}

// A server that comes back without its data has forgotten the lock. The first answer after that tells the holder, and does
// not make the lock again.
func TestServerRestartedEmptyIsALoss(t *testing.T) {
	t.Parallel()
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprint("keep=", keep), func(t *testing.T) {
			t.Parallel()
			args := []string{}
			if keep {
				args = []string{"--appendonly", "yes", "--appendfsync", "always"}
			}
			r := testenv.StartRedis(t, args...)
			d := openDriver(t, r.Addr, nil)
			var told events
			c := open(t, r.Addr, &Options{Client: holdlock.ClientOptions{Observer: &told}})
			lease := mustAcquire(t, newLock(t, c, "k", 6*time.Second))
			n := naive{client(r.Addr)}
			defer n.client.Close()
			careless := request("k", time.Hour)
			before, err := n.Acquire(t.Context(), careless)
			if err != nil {
				t.Fatal(err)
			}
			r.Restart(t)
			renewed := len(told.of(holdlock.Renewed))
			if keep { // the control: what is kept is not lost
				testenv.Eventually(t, "it is renewed", func() bool {
					return lease.Err() != nil || len(told.of(holdlock.Renewed)) > renewed
				})
				if lease.Err() != nil {
					t.Errorf("with its data kept: %v", lease.Err())
				}
				if term, ok := present(t, d, "k"); !ok || term.Token != lease.Token() {
					t.Errorf("with its data kept the term is %+v, %v", term, ok)
				}
				return
			}
			lost(t, lease, holdlock.LossGone)
			if n := len(told.of(holdlock.Renewed)); n > renewed {
				t.Errorf("%d renewals succeeded after the server had forgotten", n-renewed)
			}
			if term, ok := present(t, d, "k"); ok {
				t.Errorf("a renewal has created the term again: %+v", term)
			}
			if g := grant(t, d, request("k", time.Second)); g.Token <= lease.Token() {
				t.Errorf("the token after the server forgot everything is %d, before %d", g.Token, lease.Token())
			}
			// The naive twin starts its tokens anew, and its renewal takes the lock from whoever has got it.
			if after, err := n.Acquire(t.Context(), request("k", time.Hour)); err != nil || after.Token > before.Token {
				t.Errorf("a naive lock: token %d after %d, %v: the test tells nothing", after.Token, before.Token, err)
			}
			_, err = n.Renew(t.Context(), &driver.RenewRequest{Ref: careless.Ref, TTL: time.Hour})
			if got := r.Do(t, "GET", naiveKey("k")); err != nil || got != careless.Ref.Nonce {
				t.Errorf("a naive renewal after all was forgotten: %v, %q: the test tells nothing", err, got)
			}
		})
	}
}

func TestScriptFlushBetweenCalls(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d := openDriver(t, r.Addr, nil)
	flush := func() { r.Do(t, "SCRIPT", "FLUSH") }
	flush()
	// The control: the server has really forgotten.
	if err := d.client.EvalSha(t.Context(), d.scripts.acquire.sha, []string{"x"}).Err(); !redis.HasErrorPrefix(err, "NOSCRIPT") {
		t.Fatalf("EVALSHA after SCRIPT FLUSH: %v, want NOSCRIPT", err)
	}
	for range 20 {
		req := request("k", time.Minute)
		flush()
		grant(t, d, req)
		flush()
		if _, err := d.Renew(t.Context(), &driver.RenewRequest{Ref: req.Ref, TTL: time.Minute}); err != nil {
			t.Fatalf("Renew: %v", err)
		}
		flush()
		if res := d.RenewBatch(t.Context(), []*driver.RenewRequest{{Ref: req.Ref, TTL: time.Minute}}); res[0].Err != nil {
			t.Fatalf("RenewBatch: %v", res[0].Err)
		}
		flush()
		hints, stop, err := d.Watch(t.Context(), "k")
		if err != nil {
			t.Fatalf("Watch: %v", err)
		}
		flush()
		if _, ok := present(t, d, "k"); !ok {
			t.Fatal("Inspect does not see the term")
		}
		flush()
		if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
			t.Fatalf("Release: %v", err)
		}
		<-hints
		flush()
		stop()
		flush()
		grant(t, d, req2(&req.Ref))
		flush()
		if err := d.Break(t.Context(), &driver.BreakRequest{Ref: req.Ref, By: "test", Now: true}); err != nil {
			t.Fatalf("Break: %v", err)
		}
		job := claiming("job", time.Minute, driver.Rerun)
		flush()
		g := grant(t, d, job)
		flush()
		rec := driver.Record{State: driver.JobDone, Keep: time.Minute}
		if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: job.Ref, Record: &rec}); err != nil {
			t.Fatalf("Release with a Record: %v", err)
		}
		flush()
		if j, ok, err := d.Job(t.Context(), "job"); err != nil || !ok || j.State != driver.JobDone {
			t.Fatalf("Job: %+v, %v, %v", j, ok, err)
		}
		flush()
		if err := d.Settle(t.Context(), &driver.SettleRequest{Key: "job", Token: g.Token, Keep: time.Minute}); err != nil {
			t.Fatalf("Settle: %v", err)
		}
	}
}

// req2 asks for the key of a ref under a new nonce, which it becomes.
func req2(ref *driver.Ref) *driver.AcquireRequest {
	req := request(ref.Key, time.Minute)
	*ref = req.Ref
	return req
}

// What a server says when it cannot do its work is a failure of the store, in its own words, and never "held".
func TestServerErrorsAreNotAnswers(t *testing.T) {
	t.Parallel()
	faults := []struct {
		word  string
		args  []string
		cause func(t *testing.T, r *testenv.Redis)
	}{
		{"READONLY", nil, func(t *testing.T, r *testenv.Redis) { r.Do(t, "REPLICAOF", "127.0.0.1", "1") }},
		{"OOM", nil, func(t *testing.T, r *testenv.Redis) { r.Do(t, "CONFIG", "SET", "maxmemory", "1") }},
		{"NOREPLICAS", nil, func(t *testing.T, r *testenv.Redis) { r.Do(t, "CONFIG", "SET", "min-replicas-to-write", "1") }},
		{"MISCONF", []string{"--save", "3600 1"}, func(t *testing.T, r *testenv.Redis) {
			if err := os.RemoveAll(r.Dir); err != nil { // where it is to save
				t.Fatal(err)
			}
			r.Do(t, "SET", "x", "y")
			_, _ = r.Try("BGSAVE")
			testenv.Eventually(t, "the save has failed", func() bool {
				return strings.Contains(r.Do(t, "INFO", "persistence"), "rdb_last_bgsave_status:err")
			})
		}},
		{"LOADING", nil, func(t *testing.T, r *testenv.Redis) {
			r.Do(t, "DEBUG", "POPULATE", "20000", "filler", "1000")
			r.Do(t, "CONFIG", "SET", "loading-process-events-interval-bytes", "1024")
			r.Do(t, "CONFIG", "SET", "key-load-delay", "2000")
			go func() { _, _ = r.Try("DEBUG", "RELOAD") }()
			testenv.Eventually(t, "the server loads", func() bool {
				_, err := r.Try("GET", "x")
				return err != nil && strings.HasPrefix(err.Error(), "LOADING")
			})
		}},
		{"NOPERM", nil, func(t *testing.T, r *testenv.Redis) { r.Do(t, "ACL", "SETUSER", "default", "-@write") }},
	}
	for _, f := range faults {
		t.Run(f.word, func(t *testing.T) {
			t.Parallel()
			r := testenv.StartRedis(t, f.args...)
			c := open(t, r.Addr, nil)
			d := openDriver(t, r.Addr, nil)
			held := request("held", time.Minute)
			grant(t, d, held) // it works before
			n := naive{client(r.Addr)}
			defer n.client.Close()
			careless := request("held", time.Hour)
			if _, err := n.Acquire(t.Context(), careless); err != nil {
				t.Fatal(err)
			}
			f.cause(t, r)
			var taken *driver.HeldError // the control: this is how it is done wrong
			if _, err := n.Acquire(t.Context(), request("free", time.Minute)); !errors.As(err, &taken) {
				t.Errorf("a naive lock: %v, want it to say held", err)
			}
			for _, key := range []string{"held", "free"} {
				_, err := d.Acquire(t.Context(), request(key, time.Minute))
				var refused *driver.HeldError
				if key == "held" && errors.As(err, &refused) && f.word != "LOADING" {
					continue // a server that can read may say so truthfully
				}
				var server redis.Error
				if !errors.As(err, &server) || !strings.Contains(err.Error(), wordOf(f.word)) || errors.As(err, &refused) {
					t.Errorf("Acquire of the %s key: %v, want the server's %s", key, err, f.word)
				}
				if !errors.Is(err, driver.ErrNotApplied) {
					t.Errorf("Acquire of the %s key: %v is not certain", key, err)
				}
			}
			_, err := newLock(t, c, "free", time.Minute).TryAcquire(t.Context())
			if !errors.Is(err, holdlock.ErrUnreachable) || errors.Is(err, holdlock.ErrHeld) {
				t.Errorf("TryAcquire: %v, want ErrUnreachable", err)
			}
			_, err = d.Renew(t.Context(), &driver.RenewRequest{Ref: held.Ref, TTL: time.Minute})
			rel := d.Release(t.Context(), &driver.ReleaseRequest{Ref: held.Ref})
			if f.word == "OOM" { // a full server must be able to get rid of locks, and to keep them
				if err != nil || rel != nil {
					t.Errorf("on a full server Renew: %v, Release: %v", err, rel)
				}
				_, err := n.Renew(t.Context(), &driver.RenewRequest{Ref: careless.Ref, TTL: time.Hour})
				if !redis.HasErrorPrefix(err, "OOM") {
					t.Errorf("the control: a naive renewal on a full server: %v, want OOM", err)
				}
				return
			}
			for _, err := range []error{err, rel} {
				if err == nil || errors.Is(err, driver.ErrGone) {
					t.Errorf("Renew or Release: %v, want the server's %s", err, f.word)
				}
			}
		})
	}
}

// wordOf is how an error shows inside a script, where the server leaves out NOPERM.
func wordOf(word string) string {
	if word == "NOPERM" {
		return "can't run this command"
	}
	return word
}

// A server that evicts takes locks first, because they expire. The holder is told by its next renewal.
func TestEvictionIsALoss(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{"volatile-lru", "noeviction"} {
		r := testenv.StartRedis(t, "--maxmemory-policy", policy)
		d := openDriver(t, r.Addr, nil)
		lease := mustAcquire(t, newLock(t, open(t, r.Addr, nil), "k", 1500*time.Millisecond))
		if policy == "noeviction" { // the control
			r.Do(t, "CONFIG", "SET", "maxmemory", "1")
			before := lease.Deadline()
			testenv.Eventually(t, "it is renewed", func() bool {
				return lease.Err() != nil || lease.Deadline().Sub(before) > 100*time.Millisecond
			})
			if lease.Err() != nil {
				t.Errorf("with noeviction: %v", lease.Err())
			}
			continue
		}
		r.Do(t, "CONFIG", "SET", "maxmemory", "1")
		_, _ = r.Try("SET", "filler", "x")
		lost(t, lease, holdlock.LossGone)
		r.Do(t, "CONFIG", "SET", "maxmemory", "0")
		if g := grant(t, d, request("k", time.Minute)); g.Token <= lease.Token() {
			t.Errorf("token %d after %d", g.Token, lease.Token())
		}
	}
}
