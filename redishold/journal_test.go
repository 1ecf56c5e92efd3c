//go:build unix

package redishold

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
	jobs "github.com/holdlock/holdlock/once"
)

// Plain keys and quorums keep no records. They refuse before anything is sent, and say what keeps them.
func TestWhoKeepsNoRecords(t *testing.T) {
	t.Parallel()
	d, err := NewDriver(client("127.0.0.1:1"), &Options{PlainKeys: true})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := driver.As[driver.Journal](d); ok || d.Traits().Records != driver.NoRecords {
		t.Errorf("plain keys: a Journal: %v, records %v", ok, d.Traits().Records)
	}
	req := claiming("k", time.Minute, driver.Rerun)
	_, claimed := d.Acquire(t.Context(), req)
	_, _, looked := d.Job(t.Context(), "k")
	_, listed := d.Jobs(t.Context(), &driver.JobQuery{Limit: 1})
	for verb, err := range map[string]error{
		"Acquire": claimed, "Job": looked, "Jobs": listed, "Settle": d.Settle(t.Context(), &driver.SettleRequest{Key: "k"}),
		"Release": d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref, Record: &driver.Record{State: driver.JobDone, Keep: 1}}),
	} {
		if !errors.Is(err, errors.ErrUnsupported) || !errors.Is(err, driver.ErrNotApplied) || !strings.Contains(err.Error(), "PlainKeys") {
			t.Errorf("%s on plain keys: %v", verb, err)
		}
	}
	nodes := []redis.UniversalClient{client("127.0.0.1:1"), client("127.0.0.1:2"), client("127.0.0.1:3")}
	quorum, err := OpenQuorum(nodes, nil)
	if err != nil {
		t.Fatal(err)
	}
	stores := map[string]*holdlock.Client{"plain keys": openOn(t, client("127.0.0.1:1"), &Options{PlainKeys: true}), "a quorum": quorum}
	for name, c := range stores {
		_, err := jobs.Do(t.Context(), newLock(t, c, "job", time.Second), nil, nil)
		if !errors.Is(err, holdlock.ErrUnsupported) || !strings.Contains(err.Error(), "keeps no records") || !strings.Contains(err.Error(), "such as") {
			t.Errorf("on %s: %v", name, err)
		}
	}
	_ = quorum.Shutdown(t.Context())
	for _, c := range nodes {
		_ = c.Close()
	}
	// The control: the others keep them.
	if d, err = NewDriver(client("127.0.0.1:1"), nil); err != nil {
		t.Fatal(err)
	}
	if _, ok := driver.As[driver.Journal](d); !ok || d.Traits().Records != driver.WhileItLasts {
		t.Errorf("one server: a Journal: %v, records %v", ok, d.Traits().Records)
	}
}

// done runs a job whose work counts.
func done(t *testing.T, l *holdlock.Lock, effects *atomic.Int64) (jobs.Outcome, error) {
	return doneAs(t, l, nil, effects)
}

func doneAs(t *testing.T, l *holdlock.Lock, opts *jobs.Options, effects *atomic.Int64) (jobs.Outcome, error) {
	return jobs.Do(t.Context(), l, opts, func(context.Context, *jobs.Run) ([]byte, error) {
		effects.Add(1)
		return []byte("receipt"), nil
	})
}

// A job is two requests on the wire, a duplicate of it one.
func TestAJobIsTwoRequests(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	loadScripts(t, r, openDriver(t, r.Addr, nil))
	var requests, scripts atomic.Int64
	p := testenv.StartProxy(t, r.Addr, func(up bool, data []byte) testenv.Verdict {
		if up {
			requests.Add(int64(bytes.Count(data, []byte("\r\n$7\r\nevalsha\r\n"))))
			scripts.Add(1)
		}
		return testenv.Pass
	})
	c := open(t, p.Addr, nil)
	l := newLock(t, c, "job", time.Minute)
	var effects atomic.Int64
	if _, err := done(t, l.For("warm"), &effects); err != nil { // dials
		t.Fatal(err)
	}
	const n = 40
	for deliveries, want := range []int64{2 * n, n} {
		before, calls := requests.Load(), scripts.Load()
		for i := range n {
			out, err := done(t, l.For(fmt.Sprint(i)), &effects)
			if err != nil || string(out.Result) != "receipt" || (out.Status == jobs.Ran) != (deliveries == 0) || !out.Recorded {
				t.Fatalf("delivery %d of job %d: %+v, %v", deliveries+1, i, out, err)
			}
		}
		if got, sent := requests.Load()-before, scripts.Load()-calls; got != want || sent != want {
			t.Errorf("delivery %d of %d jobs took %d scripts in %d writes, want %d of both", deliveries+1, n, got, sent, want)
		}
	}
	if got := effects.Load(); got != n+1 {
		t.Errorf("%d effects of %d jobs", got, n+1)
	}
}

// The server does what it is asked and the answer never arrives.
func TestRepliesAboutJobsLost(t *testing.T) {
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
	job := func(key string) (driver.Job, bool) {
		t.Helper()
		j, ok, err := near.Job(context.Background(), key)
		if err != nil {
			t.Fatal(err)
		}
		return j, ok
	}
	t.Run("claim", func(t *testing.T) {
		var effects atomic.Int64
		var told events
		l := newLock(t, open(t, p.Addr, &Options{Client: holdlock.ClientOptions{Observer: &told}}), "claimed", time.Hour)
		hit := lose(near.scripts.claim, "claimed")
		out, err := done(t, l, &effects)
		if !errors.Is(err, holdlock.ErrUnknown) || !hit() || out.Status != jobs.NotRun || effects.Load() != 0 {
			t.Fatalf("Do: %+v, %v (reply lost: %v), %d effects; want ErrUnknown and none", out, err, hit(), effects.Load())
		}
		testenv.Eventually(t, "the claim is withdrawn", func() bool { _, ok := job("claimed"); return !ok })
		out, err = done(t, l, &effects)
		if err != nil || out.Runs != 1 || effects.Load() != 1 || len(told.of(holdlock.Rerun)) != 0 {
			t.Errorf("the next delivery: %+v, %v, %d effects", out, err, effects.Load())
		}
	})
	t.Run("claim, and the store is away afterwards", func(t *testing.T) { // for longer than the term lasts
		var effects atomic.Int64
		var told events
		l := newLock(t, open(t, p.Addr, &Options{Client: holdlock.ClientOptions{Observer: &told}}), "away", time.Second)
		var claimed, away atomic.Bool
		claim := calls(near.scripts.claim, "away")
		p.SetScript(func(up bool, data []byte) testenv.Verdict {
			switch {
			case away.Load():
				return testenv.Cut
			case up && claim(data) && claimed.CompareAndSwap(false, true):
				away.Store(true)
				return testenv.LoseReply
			}
			return testenv.Pass
		})
		out, err := doneAs(t, l, &jobs.Options{OnLapse: jobs.Hold}, &effects)
		if err == nil || !claimed.Load() || out.Status != jobs.NotRun || effects.Load() != 0 {
			t.Fatalf("Do: %+v, %v (claimed: %v), %d effects; want an error and none", out, err, claimed.Load(), effects.Load())
		}
		testenv.Eventually(t, "it lapses", func() bool { j, _ := job("away"); return j.State == driver.JobLapsed })
		away.Store(false)
		testenv.Eventually(t, "the claim is withdrawn", func() bool { _, ok := job("away"); return !ok })
		out, err = doneAs(t, l, &jobs.Options{OnLapse: jobs.Hold}, &effects)
		if err != nil || out.Runs != 1 || effects.Load() != 1 || len(told.of(holdlock.Rerun)) != 0 {
			t.Errorf("the next delivery: %+v, %v, %d effects", out, err, effects.Load())
		}
		n := 0
		for _, e := range told.of(holdlock.Unreleased) {
			if !e.Abandoned { // that its term was left to end comes besides
				n++
			}
		}
		if n != 1 {
			t.Errorf("it was told %d times that the claim is still to be withdrawn, want once", n)
		}
	})
	t.Run("without an undo it is a lapse", func(t *testing.T) { // or the test above tells nothing
		d := openDriver(t, p.Addr, nil)
		hit := lose(near.scripts.claim, "ghost")
		if _, err := d.Acquire(t.Context(), claiming("ghost", time.Second, driver.Rerun)); err == nil || !hit() {
			t.Fatalf("Acquire: %v", err)
		}
		testenv.Eventually(t, "it lapses", func() bool { j, _ := job("ghost"); return j.State == driver.JobLapsed })
	})
	t.Run("the same claim finds itself", func(t *testing.T) {
		d := openDriver(t, p.Addr, nil)
		req := claiming("same", time.Hour, driver.Hold)
		lose(near.scripts.claim, "same")
		if _, err := d.Acquire(t.Context(), req); err == nil {
			t.Fatal("the reply was not lost")
		}
		if g := grant(t, d, req); g.Job.Runs != 1 || g.Job.Lapses != 0 {
			t.Errorf("it is granted as %+v", g.Job)
		}
	})
	t.Run("record", func(t *testing.T) {
		var effects atomic.Int64
		l := newLock(t, open(t, p.Addr, nil), "recorded", time.Hour)
		hit := lose(near.scripts.finish, "recorded")
		out, err := done(t, l, &effects)
		if err != nil || out.Recorded || out.Status != jobs.Ran || !hit() {
			t.Fatalf("Do: %+v, %v (reply lost: %v); want no error and not Recorded", out, err, hit())
		}
		if out, err = done(t, l, &effects); err != nil || out.Status != jobs.AlreadyDone || effects.Load() != 1 {
			t.Errorf("the duplicate: %+v, %v, %d effects", out, err, effects.Load())
		}
	})
	t.Run("record that did not arrive", func(t *testing.T) {
		var effects atomic.Int64
		l := newLock(t, open(t, p.Addr, nil), "resent", time.Hour)
		rule, hit := once(testenv.Cut, calls(near.scripts.finish, "resent"))
		p.SetScript(rule)
		out, err := done(t, l, &effects)
		if err != nil || out.Recorded || !hit() {
			t.Fatalf("Do: %+v, %v", out, err)
		}
		testenv.Eventually(t, "it is sent again", func() bool { j, _ := job("resent"); return j.State == driver.JobDone })
		if out, err = done(t, l, &effects); err != nil || out.Status != jobs.AlreadyDone || effects.Load() != 1 {
			t.Errorf("the duplicate: %+v, %v, %d effects", out, err, effects.Load())
		}
	})
	t.Run("settle", func(t *testing.T) {
		d := openDriver(t, p.Addr, nil)
		req := claiming("settled", time.Hour, driver.Rerun)
		g := grant(t, near, req)
		finished(t, near, req.Ref, driver.Record{State: driver.JobSuspended, Why: driver.ByError})
		hit := lose(near.scripts.settle, "settled")
		settle := &driver.SettleRequest{Key: "settled", Token: g.Token, By: "test", Done: true, Keep: time.Hour}
		if err := d.Settle(t.Context(), settle); err == nil || errors.Is(err, driver.ErrNotApplied) || errors.Is(err, driver.ErrJobChanged) || !hit() {
			t.Errorf("Settle: %v, want a failure of the store that is not certain", err)
		}
		if j, _ := job("settled"); j.State != driver.JobDone {
			t.Errorf("the job is %+v", j)
		}
	})
	t.Run("naive", func(t *testing.T) { // as it is done wrong: SETNX before the work, DEL if it fails
		n := naiveOnce{client(p.Addr)}
		defer n.client.Close()
		rule, hit := once(testenv.LoseReply, func(data []byte) bool { return bytes.Contains(data, []byte("naive-job")) })
		p.SetScript(rule)
		ran := 0
		work := func() error { ran++; return nil }
		if err := n.do(t.Context(), "naive-job", work); err == nil || !hit() {
			t.Fatalf("the reply was not lost: %v", err)
		}
		if err := n.do(t.Context(), "naive-job", work); err != nil || ran != 0 {
			t.Errorf("a naive job whose first reply was lost ran %d times (%v), want it lost: the test tells nothing", ran, err)
		}
	})
}

// naiveOnce is the run-once of three lines: it takes "somebody has begun" for "it is done", so what dies on the way is lost.
type naiveOnce struct{ client redis.UniversalClient }

func (n naiveOnce) do(ctx context.Context, key string, work func() error) error {
	first, err := n.client.SetNX(ctx, key, "begun", time.Hour).Result()
	if err != nil || !first {
		return err
	}
	if err := work(); err != nil {
		return errors.Join(err, n.client.Del(ctx, key).Err())
	}
	return nil
}

// A claim that arrives behind its own undo begins no run, and suspends nothing.
func TestUndoOvertakesItsClaim(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	p := testenv.StartProxy(t, r.Addr, nil)
	near, far := openDriver(t, r.Addr, nil), openDriver(t, p.Addr, nil)
	loadScripts(t, r, near)
	for _, undo := range []bool{true, false} { // without an undo it does both, or the test tells nothing
		key := fmt.Sprint("late-", undo)
		lapsed := claiming(key, time.Minute, driver.Rerun)
		grant(t, near, lapsed)
		if err := near.Release(t.Context(), &driver.ReleaseRequest{Ref: lapsed.Ref}); err != nil {
			t.Fatal(err)
		}
		rule, hit := once(testenv.Hold, calls(near.scripts.claim, key))
		p.SetScript(rule)
		req := claiming(key, time.Hour, driver.Hold)
		ctx, cancel := context.WithCancel(t.Context())
		answered := make(chan error)
		go func() { _, err := far.Acquire(ctx, req); answered <- err }()
		testenv.Eventually(t, "the request is on its way", hit)
		cancel()
		if err := <-answered; !errors.Is(err, context.Canceled) {
			t.Fatalf("Acquire: %v", err)
		}
		if undo {
			_ = near.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref, Undo: true})
		}
		before := r.Do(t, "INFO", "commandstats")
		p.Free()
		testenv.Eventually(t, "the late claim has arrived", func() bool {
			return count(r.Do(t, "INFO", "commandstats"), "cmdstat_eval") > count(before, "cmdstat_eval")
		})
		want := driver.JobSuspended
		if undo {
			want = driver.JobLapsed
		}
		if j, ok, err := near.Job(t.Context(), key); err != nil || !ok || j.State != want {
			t.Errorf("with an undo %v the job is %+v, %v, %v; want %v", undo, j, ok, err, want)
		}
	}
}

// A run whose term ends while somebody asks for it is either running or lapsed: a job to be held never runs again.
func TestClaimsAtTheEndOfATerm(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	const rounds, ttl = 30, 100 * time.Millisecond
	granted := func(ask func(d *Driver, key string) bool) (n int64) {
		var again atomic.Int64
		var all sync.WaitGroup
		for range 4 {
			d := openDriver(t, r.Addr, &Options{Namespace: "end" + randomHex(4)})
			all.Go(func() {
				for i := range rounds {
					key := fmt.Sprint(i)
					grant(t, d, claiming(key, ttl, driver.Hold))
					end := time.Now().Add(ttl)
					time.Sleep(time.Until(end) - rand.N(5*time.Millisecond))
					for time.Now().Before(end.Add(5 * time.Millisecond)) {
						if ask(d, key) {
							again.Add(1)
							break
						}
					}
				}
			})
		}
		all.Wait()
		return again.Load()
	}
	if n := granted(func(d *Driver, key string) bool {
		_, err := d.Acquire(context.Background(), claiming(key, time.Minute, driver.Hold))
		return err == nil
	}); n != 0 {
		t.Errorf("%d jobs to be held ran again", n)
	}
	// The control: who looks at the record and takes the key in two steps judges them by two readings of the clock.
	naive := func(d *Driver, key string) bool {
		j, ok, err := d.Job(context.Background(), key)
		if err != nil || !ok || j.State != driver.JobRunning {
			return false
		}
		time.Sleep(time.Millisecond)
		_, err = d.Acquire(context.Background(), request(key, time.Minute))
		return err == nil
	}
	for range 10 { // whether a look falls just before the end is up to the machine
		if granted(naive) > 0 {
			return
		}
	}
	t.Error("in two steps no job ran again, so the test tells nothing")
}

// A server that comes back with its data knows what is done. One that has lost it does not, and says so in its Traits.
func TestJobsAfterARestart(t *testing.T) {
	t.Parallel()
	for _, keep := range []bool{true, false} {
		args := []string{}
		if keep {
			args = []string{"--appendonly", "yes", "--appendfsync", "always"}
		}
		r := testenv.StartRedis(t, args...)
		d := openDriver(t, r.Addr, nil)
		afterLoss(t, keep, func() *Driver { return d }, func() { r.Restart(t) })
	}
}

// The same of a replica that takes over, with the records or without.
func TestJobsAfterAFailover(t *testing.T) {
	t.Parallel()
	for _, replicated := range []bool{true, false} {
		t.Run(fmt.Sprint("replicated=", replicated), func(t *testing.T) {
			t.Parallel()
			s := testenv.StartSentinel(t)
			rdb := sentinelClient(s)
			d, err := NewDriver(rdb, nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _, _ = d.Close(), rdb.Close() })
			if !replicated {
				s.Isolate(t)
			}
			afterLoss(t, replicated, func() *Driver { return d }, func() {
				if replicated {
					testenv.Eventually(t, "the replica has the records", func() bool {
						return s.Servers[1].Do(t, "EXISTS", d.slotKey("held")+undoneEnd, d.slotKey("done")+doneEnd, d.slotKey("runs")+undoneEnd) == "3"
					})
				}
				s.Failover(t)
			})
		})
	}
}

// afterLoss checks what is known of jobs after something has happened to the server.
func afterLoss(t *testing.T, kept bool, d func() *Driver, happens func()) {
	t.Helper()
	ended := claiming("done", time.Minute, driver.Rerun)
	running := claiming("runs", time.Hour, driver.Rerun)
	before := grant(t, d(), running)
	grant(t, d(), ended)
	finished(t, d(), ended.Ref, driver.Record{State: driver.JobDone})
	held := claiming("held", time.Minute, driver.Hold)
	grant(t, d(), held)
	finished(t, d(), held.Ref, driver.Record{State: driver.JobSuspended, Why: driver.ByError})
	happens()
	var known bool
	testenv.Eventually(t, "the server answers", func() (ok bool) {
		var err error
		_, known, err = d().Job(t.Context(), "done")
		return err == nil
	})
	if known != kept {
		t.Errorf("its data kept: %v, a record of what was done: %v", kept, known)
	}
	err := d().Release(t.Context(), &driver.ReleaseRequest{Ref: running.Ref, Record: &driver.Record{State: driver.JobDone, Keep: time.Hour}})
	if kept {
		if err != nil {
			t.Errorf("a run that was under way cannot be recorded: %v", err)
		}
		asked(t, d(), claiming("done", time.Minute, driver.Rerun), driver.ErrDone)
		asked(t, d(), claiming("held", time.Minute, driver.Rerun), driver.ErrSuspended)
		asked(t, d(), claiming("runs", time.Minute, driver.Rerun), driver.ErrDone)
		return
	}
	// What was forgotten runs again. Its tokens are larger, so a fence stops whoever was at work.
	if !errors.Is(err, driver.ErrGone) {
		t.Errorf("the record of a run that was forgotten: %v, want ErrGone", err)
	}
	for _, key := range []string{"done", "held", "runs"} {
		if g := grant(t, d(), claiming(key, time.Minute, driver.Rerun)); g.Job.Runs != 1 || g.Token <= before.Token {
			t.Errorf("%s: after everything was forgotten the grant is %+v of %+v, before %+v", key, g, g.Job, before)
		}
	}
}

// While a slot moves, its lock and its record can be on two nodes. Then nobody can say, and nothing runs.
func TestClaimsWhileASlotMoves(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartCluster(t)
	rdb := clusterClient(nodes)
	defer rdb.Close()
	d, err := NewDriver(rdb, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	req := claiming("k", time.Minute, driver.Rerun)
	grant(t, d, req)
	finished(t, d, req.Ref, driver.Record{State: driver.JobDone})
	slot := nodes[0].Do(t, "CLUSTER", "KEYSLOT", d.slotKey("k"))
	var from, to *testenv.Redis
	for i, r := range nodes {
		if r.Do(t, "CLUSTER", "COUNTKEYSINSLOT", slot) != "0" {
			from, to = r, nodes[(i+1)%3]
		}
	}
	knows := func(when string, certain bool) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		g, err := d.Acquire(ctx, claiming("k", time.Minute, driver.Rerun))
		if err == nil {
			t.Fatalf("%s: a done job runs again: %+v", when, g.Job)
		}
		if certain != errors.Is(err, driver.ErrDone) || errors.As(err, new(*driver.HeldError)) {
			t.Errorf("%s: %v", when, err)
		}
	}
	knows("before the move", true)
	fromID, toID := from.Do(t, "CLUSTER", "MYID"), to.Do(t, "CLUSTER", "MYID")
	to.Do(t, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID)
	from.Do(t, "CLUSTER", "SETSLOT", slot, "MIGRATING", toID)
	knows("before anything has moved", false)
	for _, key := range []string{d.slotKey("k"), d.slotKey("k") + doneEnd} {
		from.Do(t, "MIGRATE", "127.0.0.1", fmt.Sprint(to.Port()), key, "0", "5000")
		knows(key+" has moved", false)
	}
	for _, r := range []*testenv.Redis{to, from, nodes[0], nodes[1], nodes[2]} {
		r.Do(t, "CLUSTER", "SETSLOT", slot, "NODE", toID)
	}
	knows("after the move", true)
}

// A server that cannot do its work is a failure of the store, and never an answer about a job. A full one begins no run, and
// takes the records of those that are under way.
func TestJobsOnServersThatFail(t *testing.T) {
	t.Parallel()
	for _, word := range []string{"READONLY", "OOM", "NOREPLICAS"} {
		r := testenv.StartRedis(t)
		d := openDriver(t, r.Addr, nil)
		running := claiming("running", time.Minute, driver.Rerun)
		grant(t, d, running)
		undone := claiming("undone", time.Minute, driver.Rerun)
		grant(t, d, undone)
		switch word {
		case "READONLY":
			r.Do(t, "REPLICAOF", "127.0.0.1", "1")
		case "OOM":
			r.Do(t, "CONFIG", "SET", "maxmemory", "1")
		case "NOREPLICAS":
			r.Do(t, "CONFIG", "SET", "min-replicas-to-write", "1")
		}
		_, err := d.Acquire(t.Context(), claiming("free", time.Minute, driver.Rerun))
		var server redis.Error
		if !errors.As(err, &server) || !strings.Contains(err.Error(), word) || !errors.Is(err, driver.ErrNotApplied) ||
			errors.As(err, new(*driver.JobError)) || errors.As(err, new(*driver.HeldError)) {
			t.Errorf("%s: Acquire with Once: %v", word, err)
		}
		result := bytes.Repeat([]byte("x"), driver.MaxResult)
		err = d.Release(t.Context(), &driver.ReleaseRequest{
			Ref: running.Ref, Record: &driver.Record{State: driver.JobDone, Result: result, Keep: time.Hour},
		})
		undo := d.Release(t.Context(), &driver.ReleaseRequest{Ref: undone.Ref, Undo: true})
		if word == "OOM" {
			if err != nil || undo != nil {
				t.Errorf("on a full server: Release with a Record: %v, Undo: %v", err, undo)
			}
			asked(t, d, claiming("running", time.Minute, driver.Rerun), driver.ErrDone)
			continue
		}
		for _, err := range []error{err, undo} {
			if err == nil || errors.Is(err, driver.ErrGone) || errors.Is(err, driver.ErrUnclaimed) {
				t.Errorf("%s: the end of a run: %v, want the server's word", word, err)
			}
		}
		if _, ok, err := d.Job(t.Context(), "free"); ok || err != nil {
			t.Errorf("%s: a run that was refused has left a record: %v, %v", word, ok, err)
		}
	}
}

// With Replicas a record counts when they have it. Sent again it is confirmed.
func TestRecordsAreConfirmed(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 0} { // without Replicas nothing is noticed, or the test tells nothing
		primary, replica := startPair(t)
		d := openDriver(t, primary.Addr, &Options{Replicas: n})
		req := claiming("k", time.Hour, driver.Rerun)
		testenv.Eventually(t, "a claim is confirmed", func() bool {
			_, err := d.Acquire(t.Context(), req)
			if err != nil {
				req = claiming("k", time.Hour, driver.Rerun)
			}
			return err == nil
		})
		replica.Freeze(t)
		end := &driver.ReleaseRequest{Ref: req.Ref, Record: &driver.Record{State: driver.JobDone, Keep: time.Hour}}
		err := d.Release(t.Context(), end)
		if n == 0 {
			if err != nil {
				t.Errorf("without Replicas: %v", err)
			}
			continue
		}
		if err == nil || errors.Is(err, driver.ErrNotApplied) || !strings.Contains(err.Error(), "0 of 1 replicas") {
			t.Errorf("a record without a confirmation: %v", err)
		}
		if err := openDriver(t, primary.Addr, &Options{Replicas: n}).Release(t.Context(), end); err == nil {
			t.Error("sent again on another connection, it is said to be confirmed by a replica that stands still")
		}
		late := claiming("late", time.Hour, driver.Rerun)
		if _, err := d.Acquire(t.Context(), late); !errors.Is(err, driver.ErrNotApplied) {
			t.Errorf("a claim without a confirmation: %v", err)
		}
		if j, ok, err := d.Job(t.Context(), "late"); ok || err != nil {
			t.Errorf("a claim that was taken back has left %+v, %v", j, err)
		}
		replica.Thaw(t)
		testenv.Eventually(t, "sent again it is confirmed", func() bool { return d.Release(t.Context(), end) == nil })
		if replica.Do(t, "EXISTS", d.slotKey("k")+doneEnd) != "1" {
			t.Error("it is said to be confirmed, and the replica does not have it")
		}
	}
}
