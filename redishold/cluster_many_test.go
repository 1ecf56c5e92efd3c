//go:build unix

package redishold

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// partial starts a Cluster that serves the slots of the nodes that are left.
func partial(t *testing.T) []*testenv.Redis {
	t.Helper()
	nodes := testenv.StartCluster(t)
	for _, r := range nodes {
		r.Do(t, "CONFIG", "SET", "cluster-require-full-coverage", "no")
	}
	return nodes
}

// keysOn returns keys whose locks are on a node.
func keysOn(t *testing.T, d *Driver, r *testenv.Redis, n int) (keys []string) {
	t.Helper()
	for i := 0; len(keys) < n; i++ {
		key := fmt.Sprint("key-", i)
		node, err := d.cluster.MasterForKey(t.Context(), d.slotKey(key))
		if err != nil {
			t.Fatal(err)
		}
		if node.Options().Addr == r.Addr {
			keys = append(keys, key)
		}
	}
	return keys
}

// onCluster opens a driver with a client of its own.
func onCluster(t *testing.T, nodes []*testenv.Redis, opts *Options) *Driver {
	t.Helper()
	return site{kind: "cluster", addrs: testenv.Addrs(nodes)}.open(t, opts)
}

// One node of a Cluster hangs. What a batch has to say about keys of the others is said and answered while that lasts, however many
// keys the hung one has and though they come first. That these are not answered is the control.
func TestANodeThatHangsHoldsUpItsOwnKeys(t *testing.T) {
	t.Parallel()
	for _, what := range []string{"renewals", "heartbeats"} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			holdsUpItsOwn(t, what == "heartbeats")
		})
	}
}

func holdsUpItsOwn(t *testing.T, waits bool) {
	const sick, well = 250, 20 // so many that one call after the other would take minutes
	nodes := partial(t)
	d, other := onCluster(t, nodes, nil), onCluster(t, nodes[1:], nil)
	keys := append(keysOn(t, d, nodes[0], sick), keysOn(t, d, nodes[1], well)...)
	reqs := make([]*driver.AcquireRequest, len(keys))
	for i, key := range keys {
		reqs[i] = request(key, time.Minute)
		if !waits {
			grant(t, d, reqs[i])
			continue
		}
		grant(t, other, request(key, time.Hour))
		var held *driver.HeldError
		if _, err := d.Enqueue(t.Context(), reqs[i]); !errors.As(err, &held) || held.Place != 1 {
			t.Fatalf("Enqueue: %v, want the first place", err)
		}
		if i >= sick { // so that the heartbeat gets it for who waits
			nodes[1].Do(t, "DEL", d.slotKey(key))
		}
	}
	nodes[0].Freeze(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	errs := make([]error, len(keys))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if waits {
			for i, s := range d.Attend(ctx, reqs) {
				if errs[i] = s.Err; s.Err == nil && !s.Granted {
					errs[i] = fmt.Errorf("not granted: %+v", s)
				}
			}
			return
		}
		renewals := make([]*driver.RenewRequest, len(reqs))
		for i, req := range reqs {
			renewals[i] = &driver.RenewRequest{Ref: req.Ref, TTL: time.Hour}
		}
		for i, res := range d.RenewBatch(ctx, renewals) {
			errs[i] = res.Err
		}
	}()
	done := map[string]bool{}
	testenv.Eventually(t, "the server that works has heard of all of its keys", func() bool {
		for i, key := range keys[sick:] {
			term, ok, err := other.Inspect(t.Context(), key)
			done[key] = done[key] || err == nil && ok && term.Nonce == reqs[sick+i].Ref.Nonce && (waits || term.Remaining > time.Minute)
		}
		for _, key := range keys[sick:] {
			if !done[key] {
				return false
			}
		}
		return true
	})
	cancel()
	<-ended
	nodes[0].Thaw(t)
	for i, err := range errs {
		if i >= sick && err != nil {
			t.Errorf("%s, on a node that works: %v", keys[i], err)
		}
		if i < sick && err == nil {
			t.Errorf("%s, on the node that hangs: no error", keys[i])
		}
	}
}

// Calls that hang with a client that heeds no contexts use up what their own node may have of them, and not that of the others.
func TestHungCallsAreCountedForEachNode(t *testing.T) {
	t.Parallel()
	nodes := partial(t)
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: testenv.Addrs(nodes), PoolSize: 2 * maxHung, ReadTimeout: 10 * time.Minute, DialTimeout: 10 * time.Minute,
		MaintNotificationsConfig: noMaintenance, DisableIdentity: true,
	})
	defer rdb.Close()
	d, err := NewDriver(rdb, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	sick, well := keysOn(t, d, nodes[0], 1)[0], keysOn(t, d, nodes[1], 1)[0]
	if _, _, err := d.Inspect(t.Context(), well); err != nil {
		t.Fatal(err)
	}
	nodes[0].Freeze(t)
	defer nodes[0].Thaw(t) // so that the calls return
	refused := false
	for i := 0; i < 2*maxHung && !refused; i++ {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, _, err := d.Inspect(ctx, sick)
		cancel()
		refused = errors.Is(err, errHung)
		if err == nil || refused && i < maxHung {
			t.Fatalf("call %d on the node that hangs: %v", i, err)
		}
	}
	if !refused {
		t.Error("the control: the node that hangs is asked again and again")
	}
	if _, _, err := d.Inspect(t.Context(), well); err != nil {
		t.Errorf("on a node that works: %v", err)
	}
}

// counted returns a client for a Cluster that counts what it sends, and holds it back if that is wanted.
func counted(t *testing.T, opts *redis.ClusterOptions) (*Driver, *gate) {
	t.Helper()
	opts.ContextTimeoutEnabled, opts.MaxRetries, opts.DisableIdentity, opts.MaintNotificationsConfig = true, -1, true, noMaintenance
	rdb := redis.NewClusterClient(opts)
	g := &gate{}
	rdb.OnNewNode(func(c *redis.Client) { c.AddHook(g) })
	d, err := NewDriver(rdb, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = d.Close(), rdb.Close() })
	return d, g
}

// Many keys of a Cluster cost a few round trips to each node, also when the servers have forgotten the scripts. Those that are made
// to begin with, one for each key, are the control.
func TestManyKeysOfAClusterShareRoundTrips(t *testing.T) {
	t.Parallel()
	const n = 3 * 100 // some hundred on each node, and less than two pipelines hold
	nodes := testenv.StartCluster(t)
	d, g := counted(t, &redis.ClusterOptions{Addrs: testenv.Addrs(nodes)})
	sent := func() (alone, piped int) {
		g.mu.Lock()
		defer g.mu.Unlock()
		return g.alone, len(g.piped)
	}
	held, waiting := make([]*driver.AcquireRequest, n), make([]*driver.AcquireRequest, n)
	renewals := make([]*driver.RenewRequest, n)
	for i := range n {
		held[i], waiting[i] = request(fmt.Sprint(i), time.Minute), request(fmt.Sprint(i), time.Minute)
		grant(t, d, held[i])
		var taken *driver.HeldError
		if _, err := d.Enqueue(t.Context(), waiting[i]); !errors.As(err, &taken) {
			t.Fatal(err)
		}
		renewals[i] = &driver.RenewRequest{Ref: held[i].Ref, TTL: time.Hour}
	}
	if alone, _ := sent(); alone < 2*n {
		t.Errorf("the control: %d calls of one key each, want %d", alone, 2*n)
	}
	for _, forget := range []bool{false, true} {
		if forget {
			for _, r := range nodes {
				r.Do(t, "SCRIPT", "FLUSH")
			}
		}
		alone, piped := sent()
		for i, res := range d.RenewBatch(t.Context(), renewals) {
			if res.Err != nil {
				t.Fatalf("renewal %d: %v", i, res.Err)
			}
		}
		for i, s := range d.Attend(t.Context(), waiting) {
			if s.Err != nil || s.Place != 1 || s.Remaining <= time.Minute {
				t.Fatalf("heartbeat %d: %+v, want the first place behind what was renewed", i, s)
			}
		}
		terms, err := d.List(t.Context(), "", "", n)
		if err != nil || len(terms) != n {
			t.Fatalf("%d terms are listed, %v, want %d", len(terms), err, n)
		}
		nowAlone, nowPiped := sent()
		if nowAlone-alone > 20 || nowPiped-piped > 2*3*3*2 { // SCAN and the like go alone; two pipelines for each of three kinds and nodes, and as many again
			t.Errorf("scripts forgotten %v: %d calls alone and %d pipelines for %d keys three times", forget, nowAlone-alone, nowPiped-piped, n)
		}
	}
}

// A connection fails in the middle of a pipeline to one node: those before keep their answers, and those behind are not certain.
func TestAClusterPipelineIsCut(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartCluster(t)
	p := testenv.StartProxy(t, nodes[0].Addr, nil)
	d, _ := counted(t, &redis.ClusterOptions{
		Addrs: testenv.Addrs(nodes),
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr == nodes[0].Addr {
				addr = p.Addr
			}
			return (&net.Dialer{}).DialContext(ctx, network, addr)
		},
	})
	nodes[0].Do(t, "SCRIPT", "LOAD", echo.source)
	big := strings.Repeat("x", 300_000) // so that its answer does not come in one piece with those before
	keys := keysOn(t, d, nodes[0], 4)
	keys = append(keys, keysOn(t, d, nodes[1], 1)...)
	all := make([]*slotCall, len(keys))
	for i, arg := range []string{"a", "b", big, "c", "d"} {
		all[i] = &slotCall{keys: []string{d.lineKey(keys[i])}, args: []any{arg}}
	}
	p.SetScript(func(up bool, data []byte) testenv.Verdict {
		if !up && bytes.Contains(data, []byte("xxxx")) && !bytes.Contains(data, []byte("\r\nb\r\n")) {
			return testenv.Cut
		}
		return testenv.Pass
	})
	d.callEach(t.Context(), echo, all)
	for i, r := range all {
		if answered := i != 2 && i != 3; answered != (r.err == nil) {
			t.Errorf("call %d: %.20v, %v", i, r.reply, r.err)
		}
		if r.err != nil && certain(r.err) {
			t.Errorf("call %d: %v is certain", i, r.err)
		}
	}
}

// A slot moves while batches with keys of it and of others are under way: all are answered, before, between and after. A call for two keys
// of which one has moved is the control.
func TestBatchesWhileASlotMoves(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartCluster(t)
	d := onCluster(t, nodes, nil)
	from, to := nodes[0], nodes[1]
	keys := append(keysOn(t, d, from, 3), keysOn(t, d, to, 3)...)
	moving := keys[1]
	var held, waiting []*driver.AcquireRequest
	var renewals []*driver.RenewRequest
	for i, key := range keys {
		held, waiting = append(held, request(key, time.Minute)), append(waiting, request(key, time.Minute))
		grant(t, d, held[i])
		var taken *driver.HeldError
		if _, err := d.Enqueue(t.Context(), waiting[i]); !errors.As(err, &taken) {
			t.Fatal(err)
		}
		renewals = append(renewals, &driver.RenewRequest{Ref: held[i].Ref, TTL: time.Minute})
	}
	all := func(when string) {
		t.Helper()
		for i, res := range d.RenewBatch(t.Context(), renewals) {
			if res.Err != nil {
				t.Errorf("%s: renewal %d: %v", when, i, res.Err)
			}
		}
		for i, s := range d.Attend(t.Context(), waiting) {
			if s.Err != nil || s.Place != 1 {
				t.Errorf("%s: heartbeat %d: %+v", when, i, s)
			}
		}
		if terms, err := d.look(t.Context(), keys); err != nil || len(terms) != len(keys) {
			t.Errorf("%s: %d terms, %v", when, len(terms), err)
		}
	}
	slot := from.Do(t, "CLUSTER", "KEYSLOT", d.slotKey(moving))
	fromID, toID := from.Do(t, "CLUSTER", "MYID"), to.Do(t, "CLUSTER", "MYID")
	to.Do(t, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID)
	from.Do(t, "CLUSTER", "SETSLOT", slot, "MIGRATING", toID)
	all("before the keys have moved")
	port := fmt.Sprint(to.Port())
	from.Do(t, "MIGRATE", "127.0.0.1", port, d.slotKey(moving), "0", "5000")
	s := d.Attend(t.Context(), waiting)
	if s[1].Err == nil || !strings.Contains(s[1].Err.Error(), "TRYAGAIN") || s[0].Err != nil || s[2].Err != nil {
		t.Errorf("the control: between two nodes %+v", s)
	}
	for _, key := range []string{d.lineKey(moving), d.slotKey(moving) + ":p:" + d.hub.id} {
		from.Do(t, "MIGRATE", "127.0.0.1", port, key, "0", "5000")
	}
	all("ASK")
	for _, r := range []*testenv.Redis{to, from, nodes[2]} {
		r.Do(t, "CLUSTER", "SETSLOT", slot, "NODE", toID)
	}
	for range 3 { // until the client library has looked, and then
		all("MOVED")
	}
}
