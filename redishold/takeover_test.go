//go:build unix

package redishold

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// An administrator makes the replica the primary by FAILOVER, which loses nothing. Whoever talks to the old one is told that
// it may only read; its lease ends before the new one can give the key away.
func TestFailoverByCommand(t *testing.T) {
	t.Parallel()
	primary, replica := startPair(t)
	var told events
	c := open(t, primary.Addr, &Options{Client: holdlock.ClientOptions{Observer: &told}})
	l := newLock(t, c, "k", 3*time.Second)
	lease := mustAcquire(t, l)
	at := openDriver(t, replica.Addr, nil)
	testenv.Eventually(t, "the replica has caught up", func() bool {
		return replica.Do(t, "EXISTS", at.slotKey("k")) == "1"
	})
	primary.Do(t, "FAILOVER")
	testenv.Eventually(t, "the replica is the primary", func() bool {
		role, err := replica.Try("ROLE")
		return err == nil && role[:6] == "master"
	})
	var g driver.Grant
	sooner := false
	testenv.Eventually(t, "the key passes on", func() bool {
		var err error
		g, err = at.Acquire(t.Context(), request("k", time.Minute))
		sooner = err == nil && lease.Check(0) == nil
		return err == nil
	})
	if sooner {
		t.Error("the key was given away under a trusting holder")
	}
	lost(t, lease, holdlock.LossUnreachable)
	if g.Previous != driver.Lapsed || g.Token <= lease.Token() {
		t.Errorf("the successor is told %v and has token %d after %d", g.Previous, g.Token, lease.Token())
	}
	readOnly := func(e holdlock.Event) bool {
		var server redis.Error
		return errors.As(e.Err, &server) && strings.Contains(e.Err.Error(), "READONLY")
	}
	if failed := told.of(holdlock.RenewFailed); !slices.ContainsFunc(failed, readOnly) { // before that it pauses its clients
		t.Errorf("the renewals failed with %v, want the server's READONLY", failed)
	}
	// The old primary can still read, and may say truthfully that the key is taken.
	_, err := l.TryAcquire(t.Context())
	var held *holdlock.HeldError
	if !errors.Is(err, holdlock.ErrUnreachable) && (!errors.As(err, &held) || held.Token != g.Token) {
		t.Errorf("the old primary: %v", err)
	}
}

// A server is made the replica of an empty one and a primary again: its data is gone. The holder is told, nothing is created
// again, and tokens rise.
func TestReplicaOfAnEmptyOne(t *testing.T) {
	t.Parallel()
	r, empty := testenv.StartRedis(t), testenv.StartRedis(t, "--repl-diskless-sync-delay", "0")
	lease := mustAcquire(t, newLock(t, open(t, r.Addr, nil), "k", 12*time.Second))
	r.Do(t, "REPLICAOF", "127.0.0.1", fmt.Sprint(empty.Port()))
	testenv.Eventually(t, "it has the data of the other", func() bool { return r.Do(t, "DBSIZE") == "0" })
	d := openDriver(t, r.Addr, nil)
	if _, err := d.Acquire(t.Context(), request("k", time.Minute)); err == nil || !errors.Is(err, driver.ErrNotApplied) {
		t.Errorf("Acquire at a replica: %v, want the server's READONLY", err)
	}
	r.Do(t, "REPLICAOF", "NO", "ONE")
	lost(t, lease, holdlock.LossGone)
	if g := grant(t, d, request("k", time.Minute)); g.Token <= lease.Token() {
		t.Errorf("token %d after %d", g.Token, lease.Token())
	}
}

// The network is gone for a while, and comes back before trust has ended. Nothing is lost, and the lease goes on as before.
func TestAShortCutCostsNothing(t *testing.T) {
	t.Parallel()
	for _, whole := range []bool{false, true} { // one that lasts is the control
		t.Run(fmt.Sprint("lasting=", whole), func(t *testing.T) {
			t.Parallel()
			r := testenv.StartRedis(t)
			p := testenv.StartProxy(t, r.Addr, nil)
			var told events
			l := newLock(t, open(t, p.Addr, &Options{Client: holdlock.ClientOptions{Observer: &told}}), "k", 9*time.Second)
			lease := mustAcquire(t, l)
			p.SetScript(func(bool, []byte) testenv.Verdict { return testenv.Cut })
			testenv.Eventually(t, "renewals fail", func() bool { return len(told.of(holdlock.RenewFailed)) >= 2 })
			if whole {
				lost(t, lease, holdlock.LossUnreachable)
				return
			}
			p.SetScript(nil)
			testenv.Eventually(t, "it is renewed twice", func() bool { return lease.Err() != nil || len(told.of(holdlock.Renewed)) >= 2 })
			if lease.Err() != nil {
				t.Errorf("after a short cut: %v", lease.Err())
			}
			if err := lease.Release(t.Context()); err != nil {
				t.Errorf("Release: %v", err)
			}
			mustAcquire(t, l)
		})
	}
}

// Database numbers and namespaces do not exclude each other, and what is said of a lock names both.
func TestSeparateStores(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	in := func(db int, namespace string) *holdlock.Lock {
		rdb := redis.NewClient(&redis.Options{Addr: r.Addr, DB: db, MaxRetries: -1, MaintNotificationsConfig: noMaintenance})
		return newLock(t, openOn(t, rdb, &Options{Namespace: namespace}), "nightly", time.Minute)
	}
	for _, s := range []struct {
		db        int
		namespace string
		shows     string
	}{
		{0, "", r.Addr + "/0, namespace holdlock"},
		{1, "", r.Addr + "/1, namespace holdlock"},
		{0, "staging", r.Addr + "/0, namespace staging"},
		{0, "a:b", r.Addr + "/0, namespace a:b"},
		{0, "-._:", "namespace -._:"},
	} {
		lease := mustAcquire(t, in(s.db, s.namespace))
		t.Cleanup(func() { _ = lease.Release(context.Background()) })
		var held *holdlock.HeldError
		if _, err := in(s.db, s.namespace).TryAcquire(t.Context()); !errors.As(err, &held) { // the control
			t.Errorf("in the same store: %v, want held", err)
		} else if text := held.Error(); !strings.Contains(text, s.shows) {
			t.Errorf("%q does not name the store %q", text, s.shows)
		}
	}
}

// What goes over the wire: one script call for each step, and no other command.
func TestOneCallForEachStep(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d := openDriver(t, r.Addr, nil)
	loadScripts(t, r, d)
	const n = 500
	before := r.Do(t, "INFO", "commandstats")
	for range n {
		req := request("k", time.Minute)
		grant(t, d, req)
		if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
			t.Fatal(err)
		}
	}
	after := r.Do(t, "INFO", "commandstats")
	for command, want := range map[string]int{
		"cmdstat_evalsha:": 2 * n, "cmdstat_eval:": 0, "cmdstat_set:": 2 * n, "cmdstat_setnx:": 0, "cmdstat_expire": 0, "cmdstat_pexpire": 0,
	} {
		if got := count(after, command) - count(before, command); got != want {
			t.Errorf("%s %d calls for %d acquires and releases, want %d", command, got, n, want)
		}
	}
}
