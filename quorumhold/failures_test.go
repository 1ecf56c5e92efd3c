package quorumhold

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

const rtt = 2 * time.Millisecond

func (l *lab) client(t *testing.T, off broken) *Driver {
	d := l.open(t, nil, steady(rand.New(rand.NewPCG(1, 2)), rtt/2))
	d.broken = off
	return d
}

// oneByOne restarts all servers empty, one after the other, under one lease, and says how often the lease was lost and a
// rival got the lock while its holder believed in it.
func oneByOne(t *testing.T, abstain time.Duration, off broken) (lost, doubled int) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(5, abstain)
		c, err := holdlock.NewClient(l.client(t, off), nil)
		if err != nil {
			t.Fatal(err)
		}
		lock, err := c.NewLock("k", &holdlock.LockOptions{TTL: 10 * time.Second, MaxHold: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		lease, err := lock.TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		rival := l.client(t, broken{})
		ctx, cancel := context.WithCancel(t.Context())
		var asking sync.WaitGroup
		asking.Go(func() {
			for ctx.Err() == nil {
				if _, err := rival.Acquire(ctx, request("k", 10*time.Second)); err == nil && lease.Check(0) == nil {
					doubled++
					return
				}
				time.Sleep(100 * time.Millisecond)
			}
		})
		for _, s := range l.servers {
			s.forget()
			time.Sleep(45 * time.Second) // it abstains for 30.6 s, and is given the term at the next renewal
		}
		if lease.Err() != nil {
			lost = 1
		}
		cancel()
		asking.Wait()
		rival.Close()
		_ = lease.Release(t.Context())
		if err := c.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	})
	return lost, doubled
}

func TestRestartedOneByOne(t *testing.T) {
	abstain := defaultMaxTTL + defaultMaxTTL/50
	if lost, doubled := oneByOne(t, abstain, broken{}); lost != 0 || doubled != 0 {
		t.Errorf("the lease was lost %d times and doubled %d times", lost, doubled)
	}
	if lost, _ := oneByOne(t, abstain, broken{seeds: true}); lost == 0 {
		t.Error("the control: a lease that is given to no node again should be lost with the third")
	}
}

// Grants that come late are kept: so a lease that was won at three nodes stands at five.
func TestLateGrantsAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(5, 0)
		d := l.client(t, broken{})
		defer d.Close()
		for _, s := range l.servers[:2] {
			s.hang()
		}
		req := request("k", 10*time.Second)
		start := time.Now()
		if _, err := d.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 2*rtt {
			t.Errorf("two hung nodes of five held it up for %v", took)
		}
		if n := l.taken("k"); n != 3 {
			t.Fatalf("held at %d nodes, want 3", n)
		}
		for _, s := range l.servers[:2] {
			s.wake()
		}
		time.Sleep(10 * rtt)
		if n := l.taken("k"); n != 5 {
			t.Errorf("held at %d nodes after the hung ones woke, want 5", n)
		}
		if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * rtt)
		if n := l.taken("k"); n != 0 {
			t.Errorf("held at %d nodes after the release", n)
		}
	})
}

// An attempt that fails leaves nothing, also at nodes that answer late.
func TestFailedAttemptsLeaveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(5, 0)
		d := l.client(t, broken{})
		defer d.Close()
		for _, s := range l.servers[:3] {
			s.hang()
		}
		req := request("k", 10*time.Second)
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := d.Acquire(ctx, req)
		if err == nil || !strings.Contains(err.Error(), "unreachable (2 of 5 answered, 3 needed)") || !errors.Is(err, driver.ErrNotApplied) {
			t.Fatalf("three hung nodes of five: %v", err)
		}
		if took := time.Since(start); took > defaultNodeTimeout+lookGrace+10*rtt {
			t.Errorf("it took %v to find out", took)
		}
		if _, err := d.Acquire(ctx, req); err == nil || !strings.Contains(err.Error(), "new nonce") {
			t.Errorf("the same nonce again, before the nodes have given it back: %v", err)
		}
		for _, s := range l.servers[:3] {
			s.wake()
		}
		time.Sleep(2 * time.Second) // the nodes are suspect, and asked again by the next call
		other := request("other", time.Second)
		for range 3 {
			if _, err := d.Acquire(t.Context(), other); err == nil {
				break
			}
			time.Sleep(suspectLast)
		}
		time.Sleep(10 * rtt)
		if n := l.taken("k"); n != 0 {
			t.Errorf("held at %d nodes", n)
		}
	})
}

// hungUnderLoad lets one of five servers hang for a minute under full load. It returns how many requests waited for it, and
// the slowest acquire.
func hungUnderLoad(t *testing.T, off broken) (waiting int, slowest time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(5, 0)
		d := l.client(t, off)
		defer d.Close()
		victim := l.servers[2]
		victim.hang()
		var (
			mu    sync.Mutex
			group sync.WaitGroup
			end   = time.Now().Add(time.Minute)
		)
		for i := range 8 {
			group.Go(func() {
				for n := 0; time.Now().Before(end); n++ {
					req := request(fmt.Sprintf("job/%d/%d", i, n), 10*time.Second)
					start := time.Now()
					if _, err := d.Acquire(t.Context(), req); err != nil {
						t.Error(err)
						return
					}
					took := time.Since(start)
					if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
						t.Error(err)
						return
					}
					mu.Lock()
					slowest = max(slowest, took)
					mu.Unlock()
					time.Sleep(100 * time.Millisecond)
				}
			})
		}
		group.Wait()
		victim.mu.Lock()
		waiting = victim.waiting
		victim.mu.Unlock()
		d.nodes[2].mu.Lock()
		if n := len(d.nodes[2].flying); n > maxInFlight && !off.doubt {
			t.Errorf("%d calls are without an answer", n)
		}
		d.nodes[2].mu.Unlock()
		victim.wake()
		for range 3 {
			time.Sleep(suspectLast)
			req := request("wakes", time.Second)
			if _, err := d.Acquire(t.Context(), req); err == nil {
				_ = d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref})
			}
		}
		time.Sleep(11 * time.Second)
		left := 0
		for i := range 8 {
			for n := range 600 {
				left += l.taken(fmt.Sprintf("job/%d/%d", i, n))
			}
		}
		if left > 0 {
			t.Errorf("%d keys are held after the server woke", left)
		}
	})
	return waiting, slowest
}

// A server that hangs costs nothing, neither while it hangs nor when it wakes.
func TestHungUnderLoad(t *testing.T) {
	waiting, slowest := hungUnderLoad(t, broken{})
	t.Logf("%d requests waited for a server that hung for a minute; the slowest acquire took %v", waiting, slowest)
	if most := 3*maxInFlight + 2*int(time.Minute/suspectLast); waiting > most {
		t.Errorf("%d requests waited for it, want at most %d", waiting, most)
	}
	if slowest > 3*rtt {
		t.Errorf("it held up an acquire for %v", slowest)
	}
	if waiting, _ := hungUnderLoad(t, broken{doubt: true}); waiting < 2000 {
		t.Errorf("the control: only %d requests waited for a server that is asked all the time", waiting)
	}
}

// atOnce takes and gives back a thousand keys at once on nodes that are well, and returns how many calls failed.
func atOnce(t *testing.T, off broken) (failed int) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(5, 0)
		d := l.client(t, off)
		defer d.Close()
		const callers = 1000
		var mu sync.Mutex
		var group sync.WaitGroup
		for i := range callers {
			group.Go(func() {
				req := request(fmt.Sprint("job/", i), 10*time.Second)
				_, err := d.Acquire(t.Context(), req)
				if err == nil {
					err = d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref})
				}
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					failed++
				}
			})
		}
		group.Wait()
		for i, n := range d.nodes {
			n.mu.Lock()
			if n.suspect && off == (broken{}) {
				t.Errorf("node %d is suspect: %v", i, n.last)
			}
			n.mu.Unlock()
		}
	})
	return failed
}

// However many call at once, nodes that are well are asked, each call in its turn.
func TestManyAtOnce(t *testing.T) {
	if n := atOnce(t, broken{}); n > 0 {
		t.Errorf("%d of 1000 failed", n)
	}
	if n := atOnce(t, broken{busy: true}); n < 500 {
		t.Errorf("the control: only %d of 1000 failed", n)
	}
}

// A node that says that what stands at a key is damaged has answered: other keys are well there.
func TestADamagedKeyMakesNoNodeSuspect(t *testing.T) {
	d := newLab(3, 0).client(t, broken{})
	defer d.Close()
	for err, suspect := range map[error]bool{fmt.Errorf("k: %w", driver.ErrDamaged): false, errors.New("cut"): true} {
		n := &node{}
		for range suspectAfter {
			f, refused := d.admit(n, time.Now(), nil)
			if refused != nil {
				t.Fatal(refused)
			}
			d.answered(n, f, err)
		}
		if n.suspect != suspect {
			t.Errorf("after %v: suspect = %v", err, n.suspect)
		}
	}
}

// A caller who waits goes on waiting while nodes abstain; one that does not is told who abstains and for how long.
func TestAbstainingIsWaitedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(3, 10*time.Second)
		c, err := holdlock.NewClient(l.client(t, broken{}), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Shutdown(t.Context())
		lock, err := c.NewLock("k", &holdlock.LockOptions{TTL: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range l.servers {
			s.forget()
		}
		if _, err := lock.TryAcquire(t.Context()); !errors.Is(err, driver.ErrAbstains) || !errors.Is(err, holdlock.ErrUnreachable) ||
			!strings.Contains(err.Error(), "3 abstain") {
			t.Errorf("one attempt: %v", err)
		}
		start := time.Now()
		lease, err := lock.Acquire(t.Context())
		if err != nil {
			t.Fatalf("waiting: %v", err)
		}
		if took := time.Since(start); took < 9*time.Second || took > 12*time.Second {
			t.Errorf("it waited for %v", took)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}
		// The wait ends with its context all the same.
		for _, s := range l.servers {
			s.forget()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := lock.Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, driver.ErrAbstains) {
			t.Errorf("a wait that ends: %v", err)
		}
	})
}

func TestOptions(t *testing.T) {
	for n, ok := range map[int]bool{0: false, 1: false, 2: false, 3: true, 4: false, 5: true} {
		for _, weak := range []bool{false, true} {
			d, err := NewDriver(newLab(n, 0).nodes(nil), &Options{AllowWeak: weak})
			if want := ok || weak && n > 0; (err == nil) != want {
				t.Errorf("%d nodes, AllowWeak %v: %v", n, weak, err)
			}
			if err == nil {
				d.Close()
			}
		}
	}
	l := newLab(3, 0)
	nodes := l.nodes(nil)
	if _, err := NewDriver([]driver.Driver{nodes[0], nodes[1], nodes[0]}, nil); err == nil || !strings.Contains(err.Error(), "nodes 1 and 3") {
		t.Errorf("a node twice: %v", err)
	}
	d, err := NewDriver(nodes, &Options{MaxTTL: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := d.Acquire(t.Context(), request("k", 2*time.Second)); err == nil || !strings.Contains(err.Error(), "MaxTTL") {
		t.Errorf("a TTL above MaxTTL: %v", err)
	}
}

// The error of a quorum is one line, which says each reason once and counts all that have answered, also where the verdict
// was clear before.
func TestErrorsAreShortAndComplete(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(5, 0)
		d := l.client(t, broken{})
		defer d.Close()
		for _, s := range l.servers[:3] {
			s.down(true) // its answers come half a round trip sooner
		}
		_, listed := d.List(t.Context(), "", "", 10)
		_, acquired := d.Acquire(t.Context(), request("k", 10*time.Second))
		for what, err := range map[string]error{"list": listed, "acquire": acquired} {
			var e *NoMajorityError
			if !errors.As(err, &e) || e.Answered != 2 {
				t.Fatalf("%s: %v, want 2 of 5", what, err)
			}
			text := err.Error()
			if strings.Count(text, "connection refused") != 1 || strings.Contains(text, "\n") || !strings.Contains(text, "; nodes server ") {
				t.Errorf("%s: %s", what, text)
			}
		}
	})
}

func TestReasonOfANode(t *testing.T) {
	const prefix = `redishold: acquire "k": asking who it is: `
	dial := &net.OpError{Op: "dial", Net: "tcp", Addr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}, Err: errors.New("connect: refused")}
	for want, err := range map[string]error{
		"asking who it is: connect: refused": fmt.Errorf(prefix+"%w (%w)", dial, driver.ErrNotApplied),
		"asking who it is: it is new":        errors.New(prefix + "it is new"),
		"who knows":                          errors.New("who knows"),
	} {
		if got := (NodeFailure{"n", err}).reason("acquire", "k"); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Attempts that fail at a minority of nodes, each at another one, do not cover up that the term before them lapsed.
func TestALapseIsToldThroughFailedAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(5, 0)
		d := l.client(t, broken{})
		defer d.Close()
		lapsed, err := d.Acquire(t.Context(), request("k", time.Second))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		for _, up := range [][]int{{0, 1}, {2, 3}, {3, 4}} {
			for i, s := range l.servers {
				s.down(!slices.Contains(up, i))
			}
			other := l.client(t, broken{}) // each of another process
			if _, err := other.Acquire(t.Context(), request("k", time.Second)); err == nil {
				t.Fatal("two nodes of five are no majority")
			}
			time.Sleep(100 * rtt)
			other.Close()
		}
		for _, s := range l.servers {
			s.down(false)
		}
		last := l.client(t, broken{})
		defer last.Close()
		g, err := last.Acquire(t.Context(), request("k", time.Second))
		if err != nil || g.Previous != driver.Lapsed || g.Prior == nil || g.Prior.Token != lapsed.Token {
			t.Errorf("%+v, %v; want to hear of the lapse of token %d", g, err, lapsed.Token)
		}
	})
}

// A key that cannot be read on one node is that node's failure; on so many that the others are no majority, it is the answer.
func TestDamagedOnAMajority(t *testing.T) {
	damaged, down := fmt.Errorf("slot: %w", driver.ErrDamaged), errors.New("down")
	newer := fmt.Errorf("%w: %w", damaged, driver.ErrNewer)
	for _, c := range []struct {
		nodes          []error
		certain        bool
		damaged, newer bool
	}{
		{[]error{damaged, down, down}, true, false, false},
		{[]error{damaged, damaged, damaged}, true, true, false},
		{[]error{damaged, damaged, damaged}, false, false, false}, // a grant may stand somewhere
		{[]error{damaged, damaged, newer}, true, true, true},
	} {
		e := &NoMajorityError{Of: 5, Need: 3, certain: c.certain}
		for _, err := range c.nodes {
			e.Nodes = append(e.Nodes, NodeFailure{"n", err})
		}
		if got := errors.Is(e, driver.ErrDamaged); got != c.damaged {
			t.Errorf("%+v: ErrDamaged is %v", c, got)
		}
		if got := errors.Is(e, driver.ErrNewer); got != c.newer {
			t.Errorf("%+v: ErrNewer is %v", c, got)
		}
		if got := errors.Is(e, driver.ErrNotApplied); got != c.certain {
			t.Errorf("%+v: ErrNotApplied is %v", c, got)
		}
	}
}
