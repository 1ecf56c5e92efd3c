//go:build unix

package redishold

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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
	lose := func(call func(data []byte) bool) (hit func() bool) {
		rule, hit := once(testenv.LoseReply, call)
		p.SetScript(rule)
		return hit
	}
	t.Run("acquire is undone", func(t *testing.T) {
		c := open(t, p.Addr, nil)
		l := newLock(t, c, "undone", time.Hour)
		hit := lose(takes(near, "undone"))
		_, err := l.TryAcquire(t.Context())
		if !errors.Is(err, holdlock.ErrUnknown) || !hit() {
			t.Fatalf("TryAcquire: %v (reply lost: %v), want ErrUnknown", err, hit())
		}
		testenv.Eventually(t, "the ghost is gone", func() bool { _, ok := present(t, near, "undone"); return !ok })
		mustAcquire(t, l)
	})
	t.Run("without an undo there is a ghost", func(t *testing.T) { // or the test above tells nothing
		d := openDriver(t, p.Addr, nil)
		hit := lose(takes(near, "ghost"))
		if _, err := d.Acquire(t.Context(), request("ghost", time.Hour)); err == nil || errors.Is(err, driver.ErrNotApplied) || !hit() {
			t.Fatalf("Acquire: %v", err)
		}
		if _, ok := present(t, near, "ghost"); !ok {
			t.Fatal("the request was not delivered")
		}
	})
	t.Run("acquire is repeated", func(t *testing.T) {
		c := open(t, p.Addr, nil)
		hit := lose(takes(near, "repeated"))
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
		lose(takes(near, "nonce"))
		if _, err := d.Acquire(t.Context(), req); err == nil {
			t.Fatal("the reply was not lost")
		}
		grant(t, d, req)
	})
	t.Run("renew", func(t *testing.T) {
		var told events
		c := open(t, p.Addr, &Options{Client: holdlock.ClientOptions{Observer: &told}})
		lease := mustAcquire(t, newLock(t, c, "renewed", 6*time.Second))
		hit := lose(calls(near.scripts.renew, "renewed"))
		testenv.Eventually(t, "a renewal after the lost one succeeds", func() bool {
			return lease.Err() != nil || hit() && len(told.of(holdlock.RenewFailed)) > 0 && len(told.of(holdlock.Renewed)) > 0
		})
		if lease.Err() != nil {
			t.Errorf("one lost reply has ended the lease: %v", lease.Err())
		}
	})
	t.Run("release", func(t *testing.T) {
		c := open(t, p.Addr, nil)
		lease := mustAcquire(t, newLock(t, c, "released", time.Hour))
		hit := lose(gives(near, "released"))
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
		hit := lose(calls(near.scripts.breakTerm, "broken"))
		if err := d.Break(t.Context(), &driver.BreakRequest{Ref: req.Ref, By: "test"}); err == nil || errors.Is(err, driver.ErrGone) || !hit() {
			t.Errorf("Break: %v, want a failure of the store", err)
		}
		if term, ok := present(t, near, "broken"); !ok || term.Broken != "test" {
			t.Errorf("the term is %+v, %v", term, ok)
		}
	})
	t.Run("a naive lock is held by itself", func(t *testing.T) { // as it is done wrong
		n := naive{client(p.Addr)}
		defer n.client.Close()
		req := request("naive", time.Hour)
		rule, hit := once(testenv.LoseReply, func(data []byte) bool { return bytes.Contains(data, []byte(naiveKey("naive"))) })
		p.SetScript(rule)
		_, _ = n.Acquire(t.Context(), req)
		var held *driver.HeldError
		if _, err := n.Acquire(t.Context(), req); !hit() || !errors.As(err, &held) {
			t.Errorf("the same request again: %v, want held: the test tells nothing", err)
		}
	})
	t.Run("many renewals", func(t *testing.T) { // in two scripts, of which the second is not answered
		d := openDriver(t, p.Addr, nil)
		var reqs []*driver.RenewRequest
		for i := range 2 * batchSize {
			req := request(fmt.Sprint("many", i), time.Minute)
			grant(t, near, req)
			reqs = append(reqs, &driver.RenewRequest{Ref: req.Ref, TTL: time.Hour})
		}
		hit := lose(calls(near.scripts.renew, fmt.Sprintf("many%d}", batchSize)))
		results := d.RenewBatch(t.Context(), reqs)
		if !hit() {
			t.Fatal("no reply was lost")
		}
		for i, res := range results {
			first := i < batchSize
			if first != (res.Err == nil) || errors.Is(res.Err, driver.ErrGone) || errors.Is(res.Err, driver.ErrNotApplied) {
				t.Fatalf("renewal %d: %v", i, res.Err)
			}
			if term, ok := present(t, near, reqs[i].Ref.Key); !ok || term.Remaining < 50*time.Minute {
				t.Fatalf("term %d is %+v, %v: the request was not delivered", i, term, ok)
			}
		}
		for i, res := range d.RenewBatch(t.Context(), reqs) { // the next try is a renewal like any other
			if res.Err != nil {
				t.Fatalf("renewal %d again: %v", i, res.Err)
			}
		}
	})
	t.Run("list and inspect", func(t *testing.T) {
		d := openDriver(t, p.Addr, nil)
		grant(t, near, request("seen", time.Hour))
		looks := map[string]func() error{
			"List":    func() error { _, err := d.List(t.Context(), "seen", "", 10); return err },
			"Inspect": func() error { _, _, err := d.Inspect(t.Context(), "seen"); return err },
		}
		for name, look := range looks {
			hit := lose(calls(near.scripts.look, "seen"))
			err := look()
			if !hit() || err == nil || errors.Is(err, driver.ErrGone) {
				t.Errorf("%s: %v, want a failure of the store", name, err)
			}
			if err := look(); err != nil {
				t.Errorf("%s again: %v", name, err)
			}
		}
		rule, hit := once(testenv.LoseReply, func(data []byte) bool { return bytes.Contains(bytes.ToLower(data), []byte("scan")) })
		p.SetScript(rule)
		if terms, err := d.List(t.Context(), "", "", 10); err == nil || !hit() {
			t.Errorf("List without the names: %v, %v, want a failure and no part of a list", terms, err)
		}
	})
	t.Run("watch", func(t *testing.T) { // whoever does not know that it stands in line does not stand there for long
		d := openDriver(t, p.Addr, nil)
		req := request("watched", time.Hour)
		grant(t, near, req)
		hit := lose(calls(near.scripts.watch, "watched"))
		if _, _, err := d.Watch(t.Context(), "watched"); err == nil || !hit() {
			t.Errorf("Watch: %v, want a failure of the store", err)
		}
		testenv.Eventually(t, "the line is empty", func() bool { return r.Do(t, "LLEN", near.lineKey("watched")) == "0" })
		hints, stop, err := d.Watch(t.Context(), "watched")
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		if err := near.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-hints:
		case <-time.After(30 * time.Second):
			t.Error("no hint after a release")
		}
	})
	t.Run("the end of a watch", func(t *testing.T) {
		d := openDriver(t, p.Addr, nil)
		grant(t, near, request("left", time.Hour))
		_, stop, err := d.Watch(t.Context(), "left")
		if err != nil {
			t.Fatal(err)
		}
		hit := lose(calls(near.scripts.leave, "left"))
		stop()
		stop()
		if !hit() || r.Do(t, "LLEN", near.lineKey("left")) != "0" {
			t.Errorf("the reply was lost: %v; %s stand in line", hit(), r.Do(t, "LLEN", near.lineKey("left")))
		}
	})
	if n, err := (site{servers: []*testenv.Redis{r}}).eternal(); err != nil || n != 0 {
		t.Errorf("%d keys without expiry, %v", n, err)
	}
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

// The acquire is overtaken by its own undo. Then it must not be granted when it arrives.
func TestUndoOvertakesItsAcquire(t *testing.T) {
	t.Parallel()
	for _, undo := range []bool{true, false} { // a plain release leaves the ghost, or the test tells nothing
		r := testenv.StartRedis(t)
		p := testenv.StartProxy(t, r.Addr, nil)
		near, far := openDriver(t, r.Addr, nil), openDriver(t, p.Addr, nil)
		loadScripts(t, r, near)
		rule, hit := once(testenv.Hold, takes(near, "late"))
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

// Hints get lost. A waiter is granted all the same, by the first poll that is sent after the release: so within one interval
// of the poll, however slow the machine is.
func TestHintsLost(t *testing.T) {
	t.Parallel()
	t.Run("hints lost", func(t *testing.T) {
		t.Parallel()
		if polls, swallowed := waitDeaf(t, 0); polls > 1 || swallowed == 0 {
			t.Errorf("%d hints were lost, and the waiter was granted at poll %d after the release; want at least 1, at most 1",
				swallowed, polls)
		}
	})
	t.Run("hints and a poll lost", func(t *testing.T) { // the control: it is the poll that does it, and it is counted
		t.Parallel()
		if polls, _ := waitDeaf(t, 1); polls < 2 {
			t.Errorf("the waiter was granted at poll %d although the first got lost: the test tells nothing", polls)
		}
	})
}

// waitDeaf lets somebody wait who gets no hints, and whose first polls after the release get lost. It returns how many it
// sent after the release until it was granted.
func waitDeaf(t *testing.T, losePolls int64) (polls, swallowed int64) {
	t.Helper()
	r := testenv.StartRedis(t)
	watched := &Options{PlainKeys: true} // there is no line, so it is hints and polls
	near := openDriver(t, r.Addr, watched)
	loadScripts(t, r, near)
	poll := calls(near.scripts.acquire, "k")
	var released atomic.Bool
	var tries, answers atomic.Int64
	p := testenv.StartProxy(t, r.Addr, func(up bool, data []byte) testenv.Verdict {
		switch {
		case !up && bytes.Contains(data, []byte("message")):
			swallowed++ // scripts are called under a lock
			return testenv.Drop
		case !up && tries.Load() >= 2:
			answers.Add(1)
		case up && poll(data):
			tries.Add(1)
			if !released.Load() {
				break
			}
			if polls++; polls <= losePolls {
				return testenv.Cut
			}
		}
		return testenv.Pass
	})
	holder := mustAcquire(t, newLock(t, open(t, r.Addr, watched), "k", time.Hour))
	granted := make(chan error)
	l := newLock(t, open(t, p.Addr, watched), "k", time.Hour)
	go func() {
		_, err := l.Acquire(t.Context())
		granted <- err
	}()
	testenv.Eventually(t, "the waiter stands in line and has looked once more", func() bool {
		return r.Do(t, "LLEN", near.watchersKey("k")) == "1" && answers.Load() > 0
	})
	released.Store(losePolls > 0) // none that could be granted must get through before
	if err := holder.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	released.Store(true)
	select {
	case err := <-granted:
		if err != nil {
			t.Errorf("Acquire: %v", err)
		}
	case <-time.After(60 * time.Second):
		t.Fatal("the waiter sleeps although the key is free")
	}
	p.SetScript(nil) // from here on nothing is counted
	return polls, swallowed
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
