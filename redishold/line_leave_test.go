//go:build unix

package redishold

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// inLine makes places behind a holder, and returns them.
func inLine(t *testing.T, d *Driver, key string, n int) (places []*driver.AcquireRequest) {
	t.Helper()
	for range n {
		req := request(key, time.Minute)
		var held *driver.HeldError
		if _, err := d.Enqueue(t.Context(), req); !errors.As(err, &held) || held.Place == 0 {
			t.Fatalf("Enqueue: %v, want a place", err)
		}
		places = append(places, req)
	}
	return places
}

func leavings(reqs []*driver.AcquireRequest, answered bool) (out []driver.Leaving) {
	for _, req := range reqs {
		out = append(out, driver.Leaving{Request: req, Answered: answered})
	}
	return out
}

// A line of thousands is left by a call for some hundreds each, of which none goes through the line in the script. Those who stay keep
// their order, and the last that were unclear are refused when they arrive.
func TestThousandsLeaveALine(t *testing.T) {
	t.Parallel()
	const n = 2000
	r := testenv.StartRedis(t)
	d, other := openDriver(t, r.Addr, nil), openDriver(t, r.Addr, nil)
	holder := request("k", time.Minute)
	grant(t, d, holder)
	first := inLine(t, other, "k", 2)
	gone := inLine(t, d, "k", n)
	last := inLine(t, other, "k", 2)
	scripts := func() int { return count(r.Do(t, "INFO", "commandstats"), "cmdstat_eval") } // and evalsha
	before := scripts()
	if err := d.Leave(t.Context(), "k", leavings(gone, false)); err != nil {
		t.Fatal(err)
	}
	if calls := scripts() - before; calls > n/leaveSize+2 { // one may be sent again, by its source
		t.Errorf("%d calls for %d places", calls, n)
	}
	if n := r.Do(t, "LLEN", d.lineKey("k")); n != "4" {
		t.Fatalf("%s places are left, want 4", n)
	}
	if slot := len(r.Do(t, "GET", d.slotKey("k"))); slot > 4000 {
		t.Errorf("the slot has %d bytes", slot)
	}
	var held *driver.HeldError
	for _, req := range gone[n-60:] {
		if _, err := d.Enqueue(t.Context(), req); errors.As(err, &held) || !errors.Is(err, driver.ErrNotApplied) {
			t.Fatalf("one that was given up arrives: %v, want a refusal", err)
		}
	}
	if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: holder.Ref}); err != nil {
		t.Fatal(err)
	}
	for _, req := range slices.Concat(first, last) {
		if s := other.Attend(t.Context(), []*driver.AcquireRequest{req})[0]; !s.Granted {
			t.Fatalf("who stays is told %+v", s)
		}
		if err := other.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
			t.Fatal(err)
		}
	}
}

// Requests for places that arrive after they were given back, more of them than the slot can remember, get places in line, in which their
// process lives on. Each is given back when it is its turn: a claim that ran out would be told as a lapse.
func TestLatePlacesCostNoClaims(t *testing.T) {
	t.Parallel()
	const n, remembered = 150, 64
	r := testenv.StartRedis(t)
	p := testenv.StartProxy(t, r.Addr, nil)
	near := openDriver(t, r.Addr, nil)
	var told events
	options := func() *Options { return &Options{Client: holdlock.ClientOptions{Observer: &told}} }
	away, others := open(t, p.Addr, options()), open(t, r.Addr, options())
	lock := func(c *holdlock.Client, name string) *holdlock.Lock { return newLock(t, c, name, time.Minute) }
	take := func(name string) *holdlock.Lease {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		lease, err := lock(others, name).Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return lease
	}
	release := func(lease *holdlock.Lease) {
		t.Helper()
		if err := lease.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	holder, kept := take("late"), take("kept")
	patient, stop := context.WithCancel(t.Context())
	var waits sync.WaitGroup
	waits.Go(func() { _, _ = lock(away, "kept").Acquire(patient) })
	testenv.Eventually(t, "the process waits for something else", func() bool { return r.Do(t, "LLEN", near.lineKey("kept")) == "1" })

	takes := takes(near, "late")
	p.SetScript(func(up bool, data []byte) testenv.Verdict {
		if up && takes(data) {
			return testenv.Hold
		}
		return testenv.Pass
	})
	var given sync.WaitGroup
	for range n {
		given.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := lock(away, "late").Acquire(ctx); err == nil {
				t.Error("a wait whose request was held up is granted")
			}
		})
	}
	given.Wait()
	testenv.Eventually(t, "they are given back", func() bool { return len(r.Do(t, "GET", near.slotKey("late"))) > 48*remembered })
	p.SetScript(nil)
	p.Free()
	testenv.Eventually(t, "the late ones stand in line", func() bool {
		places, _ := strconv.Atoi(r.Do(t, "LLEN", near.lineKey("late")))
		return places > 0
	})
	release(holder)
	release(take("late"))
	release(kept)
	stop()
	waits.Wait()
	if lapsed := told.of(holdlock.Lapsed); len(lapsed) != 0 {
		t.Errorf("%d claims ran out, as of %+v", len(lapsed), lapsed[0].Prior)
	}
}

// A slot that is gone, as by an operator's hand or an eviction, keeps nobody in line who gives up, and the next one gets the key. The
// twin looks at the slot first.
func TestPlacesAreLeftWithoutASlot(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	ways := map[string]func(d *Driver, gone []*driver.AcquireRequest) error{
		"Leave": func(d *Driver, gone []*driver.AcquireRequest) error {
			return d.Leave(t.Context(), gone[0].Ref.Key, leavings(gone, true))
		},
		"Leave, unclear": func(d *Driver, gone []*driver.AcquireRequest) error {
			return d.Leave(t.Context(), gone[0].Ref.Key, leavings(gone, false))
		},
		"Release": func(d *Driver, gone []*driver.AcquireRequest) (err error) {
			for _, req := range gone {
				err = errors.Join(err, d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref}))
			}
			return err
		},
	}
	for how, leave := range ways {
		for _, twin := range []bool{false, true} {
			d, other := openDriver(t, r.Addr, nil), openDriver(t, r.Addr, nil)
			key := fmt.Sprint(how, twin)
			if twin {
				early := func(s *script) *script {
					return newScript(strings.ReplaceAll(s.source, "local s = load(1)\n", "local s = load(1)\nif not s then return {'g'} end\n"))
				}
				d.scripts.giveUp, d.scripts.release = early(d.scripts.giveUp), early(d.scripts.release)
				d.scripts.turn = nil
			}
			grant(t, d, request(key, time.Minute))
			gone := inLine(t, d, key, 5)
			stays := inLine(t, other, key, 1)[0]
			r.Do(t, "DEL", d.slotKey(key))
			err := leave(d, gone)
			s := other.Attend(t.Context(), []*driver.AcquireRequest{stays})[0]
			if (err == nil && s.Granted) == twin {
				t.Errorf("%s (the twin: %v): %v; then who stays is told %+v", how, twin, err, s)
			}
		}
	}
}

// What is damaged is left alone, and as soon as it has been deleted the places go.
func TestPlacesOfADamagedSlotAreLeftLater(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d := openDriver(t, r.Addr, nil)
	grant(t, d, request("k", time.Minute))
	gone := inLine(t, d, "k", 3)
	for _, value := range []string{"garbage", "2 of a newer version"} {
		r.Do(t, "SET", d.slotKey("k"), value, "PX", "60000")
		if err := d.Leave(t.Context(), "k", leavings(gone, true)); !errors.Is(err, driver.ErrDamaged) {
			t.Errorf("Leave: %v, want ErrDamaged", err)
		}
		if got := r.Do(t, "GET", d.slotKey("k")); got != value {
			t.Errorf("the slot holds %q", got)
		}
	}
	r.Do(t, "DEL", d.slotKey("k"))
	if err := d.Leave(t.Context(), "k", leavings(gone, true)); err != nil {
		t.Error(err)
	}
	if n := r.Do(t, "EXISTS", d.lineKey("k")); n != "0" {
		t.Error("somebody stands in line")
	}
	r.Do(t, "SET", d.lineKey("other"), "another program's", "PX", "60000")
	if err := d.Leave(t.Context(), "other", leavings([]*driver.AcquireRequest{request("other", time.Minute)}, true)); err != nil {
		t.Errorf("Leave, with something else in the place of the line: %v", err)
	}
}

// Without a right that giving up needs nobody takes a place. With all of them is the control.
func TestWithoutTheRightToLeave(t *testing.T) {
	t.Parallel()
	r, d, c := restricted(t, documentedACL(t), nil)
	grant(t, d, request("k", time.Minute))
	inLine(t, d, "k", 1)
	for _, right := range []string{"lrem", "lrange"} {
		r.Do(t, "ACL", "SETUSER", "locks", "-"+right)
		_, err := d.Enqueue(t.Context(), request("k", time.Minute))
		if errors.As(err, new(*driver.HeldError)) || !errors.Is(err, driver.ErrDenied) || !errors.Is(err, driver.ErrNotApplied) ||
			!strings.Contains(err.Error(), strings.ToUpper(right)) || !strings.Contains(err.Error(), "see Rights") {
			t.Errorf("without %s: %v, want the right that is missing", right, err)
		}
		if _, err := newLock(t, c, "k", time.Minute).Acquire(t.Context()); !errors.Is(err, driver.ErrDenied) {
			t.Errorf("Acquire without %s: %v, want a failure at once", right, err)
		}
		if n := r.Do(t, "LLEN", d.lineKey("k")); n != "1" {
			t.Errorf("without %s: %s places in line", right, n)
		}
		r.Do(t, "ACL", "SETUSER", "locks", "+"+right)
	}
	inLine(t, d, "k", 1)
}

// loseAnswer makes a client lose the answer to the next acquire.
type loseAnswer struct{ armed atomic.Bool }

func (*loseAnswer) DialHook(next redis.DialHook) redis.DialHook { return next }

func (*loseAnswer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (l *loseAnswer) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		args := cmd.Args()
		if last, ok := args[len(args)-1].(string); ok && err == nil && strings.HasPrefix(last, "A") && l.armed.CompareAndSwap(true, false) {
			err = io.ErrUnexpectedEOF
			cmd.SetErr(err)
		}
		return err
	}
}

// A node of a Cluster hangs, and waits for its locks are given up. What unclear acquires have won on another node is given back
// meanwhile. The control is what they have won: their terms last an hour.
func TestUndoWhileAnotherNodeHangs(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartCluster(t)
	for _, r := range nodes {
		r.Do(t, "CONFIG", "SET", "cluster-node-timeout", "600000")
	}
	hook := &loseAnswer{}
	rdb := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: testenv.Addrs(nodes), ContextTimeoutEnabled: true, MaxRetries: -1, DisableIdentity: true, MaintNotificationsConfig: noMaintenance,
	})
	rdb.AddHook(hook)
	c := openOn(t, rdb, nil)
	near := openOn(t, clusterClient(nodes), nil)
	keysOf := func(first, last int) (keys []string) {
		for i := 0; len(keys) < 20; i++ {
			key := fmt.Sprint("k", i)
			if slot, err := strconv.Atoi(nodes[0].Do(t, "CLUSTER", "KEYSLOT", "holdlock:{:"+key+"}")); err != nil {
				t.Fatal(err)
			} else if slot >= first && slot < last {
				keys = append(keys, key)
			}
		}
		return keys
	}
	hanging, working := keysOf(0, 16384/3), keysOf(16384*2/3+1, 16384)
	for _, key := range hanging {
		mustAcquire(t, newLock(t, near, key, time.Hour))
	}
	// The client library asks some node about commands first, and everybody waits for that.
	if err := mustAcquire(t, newLock(t, c, working[0], time.Hour)).Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var waits sync.WaitGroup
	for _, key := range hanging {
		waits.Go(func() {
			for ctx.Err() == nil {
				short, end := context.WithTimeout(ctx, 200*time.Millisecond)
				_, _ = newLock(t, c, key, time.Hour).Acquire(short)
				end()
			}
		})
	}
	defer waits.Wait()
	defer cancel()
	nodes[0].Freeze(t)
	defer nodes[0].Thaw(t)
	time.Sleep(time.Second) // no condition: it is the fault
	for _, key := range working {
		hook.armed.Store(true)
		if _, err := newLock(t, c, key, time.Hour).TryAcquire(t.Context()); !errors.Is(err, holdlock.ErrUnknown) {
			t.Fatalf("without the answer: %v, want ErrUnknown", err)
		}
	}
	for _, key := range working {
		testenv.Eventually(t, "what nobody has is given back: "+key, func() bool {
			lease, err := newLock(t, near, key, time.Hour).TryAcquire(t.Context())
			if err == nil {
				err = lease.Release(t.Context())
			}
			return err == nil
		})
	}
}
