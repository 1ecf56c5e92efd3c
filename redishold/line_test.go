//go:build unix

package redishold

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// helperTurns takes turns at a lock until there have been enough, and writes each one down where all can see it.
func helperTurns(addr string) {
	ctx := context.Background()
	rdb := client(addr)
	c, err := Open(rdb, nil)
	if err != nil {
		panic(err)
	}
	l, err := c.NewLock("turns", &holdlock.LockOptions{Wait: holdlock.Forever})
	if err != nil {
		panic(err)
	}
	fmt.Println("ready")
	for rdb.Exists(ctx, "go").Val() == 0 {
		time.Sleep(time.Millisecond)
	}
	for more := true; more; {
		err := l.Do(ctx, func(ctx context.Context, lease *holdlock.Lease) error {
			if rdb.Incr(ctx, "inside").Val() != 1 {
				rdb.RPush(ctx, "overlaps", os.Getpid())
			}
			n := rdb.RPush(ctx, "turns", fmt.Sprint(os.Getpid(), " ", lease.Token())).Val()
			more = n < turns
			return rdb.Decr(ctx, "inside").Err()
		})
		if err != nil {
			panic(err)
		}
	}
	_ = c.Shutdown(ctx)
}

const turns = 2000

// Eight processes take turns at one lock: everybody gets the same number, nobody is in it with another, and a turn costs two
// requests.
func TestLineIsFairAmongProcesses(t *testing.T) {
	t.Parallel()
	// A process that the machine does not run for a while asks later and misses turns. An order that is not that of asking shows
	// in every try.
	for try := 1; ; try++ {
		least, most := turnsOfProcesses(t)
		if float64(most) <= 1.05*float64(least) {
			return
		}
		if try == 8 {
			t.Fatalf("%d to %d turns a process, also in the last of %d tries", least, most, try)
		}
	}
}

func turnsOfProcesses(t *testing.T) (least, most int) {
	t.Helper()
	const n = 8
	r := testenv.StartRedis(t)
	var all []*helper
	for range n {
		all = append(all, startHelperAt(t, "turns", r.Addr))
	}
	for _, h := range all {
		h.line(t)
	}
	before := requests(t, r)
	start := time.Now()
	r.Do(t, "SET", "go", "1", "PX", "600000")
	for _, h := range all {
		if err := h.cmd.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	took, sent := time.Since(start), requests(t, r)-before
	count := map[string]int{}
	last := uint64(0)
	total := 0
	for line := range strings.Lines(r.Do(t, "LRANGE", "turns", "0", "-1")) {
		who, token, _ := strings.Cut(strings.TrimSpace(line), " ")
		count[who]++
		total++
		k, err := strconv.ParseUint(token, 10, 64)
		if err != nil || k <= last {
			t.Fatalf("token %q after %d", token, last)
		}
		last = k
	}
	least = total
	for _, c := range count {
		most, least = max(most, c), min(least, c)
	}
	t.Logf("%d turns of %d processes in %v: %d to %d each, %.3f; %.2f requests a turn",
		total, len(count), took, least, most, float64(most)/float64(least), float64(sent)/float64(total))
	if len(count) != n {
		t.Errorf("turns per process: %v", count)
	}
	if got := r.Do(t, "LLEN", "overlaps"); got != "0" {
		t.Errorf("%s turns were taken while another one lasted", got)
	}
	if perTurn := float64(sent) / float64(total); perTurn > 2.2 {
		t.Errorf("%.2f requests a turn, want two and the heartbeats", perTurn)
	}
	return least, most
}

// requests counts the calls of scripts that clients have sent.
func requests(t *testing.T, r *testenv.Redis) (n int) {
	t.Helper()
	for line := range strings.Lines(r.Do(t, "INFO", "commandstats")) {
		if name, rest, _ := strings.Cut(line, ":calls="); name == "cmdstat_evalsha" || name == "cmdstat_eval" {
			calls, _, _ := strings.Cut(rest, ",")
			k, err := strconv.Atoi(calls)
			if err != nil {
				t.Fatal(err)
			}
			n += k
		}
	}
	return n
}

// helperWait waits for a lock again and again. It says when it has it, and, once told to go on, whether it still believes so.
func helperWait(addr string) {
	ctx := context.Background()
	c, err := Open(client(addr), nil)
	if err != nil {
		panic(err)
	}
	l, err := c.NewLock("k", nil)
	if err != nil {
		panic(err)
	}
	for {
		lease, err := l.Acquire(ctx)
		if err != nil {
			panic(err)
		}
		fmt.Println("granted", lease.Token())
		for range 200 { // a look every 10 ms, also right after a pause
			if err := lease.Check(0); err != nil {
				fmt.Println("lost", lease.Token())
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		_ = lease.Release(ctx)
	}
}

// Whatever happens to the one who is next, at whatever point, the one behind it gets on when the claim has ended, and who was
// paused past its grant does not believe in it.
func TestLineOutlivesWaiters(t *testing.T) {
	t.Parallel()
	type step func(t *testing.T, r *testenv.Redis, h *helper, holder *holdlock.Lease)
	kill := func(s syscall.Signal) step {
		return func(t *testing.T, _ *testenv.Redis, h *helper, _ *holdlock.Lease) { _ = h.cmd.Process.Signal(s) }
	}
	release := func(t *testing.T, _ *testenv.Redis, _ *helper, holder *holdlock.Lease) {
		if err := holder.Release(context.Background()); err != nil {
			t.Error(err)
		}
	}
	granted := func(t *testing.T, _ *testenv.Redis, h *helper, _ *holdlock.Lease) {
		if line := h.line(t); !strings.HasPrefix(line, "granted") {
			t.Errorf("the helper said %q", line)
		}
	}
	for name, steps := range map[string][]step{
		"killed in line, just before":      {kill(syscall.SIGKILL), release},
		"killed as it is granted":          {release, kill(syscall.SIGKILL)},
		"killed before it has confirmed":   {release, granted, kill(syscall.SIGKILL)},
		"paused in line, just before":      {kill(syscall.SIGSTOP), release},
		"paused as it is granted":          {release, kill(syscall.SIGSTOP)},
		"paused before it has confirmed":   {release, granted, kill(syscall.SIGSTOP)},
		"the control: nothing befalls it":  {release},
		"the control: the holder is quick": {release, granted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := testenv.StartRedis(t)
			d := openDriver(t, r.Addr, nil)
			c := open(t, r.Addr, nil)
			l := newLock(t, c, "k", 30*time.Second)
			holder := mustAcquire(t, l)
			h := startHelperAt(t, "wait", r.Addr)
			inLine := func(n string) {
				t.Helper()
				testenv.Eventually(t, n+" stand in line", func() bool { return r.Do(t, "LLEN", d.lineKey("k")) == n })
			}
			inLine("1")
			next := make(chan *holdlock.Lease, 1)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			go func() {
				lease, err := l.Acquire(ctx)
				if err != nil && ctx.Err() == nil {
					t.Error(err)
				}
				next <- lease
			}()
			inLine("2")
			testenv.Eventually(t, "both listen", func() bool {
				return strings.Count(r.Do(t, "PUBSUB", "CHANNELS", "*"), d.channel()) == 2
			})
			start := time.Now()
			for _, s := range steps {
				s(t, r, h, holder)
			}
			if term, taken := present(t, d, "k"); taken && term.Remaining > driver.Provisional && strings.Contains(name, "before it has confirmed") {
				t.Log("the machine is so busy that it has confirmed before it was stopped: it is a dead holder, and costs its TTL")
				return
			}
			var lease *holdlock.Lease
			select {
			case lease = <-next:
			case <-time.After(30 * time.Second): // the TTL
				t.Fatal("the next in line was not granted")
			}
			took := time.Since(start)
			t.Logf("the next in line was granted %v after the release", took.Round(time.Millisecond))
			if took > 10*time.Second { // a claim, and a heartbeat, and a busy machine
				t.Errorf("granted %v after the release, want a claim of %v", took, driver.Provisional)
			}
			if !strings.HasPrefix(name, "paused") {
				_ = lease.Release(context.Background())
				return
			}
			// What was paused goes on. It must not believe that it holds as long as the other one does.
			_ = h.cmd.Process.Signal(syscall.SIGCONT)
			said := make(chan string)
			go func() {
				defer close(said)
				for h.lines.Scan() {
					said <- h.lines.Text()
				}
			}()
			for holds := time.After(2 * time.Second); ; {
				select {
				case line := <-said:
					if strings.HasPrefix(line, "granted") && line > fmt.Sprint("granted ", lease.Token()) {
						t.Errorf("it says %q while another has token %d", line, lease.Token())
					}
					continue
				case <-holds:
				}
				break
			}
			if err := lease.Check(0); err != nil {
				t.Errorf("the other one: %v", err)
			}
			if err := lease.Release(context.Background()); err != nil {
				t.Error(err)
			}
			for deadline := time.After(30 * time.Second); ; {
				select {
				case line := <-said: // it stands in line under a new nonce
					if strings.HasPrefix(line, "granted") && line > fmt.Sprint("granted ", lease.Token()) {
						_ = h.cmd.Process.Kill()
						for range said {
						}
						return
					}
				case <-deadline:
					t.Fatal("who was paused does not get on again")
				}
			}
		})
	}
}

// A wait that is cancelled in the moment of its grant, or about it, gives the key to the next.
func TestLineOutlivesCancelledWaits(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	a, b := open(t, r.Addr, nil), open(t, r.Addr, nil)
	first, second := newLock(t, a, "k", time.Minute), newLock(t, b, "k", time.Minute)
	var worst time.Duration
	won := 0
	for i := range 60 {
		holder := mustAcquire(t, second)
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error)
		go func() {
			lease, err := first.Acquire(ctx)
			if err == nil {
				err = lease.Release(context.Background())
				won++
			} else if !errors.Is(err, context.Canceled) {
				t.Errorf("the wait that was cancelled: %v", err)
				err = nil
			} else {
				err = nil
			}
			gone <- err
		}()
		d := openDriver(t, r.Addr, nil)
		testenv.Eventually(t, "one stands in line", func() bool { return r.Do(t, "LLEN", d.lineKey("k")) == "1" })
		time.AfterFunc(time.Duration(i)*20*time.Microsecond, cancel)
		start := time.Now()
		if err := holder.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		lease, err := second.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		worst = max(worst, time.Since(start))
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-gone; err != nil {
			t.Error(err)
		}
		cancel()
	}
	t.Logf("granted all the same: %d of 60; the next one waited %v at most", won, worst)
	if worst > 10*time.Second {
		t.Errorf("the next one was granted after %v", worst)
	}
}

// The connection for messages is cut: who waits is granted all the same, after a heartbeat at most.
func TestLineWithoutMessages(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	near, far := newLock(t, open(t, r.Addr, nil), "k", time.Minute), newLock(t, open(t, r.Addr, nil), "k", time.Minute)
	d := openDriver(t, r.Addr, nil)
	for range 5 {
		holder := mustAcquire(t, near)
		got := make(chan error, 1)
		go func() {
			lease, err := far.Acquire(t.Context())
			if err == nil {
				err = lease.Release(t.Context())
			}
			got <- err
		}()
		testenv.Eventually(t, "it stands in line and listens", func() bool {
			return r.Do(t, "LLEN", d.lineKey("k")) == "1" && r.Do(t, "PUBSUB", "CHANNELS", "*") != ""
		})
		if n := r.Do(t, "CLIENT", "KILL", "TYPE", "pubsub"); n != "1" {
			t.Errorf("%s connections for messages", n)
		}
		start := time.Now()
		if err := holder.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-got:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("the waiter sleeps although the key is free")
		}
		t.Logf("granted %v after the release", time.Since(start).Round(time.Millisecond))
		testenv.Eventually(t, "the key is free", func() bool { _, taken := present(t, d, "k"); return !taken })
	}
}

// A connection for messages that has died without a word is noticed, and made anew.
func TestSilentConnectionIsReplaced(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d := openDriver(t, r.Addr, nil)
	heard := make(chan driver.Push, 100)
	if err := d.Listen(t.Context(), func(p driver.Push) { heard <- p }); err != nil {
		t.Fatal(err)
	}
	sub := func() any {
		d.hub.mu.Lock()
		defer d.hub.mu.Unlock()
		return d.hub.sub
	}
	first := sub()
	r.Freeze(t)
	testenv.Eventually(t, "the connection is replaced", func() bool { return sub() != first })
	r.Thaw(t)
	for lost := range heard { // the new one is said to have missed something
		if lost.Nonce == "" {
			break
		}
	}
	holder, next := request("k", time.Minute), request("k", time.Minute)
	grant(t, d, holder)
	var held *driver.HeldError
	if _, err := d.Enqueue(t.Context(), next); !errors.As(err, &held) {
		t.Fatal(err)
	}
	if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: holder.Ref}); err != nil {
		t.Fatal(err)
	}
	for p := range heard {
		if p.Nonce == next.Ref.Nonce {
			return
		}
	}
}

// Two hundred who wait in one process cost one request a second.
func TestIdleWaitersAreCheap(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	c := open(t, r.Addr, nil)
	d := openDriver(t, r.Addr, nil)
	holder := mustAcquire(t, newLock(t, open(t, r.Addr, nil), "k", time.Hour))
	l := newLock(t, c, "k", time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 200 {
		wg.Go(func() {
			if _, err := l.Acquire(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("a waiter: %v", err)
			}
		})
	}
	testenv.Eventually(t, "all stand in line", func() bool { return r.Do(t, "LLEN", d.lineKey("k")) == "200" })
	rate := testenv.AtRest(2, 8, func() int64 { return int64(requests(t, r)) })
	cancel()
	wg.Wait()
	t.Logf("200 idle waiters: %.2f requests a second", rate)
	if rate > 2 {
		t.Errorf("%.2f requests a second", rate)
	}
	testenv.Eventually(t, "all have left the line", func() bool { return r.Do(t, "EXISTS", d.lineKey("k")) == "0" })
	if err := holder.Release(t.Context()); err != nil {
		t.Error(err)
	}
}
