//go:build unix

package pghold

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// The server does what it is asked and the answer never arrives: for each call, nobody is granted the key twice, and what
// nobody knows to hold is given back long before its TTL.
func TestLeaseReplyLost(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	proxy := testenv.StartProxy(t, p.Addr, nil)
	url := testenv.PostgresURL(proxy.Addr)
	near := leaseDriver(t, p.URL(), schema, LeaseOptions{}) // sees the truth
	lose := func(function, key string) (hit func() bool) {
		rule, hit := firstCall(testenv.LoseReply, function, key)
		proxy.SetScript(rule)
		return hit
	}
	t.Run("acquire is undone", func(t *testing.T) {
		l := newLock(t, leaseClient(t, url, schema), "undone", time.Hour)
		hit := lose("acquire", "undone")
		if _, err := l.TryAcquire(testContext(t)); !errors.Is(err, holdlock.ErrUnknown) || !hit() {
			t.Fatalf("TryAcquire: %v (reply lost: %v), want ErrUnknown", err, hit())
		}
		testenv.Eventually(t, "the ghost is gone", func() bool { _, ok := stands(t, near, "undone"); return !ok })
		mustTry(t, l)
	})
	t.Run("without an undo there is a ghost", func(t *testing.T) { // or the test above tells nothing
		d := leaseDriver(t, url, schema, LeaseOptions{})
		hit := lose("acquire", "ghost")
		_, err := d.Acquire(testContext(t), leaseRequest("ghost", time.Hour))
		if err == nil || isHeld(err) || errors.Is(err, driver.ErrNotApplied) || !hit() {
			t.Fatalf("Acquire: %v", err)
		}
		testenv.Eventually(t, "the request is delivered", func() bool { _, ok := stands(t, near, "ghost"); return ok })
	})
	t.Run("the same nonce finds itself", func(t *testing.T) {
		d := leaseDriver(t, url, schema, LeaseOptions{})
		req := leaseRequest("nonce", time.Hour)
		lose("acquire", "nonce")
		if _, err := d.Acquire(testContext(t), req); err == nil {
			t.Fatal("the reply was not lost")
		}
		g := mustGrant(t, d, req)
		if term, ok := stands(t, near, "nonce"); !ok || term.Token != g.Token || term.Nonce != req.Ref.Nonce {
			t.Errorf("granted token %d, and there is %+v", g.Token, term)
		}
		if _, err := d.Acquire(testContext(t), leaseRequest("nonce", time.Hour)); !isHeld(err) {
			t.Errorf("another nonce: %v", err)
		}
	})
	t.Run("renew", func(t *testing.T) {
		lease := mustTry(t, newLock(t, leaseClient(t, url, schema), "renewed", 3*time.Second))
		before := lease.Deadline()
		hit := lose("renew", "renewed")
		testenv.Eventually(t, "a later renewal has moved the deadline", func() bool {
			return hit() && lease.Deadline().Sub(before) > 3*time.Second
		})
		if lease.Err() != nil {
			t.Errorf("one lost reply has ended the lease: %v", lease.Err())
		}
	})
	t.Run("release", func(t *testing.T) {
		lease := mustTry(t, newLock(t, leaseClient(t, url, schema), "released", time.Hour))
		hit := lose("release", "released")
		if err := lease.Release(testContext(t)); !errors.Is(err, holdlock.ErrUnknown) || !hit() {
			t.Errorf("Release: %v, want ErrUnknown", err)
		}
		testenv.Eventually(t, "the request is delivered", func() bool { _, ok := stands(t, near, "released"); return !ok })
	})
	t.Run("break", func(t *testing.T) {
		d := leaseDriver(t, url, schema, LeaseOptions{})
		req := leaseRequest("broken", time.Hour)
		mustGrant(t, d, req)
		hit := lose("break_term", "broken")
		err := d.Break(testContext(t), &driver.BreakRequest{Ref: req.Ref, By: "test"})
		if err == nil || errors.Is(err, driver.ErrGone) || !hit() {
			t.Errorf("Break: %v, want a failure of the store", err)
		}
		testenv.Eventually(t, "the request is delivered", func() bool { term, _ := stands(t, near, "broken"); return term.Broken == "test" })
	})
	t.Run("watch and leave", func(t *testing.T) {
		d := leaseDriver(t, url, schema, LeaseOptions{})
		hit := lose("stand", "watched")
		if _, _, err := d.Watch(testContext(t), "watched"); err == nil || !hit() {
			t.Fatalf("Watch: %v", err)
		}
		_, stop, err := d.Watch(testContext(t), "watched")
		if err != nil {
			t.Fatal(err)
		}
		stop()
		if left := p.Do(t, inSchema(`SELECT count(*) FROM "holdlock".waiter WHERE key = 'watched'`, schema)); left != "0" {
			t.Errorf("%s places in line are left", left)
		}
	})
}

// The acquire is overtaken by its own undo. Then it must not be granted when it arrives.
func TestLeaseUndoOvertakesItsAcquire(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	near := leaseDriver(t, p.URL(), schema, LeaseOptions{})
	for _, undo := range []bool{true, false} { // a plain release leaves the ghost, or the test tells nothing
		for _, used := range []bool{true, false} { // whether the key has a row already
			proxy := testenv.StartProxy(t, p.Addr, nil)
			far := leaseDriver(t, testenv.PostgresURL(proxy.Addr), schema, LeaseOptions{})
			req := leaseRequest("k"+leaseRequest("", 0).Ref.Nonce, time.Hour)
			if used {
				before := leaseRequest(req.Ref.Key, time.Hour)
				mustGrant(t, near, before)
				mustRelease(t, near, before.Ref)
			}
			rule, hit := firstCall(testenv.Hold, "acquire", req.Ref.Key)
			proxy.SetScript(rule)
			late := make(chan error, 1)
			go func() {
				_, err := far.Acquire(testContext(t), req)
				late <- err
			}()
			testenv.Eventually(t, "the acquire is on its way", hit)
			if err := near.Release(testContext(t), &driver.ReleaseRequest{Ref: req.Ref, Undo: undo}); !errors.Is(err, driver.ErrGone) {
				t.Errorf("the undo: %v, want ErrGone", err)
			}
			proxy.Free()
			err := <-late
			_, ghost := stands(t, near, req.Ref.Key)
			if undo && (err == nil || ghost || !errors.Is(err, driver.ErrNotApplied)) {
				t.Errorf("used=%v: the acquire that was overtaken: %v, and there is a term: %v", used, err, ghost)
			}
			if !undo && (err != nil || !ghost) {
				t.Errorf("used=%v: without an undo: %v, %v: this test cannot fail", used, err, ghost)
			}
			// Others are not kept away by it.
			if undo {
				mustGrant(t, near, leaseRequest(req.Ref.Key, time.Hour))
			}
		}
	}
}

// The undo comes while the acquire is in the middle of its step. It waits for that, and ends the term.
func TestLeaseUndoMeetsItsAcquire(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	d := leaseDriver(t, p.URL(), schema, LeaseOptions{})
	for _, used := range []bool{true, false} {
		ctx := testContext(t)
		req := leaseRequest("k"+leaseRequest("", 0).Ref.Nonce, time.Hour)
		if used {
			before := leaseRequest(req.Ref.Key, time.Hour)
			mustGrant(t, d, before)
			mustRelease(t, d, before.Ref)
		}
		tx, err := connect(t, p.URL()).Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(ctx, d.sql.acquire, "", req.Ref.Key, req.Ref.Nonce, int64(time.Hour/time.Microsecond), int64(0), "{}"); err != nil {
			t.Fatal(err)
		}
		undone := make(chan error, 1)
		go func() { undone <- d.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref, Undo: true}) }()
		testenv.Eventually(t, "the undo waits", func() bool {
			return p.Do(t, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%"+schema+"%'") == "1"
		})
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-undone; err != nil {
			t.Errorf("used=%v: the undo: %v", used, err)
		}
		if _, ok := stands(t, d, req.Ref.Key); ok {
			t.Errorf("used=%v: a ghost is left", used)
		}
		if _, err := d.Acquire(ctx, req); err == nil || isHeld(err) {
			t.Errorf("used=%v: the same nonce again: %v", used, err)
		}
	}
}

// The connection that listens is cut. The process listens anew, stands in line again, and hears the next release.
func TestLeaseListensAgain(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	proxy := testenv.StartProxy(t, p.Addr, nil)
	near := leaseDriver(t, p.URL(), schema, LeaseOptions{})
	d := leaseDriver(t, testenv.PostgresURL(proxy.Addr), schema, LeaseOptions{})
	held := leaseRequest("k", time.Hour)
	mustGrant(t, near, held)
	hints, stop, err := d.Watch(testContext(t), "k")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	inLine := func() string {
		return p.Do(t, inSchema(`SELECT count(*) FROM "holdlock".waiter w WHERE EXISTS (SELECT FROM pg_locks l
			WHERE locktype = 'advisory' AND (l.classid::bigint << 32 | l.objid::bigint) = w.alive)`, schema))
	}
	if inLine() != "1" {
		t.Fatal("the watcher does not stand in line")
	}
	proxy.CutAll()
	select { // it may have missed one
	case <-hints:
	case <-time.After(patience):
		t.Fatal("no hint after the connection came back")
	}
	testenv.Eventually(t, "it stands in line again, with a session that lives", func() bool { return inLine() == "1" })
	for len(hints) > 0 {
		<-hints
	}
	mustRelease(t, near, held.Ref)
	select {
	case <-hints:
	case <-time.After(patience):
		t.Error("the release was not heard")
	}
}

// A frozen server costs a call its budget, and Close no more than a moment.
func TestLeaseFrozenServerCostsTheBudget(t *testing.T) {
	t.Parallel()
	p := testenv.StartPostgres(t)
	d, err := NewLeaseDriver(testContext(t), p.URL(), &LeaseOptions{Schema: migrated(t, p)})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Thaw(t)
	_, _, err = d.Watch(testContext(t), "k")
	if err != nil {
		t.Fatal(err)
	}
	mustGrant(t, d, leaseRequest("k", time.Hour))
	p.Freeze(t)
	for i := range 3 * defaultMaxConns { // more than there are connections
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		began := time.Now()
		_, err = d.Acquire(ctx, leaseRequest("k", time.Hour))
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) || isHeld(err) {
			t.Errorf("Acquire %d: %v, want the context's error", i, err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("Acquire %d took %v after its context ended", i, took)
		}
	}
	began := time.Now()
	d.Close()
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("Close took %v", took)
	}
}
