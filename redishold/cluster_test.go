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

// While a slot moves, its keys are on one node or the other, and keys of one script can be on both for a moment.
func TestSlotMigration(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartCluster(t)
	rdb := clusterClient(nodes)
	defer rdb.Close()
	d, err := NewDriver(rdb, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	req := request("k", time.Minute)
	first := grant(t, d, req)
	hints, stop, err := d.Watch(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()

	slot := nodes[0].Do(t, "CLUSTER", "KEYSLOT", d.slotKey("k"))
	if other := nodes[0].Do(t, "CLUSTER", "KEYSLOT", d.watchersKey("k")); other != slot {
		t.Fatalf("the keys of one lock are in slots %s and %s", slot, other)
	}
	var from, to *testenv.Redis
	for i, r := range nodes {
		if r.Do(t, "CLUSTER", "COUNTKEYSINSLOT", slot) != "0" {
			from, to = r, nodes[(i+1)%3]
		}
	}
	fromID, toID := from.Do(t, "CLUSTER", "MYID"), to.Do(t, "CLUSTER", "MYID")
	to.Do(t, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID)
	from.Do(t, "CLUSTER", "SETSLOT", slot, "MIGRATING", toID)
	renews := func(when string) {
		t.Helper()
		if _, err := d.Renew(t.Context(), &driver.RenewRequest{Ref: req.Ref, TTL: time.Minute}); err != nil {
			t.Errorf("%s Renew: %v", when, err)
		}
		var held *driver.HeldError
		if _, err := d.Acquire(t.Context(), request("k", time.Minute)); !errors.As(err, &held) || held.Term.Token != first.Token {
			t.Errorf("%s Acquire by another: %v, want held", when, err)
		}
	}
	renews("before the key has moved")
	from.Do(t, "MIGRATE", "127.0.0.1", fmt.Sprint(to.Port()), d.slotKey("k"), "0", "5000")
	renews("ASK:")
	// The line is on the old node, the slot on the new one: a release needs both, and is refused as a whole.
	if _, err := from.Try("EVAL", "return 1", "2", d.slotKey("k"), d.watchersKey("k")); err == nil || !strings.HasPrefix(err.Error(), "TRYAGAIN") {
		t.Errorf("the control: a script over both keys: %v, want TRYAGAIN", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var server redis.Error
	err = d.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref})
	if !errors.As(err, &server) || errors.Is(err, driver.ErrGone) || !strings.Contains(err.Error(), "TRYAGAIN") {
		t.Errorf("Release between two nodes: %v, want the server's TRYAGAIN", err)
	}
	from.Do(t, "MIGRATE", "127.0.0.1", fmt.Sprint(to.Port()), d.watchersKey("k"), "0", "5000")
	for _, r := range []*testenv.Redis{to, from, nodes[0], nodes[1], nodes[2]} {
		r.Do(t, "CLUSTER", "SETSLOT", slot, "NODE", toID)
	}
	renews("MOVED:")
	if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
		t.Errorf("MOVED: Release: %v", err)
	}
	select {
	case <-hints:
	case <-time.After(20 * time.Second):
		t.Error("MOVED: no hint after the release")
	}
	if g := grant(t, d, request("k", time.Minute)); g.Token <= first.Token || g.Previous != driver.Released {
		t.Errorf("the grant after the move is %+v, before %+v", g, first)
	}
}

// A node that is down is a failure of the store and never "held". What becomes of the keys of the others depends on a
// setting of the Cluster.
func TestClusterNodeDown(t *testing.T) {
	t.Parallel()
	for _, full := range []bool{true, false} {
		t.Run(fmt.Sprint("require-full-coverage=", full), func(t *testing.T) {
			t.Parallel()
			nodeDown(t, full)
		})
	}
}

func nodeDown(t *testing.T, full bool) {
	nodes := testenv.StartCluster(t)
	rdb := clusterClient(nodes)
	var told events
	c := openOn(t, rdb, &Options{Client: holdlock.ClientOptions{Observer: &told}})
	const ttl = 3 * time.Second
	// nodeOf returns the node that has a key.
	nodeOf := func(key string) int {
		var slot int
		if _, err := fmt.Sscan(nodes[0].Do(t, "CLUSTER", "KEYSLOT", "holdlock:{:"+key+"}"), &slot); err != nil {
			t.Fatal(err)
		}
		return slices.IndexFunc([]int{16384 / 3, 16384 * 2 / 3, 16384}, func(end int) bool { return slot < end })
	}
	var names [3]string // a lock on each node
	for i := 0; names[0] == "" || names[1] == "" || names[2] == ""; i++ {
		name := fmt.Sprint("k", i)
		names[nodeOf(name)] = name
	}
	for _, r := range nodes {
		if !full {
			r.Do(t, "CONFIG", "SET", "cluster-require-full-coverage", "no")
		}
	}
	dead, alive := newLock(t, c, names[0], ttl), newLock(t, c, names[1], ttl)
	onDead, onAlive := mustAcquire(t, dead), mustAcquire(t, alive)
	if _, err := dead.TryAcquire(t.Context()); !errors.Is(err, holdlock.ErrHeld) {
		t.Errorf("the control: before it is down: %v, want ErrHeld", err)
	}
	nodes[0].Kill()
	lost(t, onDead, holdlock.LossUnreachable)
	for range 3 {
		_, err := dead.TryAcquire(t.Context())
		if errors.Is(err, holdlock.ErrHeld) || !errors.Is(err, holdlock.ErrUnreachable) && !errors.Is(err, holdlock.ErrUnknown) {
			t.Errorf("TryAcquire: %v, want a failure of the store", err)
		}
	}
	var taken *driver.HeldError // the control: this is how it is done wrong
	if _, err := (naive{rdb}).Acquire(t.Context(), request(names[0], ttl)); !errors.As(err, &taken) {
		t.Errorf("a naive lock on the node that is down: %v, want it to say held", err)
	}
	for _, r := range nodes[1:] {
		testenv.Eventually(t, "the others notice", func() bool {
			return !strings.Contains(r.Do(t, "CLUSTER", "INFO"), "cluster_slots_fail:0")
		})
	}
	if full {
		lost(t, onAlive, holdlock.LossUnreachable)
		_, err := alive.TryAcquire(t.Context())
		if err == nil || errors.Is(err, holdlock.ErrHeld) || !strings.Contains(err.Error(), "CLUSTERDOWN") {
			t.Errorf("a Cluster that is down: %v, want the server's CLUSTERDOWN", err)
		}
		return
	}
	renewed := len(told.of(holdlock.Renewed))
	testenv.Eventually(t, "a lock on a node that is up is renewed", func() bool {
		return onAlive.Err() != nil || len(told.of(holdlock.Renewed)) > renewed
	})
	if onAlive.Err() != nil {
		t.Errorf("the lock on a node that is up: %v", onAlive.Err())
	}
	if _, err := alive.TryAcquire(t.Context()); !errors.Is(err, holdlock.ErrHeld) {
		t.Errorf("the lock on a node that is up: %v, want ErrHeld", err)
	}
	mustAcquire(t, newLock(t, c, names[2], ttl))
}

func TestPlainKeysOnACluster(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartCluster(t)
	rdb := clusterClient(nodes)
	defer rdb.Close()
	d, err := NewDriver(rdb, &Options{PlainKeys: true})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, key := range []string{"a", "a/b", "{", "a{b", "x y"} {
		req := request(key, time.Minute)
		grant(t, d, req)
		if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
			t.Errorf("Release of %q: %v", key, err)
		}
	}
	if _, err := d.Acquire(t.Context(), request("a{b}", time.Minute)); !errors.Is(err, driver.ErrNotApplied) {
		t.Errorf("a name with a closing brace: %v, want a refusal", err)
	}
}

func TestRingIsRefused(t *testing.T) {
	t.Parallel()
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	defer ring.Close()
	if _, err := NewDriver(ring, nil); err == nil || !strings.Contains(err.Error(), "Ring is refused") {
		t.Errorf("NewDriver on a Ring: %v", err)
	}
	if _, err := NewDriver(nil, nil); err == nil {
		t.Error("NewDriver on nil: no error")
	}
	for _, ns := range []string{"a b", "a{b", "a}", "ü", strings.Repeat("x", 65), "*"} {
		if _, err := NewDriver(client("127.0.0.1:1"), &Options{Namespace: ns}); err == nil {
			t.Errorf("namespace %q is accepted", ns)
		}
	}
}
