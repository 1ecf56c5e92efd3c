//go:build unix

package redishold

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// The server does what it is asked and the answer never arrives: for each call, nobody is granted the key twice, and what
// nobody knows to hold is given back long before its TTL.
func TestReplyLost(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	p := testenv.StartProxy(t, r.Addr, nil)
	near := openDriver(t, r.Addr, nil) // sees the truth
	loadScripts(t, r, near)
	lose := func(s *script, key string) (hit func() bool) {
		rule, hit := once(testenv.LoseReply, calls(s, key))
		p.SetScript(rule)
		return hit
	}
	t.Run("acquire is undone", func(t *testing.T) {
		c := open(t, p.Addr, nil)
		l := newLock(t, c, "undone", time.Hour)
		hit := lose(near.scripts.acquire, "undone")
		_, err := l.TryAcquire(t.Context())
		if !errors.Is(err, holdlock.ErrUnknown) || !hit() {
			t.Fatalf("TryAcquire: %v (reply lost: %v), want ErrUnknown", err, hit())
		}
		testenv.Eventually(t, "the ghost is gone", func() bool { _, ok := present(t, near, "undone"); return !ok })
		mustAcquire(t, l)
	})
	t.Run("without an undo there is a ghost", func(t *testing.T) { // or the test above tells nothing
		d := openDriver(t, p.Addr, nil)
		hit := lose(near.scripts.acquire, "ghost")
		if _, err := d.Acquire(t.Context(), request("ghost", time.Hour)); err == nil || errors.Is(err, driver.ErrNotApplied) || !hit() {
			t.Fatalf("Acquire: %v", err)
		}
		if _, ok := present(t, near, "ghost"); !ok {
			t.Fatal("the request was not delivered")
		}
	})
	t.Run("acquire is repeated", func(t *testing.T) {
		c := open(t, p.Addr, nil)
		hit := lose(near.scripts.acquire, "repeated")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		l := newLock(t, c, "repeated", time.Hour)
		lease, err := l.Acquire(ctx)
		if errors.Is(err, holdlock.ErrUnknown) { // the first try does not wait
			lease, err = l.Acquire(ctx)
		}
		if err != nil || !hit() {
			t.Fatalf("Acquire: %v", err)
		}
		if err := lease.Release(ctx); err != nil {
			t.Errorf("Release: %v", err)
		}
	})
	t.Run("the same nonce finds itself", func(t *testing.T) {
		d := openDriver(t, p.Addr, nil)
		req := request("nonce", time.Hour)
		lose(near.scripts.acquire, "nonce")
		if _, err := d.Acquire(t.Context(), req); err == nil {
			t.Fatal("the reply was not lost")
		}
		grant(t, d, req)
	})
	t.Run("renew", func(t *testing.T) {
		c := open(t, p.Addr, nil)
		lease := mustAcquire(t, newLock(t, c, "renewed", 600*time.Millisecond))
		before := lease.Deadline()
		hit := lose(near.scripts.renew, "renewed")
		testenv.Eventually(t, "a later renewal has moved the deadline", func() bool {
			return hit() && lease.Deadline().Sub(before) > 600*time.Millisecond
		})
		if lease.Err() != nil {
			t.Errorf("one lost reply has ended the lease: %v", lease.Err())
		}
	})
	t.Run("release", func(t *testing.T) {
		c := open(t, p.Addr, nil)
		lease := mustAcquire(t, newLock(t, c, "released", time.Hour))
		hit := lose(near.scripts.release, "released")
		if err := lease.Release(t.Context()); !errors.Is(err, holdlock.ErrUnknown) || !hit() {
			t.Errorf("Release: %v, want ErrUnknown", err)
		}
		if _, ok := present(t, near, "released"); ok {
			t.Error("the request was not delivered")
		}
	})
	t.Run("break", func(t *testing.T) {
		d := openDriver(t, p.Addr, nil)
		req := request("broken", time.Hour)
		grant(t, d, req)
		hit := lose(near.scripts.breakTerm, "broken")
		if err := d.Break(t.Context(), &driver.BreakRequest{Ref: req.Ref, By: "test"}); err == nil || errors.Is(err, driver.ErrGone) || !hit() {
			t.Errorf("Break: %v, want a failure of the store", err)
		}
		if term, ok := present(t, near, "broken"); !ok || term.Broken != "test" {
			t.Errorf("the term is %+v, %v", term, ok)
		}
	})
}

// The client library sends a request again when the connection fails. Ours is one that must not be answered "gone" then.
func TestARepeatedReleaseIsOne(t *testing.T) {
	t.Parallel()
	d := openDriver(t, testenv.StartRedis(t).Addr, nil)
	req := request("k", time.Hour)
	grant(t, d, req)
	args := []any{req.Ref.Nonce, 0, randomHex(8), "0"}
	for range 2 { // the very same bytes
		reply, err := d.call(t.Context(), d.scripts.release, d.withAll("k"), args...)
		if err := d.ended("release", "k", reply, err); err != nil {
			t.Errorf("Release: %v", err)
		}
	}
	if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref}); !errors.Is(err, driver.ErrGone) {
		t.Errorf("another Release: %v, want ErrGone", err)
	}
}

// The acquire is overtaken by its own undo (H31, F19). Then it must not be granted when it arrives.
func TestUndoOvertakesItsAcquire(t *testing.T) {
	t.Parallel()
	for _, undo := range []bool{true, false} { // a plain release leaves the ghost, or the test tells nothing
		r := testenv.StartRedis(t)
		p := testenv.StartProxy(t, r.Addr, nil)
		near, far := openDriver(t, r.Addr, nil), openDriver(t, p.Addr, nil)
		loadScripts(t, r, near)
		rule, hit := once(testenv.Hold, calls(near.scripts.acquire, "late"))
		p.SetScript(rule)
		req := request("late", time.Hour)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { _, err := far.Acquire(ctx, req); done <- err }()
		testenv.Eventually(t, "the request is on its way", hit)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrNotApplied) {
			t.Fatalf("Acquire: %v", err)
		}
		err := near.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref, Undo: undo})
		if !errors.Is(err, driver.ErrGone) {
			t.Fatalf("Release: %v, want ErrGone", err)
		}
		before := r.Do(t, "INFO", "commandstats")
		p.Free()
		testenv.Eventually(t, "the late acquire has arrived", func() bool {
			return count(r.Do(t, "INFO", "commandstats"), "cmdstat_eval") > count(before, "cmdstat_eval")
		})
		if _, ghost := present(t, near, "late"); ghost == undo {
			t.Errorf("with Undo = %v: is there a ghost? %v", undo, ghost)
		}
		if undo {
			grant(t, near, request("late", time.Minute)) // others are not refused
			if _, err := near.Acquire(t.Context(), req); !errors.Is(err, driver.ErrNotApplied) {
				var held *driver.HeldError
				if !errors.As(err, &held) {
					t.Errorf("the undone nonce again: %v", err)
				}
			}
		}
	}
}

// count adds up the calls of all commands whose statistic begins with prefix.
func count(info, prefix string) (n int) {
	for line := range bytes.SplitSeq([]byte(info), []byte("\r\n")) {
		if bytes.HasPrefix(line, []byte(prefix)) {
			_, rest, _ := bytes.Cut(line, []byte("calls="))
			n += atoi(rest)
		}
	}
	return n
}

func atoi(b []byte) (n int) {
	for _, c := range b {
		if c < '0' || c > '9' {
			break
		}
		n = 10*n + int(c-'0')
	}
	return n
}

// Messages get lost. A waiter is granted all the same, by its heartbeat.
func TestHintsLost(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	var swallowed atomic.Int64
	p := testenv.StartProxy(t, r.Addr, func(up bool, data []byte) testenv.Verdict {
		if !up && bytes.Contains(data, []byte("message")) {
			swallowed.Add(1)
			return testenv.Drop
		}
		return testenv.Pass
	})
	holder := mustAcquire(t, newLock(t, open(t, r.Addr, nil), "k", time.Hour))
	near := openDriver(t, r.Addr, nil)
	granted := make(chan error)
	l := newLock(t, open(t, p.Addr, nil), "k", time.Hour)
	go func() {
		_, err := l.Acquire(t.Context())
		granted <- err
	}()
	testenv.Eventually(t, "the waiter stands in line", func() bool {
		return r.Do(t, "LLEN", near.lineKey("k")) == "1" && r.Do(t, "PUBSUB", "CHANNELS", "*") != ""
	})
	if err := holder.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-granted:
		if err != nil {
			t.Errorf("Acquire: %v", err)
		}
	case <-time.After(20 * time.Second): // one heartbeat is 1 s
		t.Fatal("the waiter sleeps although the key is free")
	}
	if swallowed.Load() == 0 {
		t.Error("no hint was lost, so the test tells nothing")
	}
}

// The connection for hints is cut, and made anew: what happened meanwhile was missed, so everybody looks.
func TestHintsAfterACut(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	p := testenv.StartProxy(t, r.Addr, nil)
	near, far := openDriver(t, r.Addr, nil), openDriver(t, p.Addr, nil)
	req := request("k", time.Hour)
	grant(t, near, req)
	hints, stop, err := far.Watch(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	select {
	case <-hints:
		t.Fatal("a hint before anything has happened")
	default:
	}
	p.CutAll()
	select {
	case <-hints:
	case <-time.After(20 * time.Second):
		t.Fatal("no hint after the connection was cut")
	}
	if err := near.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-hints:
	case <-time.After(20 * time.Second):
		t.Fatal("no hint after a release")
	}
}
