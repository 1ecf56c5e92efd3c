//go:build unix

package redishold

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
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
	"github.com/holdlock/holdlock/quorumhold"
)

// naiveQuorum is a quorum whose nodes do not abstain.
func naiveQuorum(t *testing.T, addrs []string, maxTTL time.Duration) *quorumOwner {
	t.Helper()
	clients, closeAll := dialAll(addrs)
	var nodes []driver.Driver
	for _, c := range clients {
		d, err := NewDriver(c, nil)
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, d)
	}
	d, err := quorumhold.NewDriver(nodes, &quorumhold.Options{MaxTTL: maxTTL})
	if err != nil {
		t.Fatal(err)
	}
	o := &quorumOwner{d, closeAll}
	t.Cleanup(func() { _ = o.Close() })
	return o
}

// holding is a lease over a quorum that is renewed in the background, and a rival that never ceases to ask for the lock.
type holding struct {
	lease   *holdlock.Lease
	doubled atomic.Bool
	stop    func()
}

func holdAgainstRival(t *testing.T, mine, rival driver.Driver, ttl time.Duration) *holding {
	t.Helper()
	c, err := holdlock.NewClient(mine, nil)
	if err != nil {
		t.Fatal(err)
	}
	h := &holding{lease: mustAcquire(t, newLock(t, c, "k", ttl))}
	ctx, cancel := context.WithCancel(context.Background())
	var asking sync.WaitGroup
	asking.Go(func() {
		for ctx.Err() == nil {
			if _, err := rival.Acquire(ctx, request("k", ttl)); err == nil && h.lease.Check(0) == nil {
				h.doubled.Store(true)
				return
			}
			time.Sleep(2 * time.Millisecond)
		}
	})
	h.stop = sync.OnceFunc(func() {
		cancel()
		asking.Wait()
	})
	t.Cleanup(func() {
		h.stop()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = h.lease.Release(ctx)
		_ = c.Shutdown(ctx)
	})
	return h
}

// has says whether a server has the lock k under a nonce, or, if that is empty, at all.
func has(t *testing.T, r *testenv.Redis, nonce string) bool {
	t.Helper()
	d := openDriver(t, r.Addr, &Options{Namespace: "holdlock:q"})
	term, ok, err := d.Inspect(t.Context(), "k")
	return err == nil && ok && !term.Cooling && (nonce == "" || term.Nonce == nonce)
}

// allHave waits until all servers have the lock k. A grant is one of three of five nodes; the others are given it at once, or with
// the next renewal if the rival was there first.
func allHave(t *testing.T, servers []*testenv.Redis, nonce string) {
	t.Helper()
	testenv.Eventually(t, "all nodes have the lock", func() bool {
		for _, r := range servers {
			if !has(t, r, nonce) {
				return false
			}
		}
		return true
	})
}

// Five nodes are killed and come back empty, one after the other, under one lease. It is never lost, and nobody else gets
// the lock meanwhile.
func TestQuorumNodesRestartedEmptyOneByOne(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	servers := startServers(t, 5)
	addrs := testenv.Addrs(servers)
	opts := &QuorumOptions{MaxTTL: ttl}
	initQuorum(t, addrs, opts)
	h := holdAgainstRival(t, openQuorum(t, addrs, opts), openQuorum(t, addrs, opts), ttl)
	nonce := h.lease.Ref().Nonce
	allHave(t, servers, nonce)
	for i, r := range servers {
		r.Restart(t)
		if has(t, r, nonce) {
			t.Fatal("the control: a server that has restarted should be empty")
		}
		testenv.Eventually(t, fmt.Sprintf("node %d has the lock again", i+1), func() bool {
			return h.lease.Err() != nil || has(t, r, nonce)
		})
		if err := h.lease.Err(); err != nil {
			t.Fatalf("after the restart of node %d: %v", i+1, err)
		}
	}
	if h.doubled.Load() {
		t.Error("a rival was granted the lock")
	}
	// All that the lease was granted is gone: only what was given to the nodes again holds it.
	if err := h.lease.Check(0); err != nil {
		t.Error(err)
	}
}

// A majority restarts empty within one TTL. The lease may be lost, but nobody else is granted the lock before it is over.
// Nodes that do not abstain grant it at once.
func TestQuorumMajorityRestartsEmpty(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	restart := func(t *testing.T, mine, rival driver.Driver, servers []*testenv.Redis) bool {
		req := request("k", ttl)
		sent := time.Now()
		grant(t, mine, req)
		for _, r := range servers[:3] {
			r.Restart(t)
		}
		for {
			if _, err := rival.Acquire(t.Context(), request("k", ttl)); err == nil {
				return time.Since(sent) < ttl
			}
			time.Sleep(time.Millisecond)
		}
	}
	t.Run("abstaining", func(t *testing.T) {
		t.Parallel()
		servers := startServers(t, 5)
		opts := &QuorumOptions{MaxTTL: ttl}
		initQuorum(t, testenv.Addrs(servers), opts)
		if restart(t, openQuorum(t, testenv.Addrs(servers), opts), openQuorum(t, testenv.Addrs(servers), opts), servers) {
			t.Error("two hold the lock")
		}
	})
	t.Run("control", func(t *testing.T) {
		t.Parallel()
		testenv.Eventually(t, "two hold the lock", func() bool { // a busy machine may take longer than a TTL for it
			servers := startServers(t, 5)
			return restart(t, naiveQuorum(t, testenv.Addrs(servers), ttl), naiveQuorum(t, testenv.Addrs(servers), ttl), servers)
		})
	})
}

// One node is down, and a second one fails later: still held. The third is one too many.
func TestQuorumTwoNodesFail(t *testing.T) {
	t.Parallel()
	const ttl = 4 * time.Second
	servers := startServers(t, 5)
	addrs := testenv.Addrs(servers)
	opts := &QuorumOptions{MaxTTL: ttl}
	initQuorum(t, addrs, opts)
	servers[0].Kill()
	h := holdAgainstRival(t, openQuorum(t, addrs, opts), openQuorum(t, addrs, opts), ttl)
	outlive := func(what string) {
		before := h.lease.Deadline()
		testenv.Eventually(t, what+": it is renewed", func() bool {
			return h.lease.Err() != nil || h.lease.Deadline().After(before.Add(ttl))
		})
		if err := h.lease.Err(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	outlive("one node down")
	servers[1].Freeze(t)
	outlive("one node down, one frozen")
	servers[2].Freeze(t)
	lost(t, h.lease, holdlock.LossUnreachable) // the control
	if h.doubled.Load() {
		t.Error("a rival was granted the lock")
	}
}

// Three of five nodes hang: a clear answer within the budget, and nothing is left on any node when the TTL is over.
func TestQuorumThreeNodesHang(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second
	servers := startServers(t, 5)
	addrs := testenv.Addrs(servers)
	opts := &QuorumOptions{MaxTTL: ttl}
	initQuorum(t, addrs, opts)
	d := openQuorum(t, addrs, opts)
	req := request("k", ttl)
	grant(t, d, req) // so that connections stand
	if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
		t.Fatal(err)
	}
	for _, r := range servers[2:] {
		r.Freeze(t)
	}
	c, err := holdlock.NewClient(d, &holdlock.ClientOptions{CallTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Shutdown(context.Background()) }()
	l := newLock(t, c, "k", ttl)
	for try := range 5 {
		start := time.Now()
		_, err = l.TryAcquire(t.Context())
		took := time.Since(start)
		if !errors.Is(err, holdlock.ErrUnreachable) || !strings.Contains(err.Error(), "unreachable (2 of 5 answered, 3 needed)") {
			t.Fatalf("try %d: %v", try, err)
		}
		if took > 5*time.Second {
			t.Errorf("try %d took %v", try, took)
		}
		if try == 0 && !strings.Contains(err.Error(), servers[4].Addr) {
			t.Errorf("the error does not name the node %s: %v", servers[4].Addr, err)
		}
	}
	for _, r := range servers[2:] {
		r.Thaw(t)
	}
	woken := time.Now()
	for i, r := range servers {
		testenv.Eventually(t, fmt.Sprintf("node %d is free", i+1), func() bool { return !has(t, r, "") })
	}
	t.Logf("free %v after the nodes woke", time.Since(woken).Round(time.Millisecond))
	lease := mustAcquire(t, l) // the control: it works again
	if err := lease.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// Addresses that are one server, or a primary and its replicas, are refused, and the message says which.
func TestQuorumRefusesOneServer(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	var addrs, names []string
	for i := range 5 { // one server under five addresses
		p := testenv.StartProxy(t, r.Addr, nil)
		addrs, names = append(addrs, p.Addr), append(names, fmt.Sprintf("node-%d", i))
	}
	d := openQuorum(t, addrs, &QuorumOptions{Names: names, MaxTTL: time.Second})
	for range 3 { // also when it no longer abstains
		_, err := d.Acquire(t.Context(), request("k", time.Second))
		if err == nil || !errors.Is(err, quorumhold.ErrMismatch) || !strings.Contains(err.Error(), "are one server") ||
			!strings.Contains(err.Error(), "node-") {
			t.Fatalf("five addresses of one server: %v", err)
		}
		time.Sleep(500 * time.Millisecond)
	}
	clients, closeAll := dialAll(addrs)
	defer closeAll()
	if err := InitQuorum(t.Context(), clients, &QuorumOptions{Names: names}); err == nil || !strings.Contains(err.Error(), "are one server") ||
		strings.Count(err.Error(), "nothing was changed") != 1 {
		t.Errorf("InitQuorum of one server: %v", err)
	}
	// What an older client has marked is seen by the scripts as well, whoever asks.
	_, nodes, err := quorumNodes(clients, &QuorumOptions{Names: names, MaxTTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	refusals := 0
	for _, n := range nodes {
		defer n.Close()
		_, err := n.granting.Acquire(t.Context(), request("k", time.Second))
		if err = n.explain(err); err != nil && strings.Contains(err.Error(), "bears the mark of node") {
			refusals++
		}
	}
	if refusals != 4 {
		t.Errorf("the scripts refuse %d of 5 names of one server, want 4", refusals)
	}
}

func TestQuorumRefusesReplicas(t *testing.T) {
	t.Parallel()
	primary := testenv.StartRedis(t, "--repl-diskless-sync-delay", "0")
	addrs := []string{primary.Addr}
	for range 2 {
		r := testenv.StartRedis(t, "--replicaof", fmt.Sprintf("127.0.0.1 %d", primary.Port()))
		addrs = append(addrs, r.Addr)
		testenv.Eventually(t, "the replica has caught up", func() bool {
			return strings.Contains(r.Do(t, "INFO", "replication"), "master_link_status:up")
		})
	}
	d := openQuorum(t, addrs, &QuorumOptions{MaxTTL: time.Second})
	_, err := d.Acquire(t.Context(), request("k", time.Second))
	found(t, slices.DeleteFunc(d.Diagnose(t.Context(), driver.DoctorOptions{TTL: time.Second}), func(f driver.Diagnosis) bool {
		return strings.Contains(f.Found, "nothing was changed")
	}), "identity of "+primary.Addr, driver.Refuse, "it has 2 replicas")
	for _, want := range []string{primary.Addr + "/0: ", "it has 2 replicas", addrs[1] + "/0, ", "it is a replica of " + primary.Addr} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a primary and its replicas: %v; want it to say %q", err, want)
		}
	}
	opts := &QuorumOptions{MaxTTL: time.Second}
	servers := startServers(t, 3) // the control
	initQuorum(t, testenv.Addrs(servers), opts)
	grant(t, openQuorum(t, testenv.Addrs(servers), opts), request("k", time.Second))
}

// Two programs with different lists of nodes do not exclude each other, so the second is refused.
func TestQuorumRefusesOtherMembers(t *testing.T) {
	t.Parallel()
	addrs := testenv.Addrs(startServers(t, 5))
	// The control: nodes that know no members grant both.
	grant(t, naiveQuorum(t, addrs[:3], time.Minute), request("naive", time.Minute))
	grant(t, naiveQuorum(t, addrs[2:], time.Minute), request("naive", time.Minute))
	opts := &QuorumOptions{MaxTTL: time.Second}
	initQuorum(t, addrs[:3], opts)
	grant(t, openQuorum(t, addrs[:3], opts), request("k", time.Second))
	_, err := openQuorum(t, addrs[2:], opts).Acquire(t.Context(), request("k", time.Second))
	if !errors.Is(err, quorumhold.ErrMismatch) && !errors.Is(err, driver.ErrAbstains) || !strings.Contains(err.Error(), "belongs to a quorum of 3 nodes") {
		t.Errorf("with another list: %v", err)
	}
	_, err = openQuorum(t, addrs[:3], &QuorumOptions{MaxTTL: 2 * time.Second}).Acquire(t.Context(), request("k2", time.Second))
	if err == nil || !strings.Contains(err.Error(), "MaxTTL 1s") {
		t.Errorf("with another MaxTTL: %v", err)
	}
	if _, err := openQuorum(t, []string{addrs[2], addrs[0], addrs[1]}, opts).Acquire(t.Context(), request("k2", time.Second)); err != nil {
		t.Errorf("the same nodes in another order: %v", err)
	}
}

// Random faults on real servers: kill and restart empty, freeze, cut. No two hold, and tokens rise.
func TestQuorumUnderFaults(t *testing.T) {
	t.Parallel()
	quorumUnderFaults(t, 6*time.Second)
}

func quorumUnderFaults(t *testing.T, length time.Duration) {
	const ttl = time.Second
	servers := startServers(t, 5)
	var addrs, names []string
	var proxies []*testenv.Proxy
	for i, r := range servers {
		p := testenv.StartProxy(t, r.Addr, nil)
		proxies, addrs, names = append(proxies, p), append(addrs, p.Addr), append(names, fmt.Sprintf("node-%d", i))
	}
	opts := &QuorumOptions{MaxTTL: ttl, NodeTimeout: 100 * time.Millisecond, Names: names}
	initQuorum(t, addrs, opts)
	var (
		mu      sync.Mutex
		tenures []drivertest.Tenure
		clients sync.WaitGroup
	)
	end := time.Now().Add(length)
	enough := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return time.Now().After(end) && (len(tenures) >= 10 || time.Now().After(end.Add(20*length)))
	}
	for i := range 4 {
		d := openQuorum(t, addrs, opts)
		clients.Go(func() {
			for !enough() {
				if tenure, ok := holdOnce(d, fmt.Sprintf("client %d", i), ttl); ok {
					mu.Lock()
					tenures = append(tenures, tenure)
					mu.Unlock()
				}
				time.Sleep(rand.N(ttl / 10))
			}
		})
	}
	faults := 0
	for !enough() {
		i := rand.N(len(servers))
		switch faults++; rand.N(3) {
		case 0:
			servers[i].Restart(t)
		case 1:
			servers[i].Freeze(t)
			time.Sleep(rand.N(ttl))
			servers[i].Thaw(t)
		case 2:
			proxies[i].CutAll()
		}
		time.Sleep(rand.N(ttl / 4))
	}
	clients.Wait()
	for _, w := range drivertest.CheckHistory(tenures) {
		t.Error(w)
	}
	t.Logf("%d faults, %d tenures", faults, len(tenures))
}

// holdOnce takes the lock k for a while, if it is free.
func holdOnce(d driver.Driver, who string, ttl time.Duration) (t drivertest.Tenure, ok bool) {
	call := func() (context.Context, context.CancelFunc) { return context.WithTimeout(context.Background(), ttl/4) }
	req := request("k", ttl)
	t = drivertest.Tenure{Key: "k", Who: who, Invoked: time.Now()}
	ctx, cancel := call()
	g, err := d.Acquire(ctx, req)
	cancel()
	if err != nil {
		return t, false
	}
	t.Token, t.Granted, t.Ended = g.Token, time.Now(), t.Invoked.Add(ttl)
	for range rand.N(4) {
		time.Sleep(rand.N(ttl / 2))
		sent := time.Now()
		ctx, cancel := call()
		_, err := d.Renew(ctx, &driver.RenewRequest{Ref: req.Ref, TTL: ttl})
		cancel()
		if !time.Now().Before(t.Ended) || errors.Is(err, driver.ErrGone) {
			break
		}
		if err == nil {
			t.Ended = sent.Add(ttl)
		}
	}
	if now := time.Now(); now.Before(t.Ended) {
		t.Ended = now
	}
	ctx, cancel = call()
	defer cancel()
	_ = d.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref})
	return t, true
}

// A script that a node has forgotten is sent again, also those with a gate.
func TestQuorumScriptsFlushed(t *testing.T) {
	t.Parallel()
	servers := startServers(t, 3)
	addrs := testenv.Addrs(servers)
	initQuorum(t, addrs, nil)
	d := openQuorum(t, addrs, nil)
	for range 3 {
		req := request("k", time.Second)
		grant(t, d, req)
		for _, r := range servers {
			r.Do(t, "SCRIPT", "FLUSH")
		}
		if _, err := d.Renew(t.Context(), &driver.RenewRequest{Ref: req.Ref, TTL: time.Second}); err != nil {
			t.Error(err)
		}
		if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
			t.Error(err)
		}
	}
	for _, r := range servers { // the control: they had forgotten them
		if !strings.Contains(r.Do(t, "INFO", "errorstats"), "errorstat_NOSCRIPT") {
			t.Error("no node was asked for a script that it had forgotten")
		}
	}
}

// FLUSHALL leaves run_id and uptime as they are. The missing mark makes the node abstain.
func TestQuorumAbstainsAfterFlush(t *testing.T) {
	t.Parallel()
	const ttl = time.Second
	servers := startServers(t, 3)
	addrs := testenv.Addrs(servers)
	opts := &QuorumOptions{MaxTTL: ttl}
	initQuorum(t, addrs, opts)
	d, rival := openQuorum(t, addrs, opts), openQuorum(t, addrs, opts)
	sent := time.Now()
	grant(t, d, request("k", ttl))
	for _, r := range servers {
		r.Do(t, "FLUSHALL")
	}
	_, err := rival.Acquire(t.Context(), request("k", ttl))
	if !errors.Is(err, driver.ErrAbstains) && time.Since(sent) < ttl {
		t.Errorf("after FLUSHALL: %v", err)
	}
	for {
		if _, err := rival.Acquire(t.Context(), request("k", ttl)); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if took := time.Since(sent); took < ttl {
		t.Errorf("granted again after %v", took)
	}
	// The control: nodes that do not look for a mark grant it at once.
	const long = time.Minute
	naive, other := naiveQuorum(t, addrs, long), naiveQuorum(t, addrs, long)
	grant(t, naive, request("k", long))
	for _, r := range servers {
		r.Do(t, "FLUSHALL")
	}
	grant(t, other, request("k", long))
}

// What nodes have to be.
func TestQuorumOfWhat(t *testing.T) {
	t.Parallel()
	one := func() redis.UniversalClient { return redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) }
	other := func(n int) redis.UniversalClient {
		return redis.NewClient(&redis.Options{Addr: fmt.Sprintf("127.0.0.1:%d", n)})
	}
	for what, clients := range map[string][]redis.UniversalClient{
		"a Cluster":    {other(1), other(2), redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"127.0.0.1:3"}})},
		"Sentinel":     {other(1), other(2), redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"127.0.0.1:3"}})},
		"two":          {other(1), other(2)},
		"four":         {other(1), other(2), other(3), other(4)},
		"one twice":    {one(), one(), other(2)},
		"a nil client": {other(1), other(2), nil},
		"none":         nil,
	} {
		if _, err := OpenQuorum(clients, nil); err == nil {
			t.Errorf("%s: no error", what)
		}
		for _, c := range clients {
			if c != nil {
				_ = c.Close()
			}
		}
	}
	weak := []redis.UniversalClient{other(1), other(2)}
	c, err := OpenQuorum(weak, &QuorumOptions{AllowWeak: true})
	if err != nil {
		t.Fatalf("two with AllowWeak: %v", err)
	}
	_ = c.Shutdown(context.Background())
	for _, c := range weak {
		_ = c.Close()
	}
}

// What the documentation adds to the rights for one server is enough, and needed.
func TestQuorumDocumentedACL(t *testing.T) {
	t.Parallel()
	servers := startServers(t, 3)
	as := func(name string, rights []string) *quorumhold.Driver {
		var clients []redis.UniversalClient
		for _, r := range servers {
			r.Do(t, append([]string{"ACL", "SETUSER", name, "on", ">secret"}, rights...)...)
			c := redis.NewClient(&redis.Options{
				Addr: r.Addr, Username: name, Password: "secret", ContextTimeoutEnabled: true, MaxRetries: -1,
				MaintNotificationsConfig: noMaintenance, DisableIdentity: true,
			})
			t.Cleanup(func() { _ = c.Close() })
			clients = append(clients, c)
		}
		d, err := NewQuorumDriver(clients, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = d.Close() })
		return d
	}
	initQuorum(t, testenv.Addrs(servers), nil)
	rights := documentedACL(t)
	d := as("enough", append([]string{"+info"}, rights...))
	req := request("k", time.Second)
	grant(t, d, req)
	if _, err := d.Renew(t.Context(), &driver.RenewRequest{Ref: req.Ref, TTL: time.Second}); err != nil {
		t.Error(err)
	}
	if _, _, err := d.Inspect(t.Context(), "k"); err != nil {
		t.Error(err)
	}
	if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
		t.Error(err)
	}
	for _, r := range servers {
		if log := r.Do(t, "ACL", "LOG"); log != "" {
			t.Errorf("the server has refused something: %s", log)
		}
	}
	_, err := as("without", rights).Acquire(t.Context(), request("k", time.Second))
	if err == nil || !strings.Contains(err.Error(), "NOPERM") || !errors.Is(err, driver.ErrNotApplied) {
		t.Errorf("without +info: %v", err)
	}
}
