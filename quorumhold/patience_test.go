package quorumhold

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// hurried is a way to a server that is given up when a lock's TTL is over.
type hurried struct{ *conn }

func (h hurried) Acquire(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	ctx, cancel := context.WithTimeout(ctx, req.TTL)
	defer cancel()
	return h.conn.Acquire(ctx, req)
}

// besides holds one lock for long while another with a short TTL is taken again and again, by two servers of five that are further away
// than that TTL. It returns at how many servers the first stands in the end.
func besides(t *testing.T, gaveUp bool) (stands int) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(5, 0)
		nodes := l.nodes(nil)
		for i, n := range nodes {
			there := rtt / 2
			if i < 2 {
				there = 75 * time.Millisecond
			}
			n.(*conn).latency = func() time.Duration { return there }
			if gaveUp {
				nodes[i] = hurried{n.(*conn)}
			}
		}
		d, err := NewDriver(nodes, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		long := request("long", 6*time.Second)
		if _, err := d.Acquire(t.Context(), long); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
			if _, err := d.Renew(t.Context(), &driver.RenewRequest{Ref: long.Ref, TTL: long.TTL}); err != nil {
				t.Fatal(err)
			}
			for next := time.Now().Add(2 * time.Second); time.Now().Before(next); {
				short := request("short", 100*time.Millisecond)
				if _, err := d.Acquire(t.Context(), short); err == nil {
					_ = d.Release(t.Context(), &driver.ReleaseRequest{Ref: short.Ref}) // it may have run out
				}
				time.Sleep(rtt)
			}
		}
		time.Sleep(time.Second)
		stands = l.taken("long")
	})
	return stands
}

// That a node does not answer within the TTL of one lock says nothing about it: it answers others'.
func TestAShortTTLMakesNoNodeSuspect(t *testing.T) {
	if n := besides(t, false); n != 5 {
		t.Errorf("the other lock stands at %d servers, want 5", n)
	}
	if n := besides(t, true); n > 4 {
		t.Errorf("the control, where calls are given up with the TTL: it stands at %d servers", n)
	}
}

// wakeUp ends what some servers do, and waits for what was sent to them.
func (l *lab) wakeUp(n int) {
	for _, s := range l.servers[:n] {
		s.wake()
	}
	time.Sleep(10 * rtt)
}

// An attempt ends all the same when a term that it could win would have run out.
func TestAnAttemptEndsWithItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(3, 0)
		d := l.client(t, broken{})
		defer d.Close()
		for _, s := range l.servers[:2] {
			s.hang()
		}
		defer l.wakeUp(2)
		began := time.Now()
		_, err := d.Acquire(t.Context(), request("k", 100*time.Millisecond))
		if took := time.Since(began); took != 100*time.Millisecond || err == nil || !strings.Contains(err.Error(), "unreachable (1 of 3 answered, 2 needed)") {
			t.Errorf("after %v: %v", took, err)
		}
	})
}

// distant is a way to a server where the first call takes four times as long as the others, and so does the next after one that has failed.
type distant struct {
	*conn
	near atomic.Bool
}

func (d *distant) Acquire(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	const way = 300 * time.Millisecond
	trips := 1
	if !d.near.Load() {
		trips = 4
	}
	select {
	case <-time.After(time.Duration(trips) * way):
	case <-ctx.Done():
		return driver.Grant{}, ctx.Err()
	}
	g, err := d.conn.Acquire(ctx, req)
	d.near.Store(err == nil)
	return g, err
}

// farAway returns what the first acquire over distant servers says, and after how many more they work again that were all lost once.
func farAway(t *testing.T, off broken) (again int, first error) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(3, 0)
		nodes := l.nodes(func() time.Duration { return 0 })
		far := make([]*distant, len(nodes))
		for i, n := range nodes {
			far[i] = &distant{conn: n.(*conn)}
			nodes[i] = far[i]
		}
		d, err := NewDriver(nodes, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		d.broken = off
		_, first = d.Acquire(t.Context(), request("k", 10*time.Second))
		time.Sleep(10 * time.Second)
		for _, f := range far {
			f.near.Store(false)
		}
		for again = 1; again < 50; again++ {
			if _, err := d.Acquire(t.Context(), request("k"+fmt.Sprint(again), 10*time.Second)); err == nil {
				return
			}
			time.Sleep(time.Second)
		}
	})
	return again, first
}

// To connect to a server takes several times as long as to call it.
func TestServersFarAwayAreGreeted(t *testing.T) {
	if again, err := farAway(t, broken{}); err != nil || again > 15 {
		t.Errorf("the first call: %v; the servers were back with call %d", err, again)
	}
	if again, err := farAway(t, broken{greeting: true}); err == nil || again < 50 {
		t.Errorf("the control, where all calls get a NodeTimeout: %v; the servers were back with call %d", err, again)
	}
}

// A doctor says so when NodeTimeout is too short for the way.
func TestTheDoctorKnowsTheWay(t *testing.T) {
	for way, bad := range map[time.Duration]bool{200 * time.Millisecond: false, 300 * time.Millisecond: true} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(3, 0)
			d := l.open(t, nil, func() time.Duration { return way / 2 })
			defer d.Close()
			found := ""
			for _, f := range d.Diagnose(t.Context(), driver.DoctorOptions{}) {
				if f.Check == "round trip" && f.Verdict == driver.Caution {
					found = f.Setting
				}
			}
			if want := "a NodeTimeout of 2s or more (holdlock --timeout 10s), or nearer nodes"; (found == want) != bad || !bad && found != "" {
				t.Errorf("%v away: %q", way, found)
			}
		})
	}
}

// Nodes that have not answered are named by what was waiting for them.
func TestErrorsNameTheNodesThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(3, 0)
		d := l.client(t, broken{})
		defer d.Close()
		req := request("k", 10*time.Second)
		if _, err := d.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * rtt)
		for _, s := range l.servers[:2] {
			s.hang()
		}
		defer l.wakeUp(2)
		in := func(f func(ctx context.Context) error) error {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			return f(ctx)
		}
		for what, err := range map[string]error{
			"renew": in(func(ctx context.Context) error {
				_, err := d.Renew(ctx, &driver.RenewRequest{Ref: req.Ref, TTL: req.TTL})
				return err
			}),
			"list": in(func(ctx context.Context) error {
				_, err := d.List(ctx, "", "", 10)
				return err
			}),
			"release": in(func(ctx context.Context) error {
				return d.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref})
			}),
		} {
			if err == nil {
				t.Errorf("%s: no error", what)
				continue
			}
			text, names := err.Error(), fmt.Sprintf("; nodes %s, %s: no answer after 100ms", d.nodes[0].name, d.nodes[1].name)
			if !strings.Contains(text, "unreachable (1 of 3 answered, 2 needed)") || !strings.HasSuffix(text, names) || strings.Contains(text, d.nodes[2].name) {
				t.Errorf("%s: %s", what, text)
			}
		}
	})
}

// What a node has said about one lock does not name it to those who ask for another.
func TestNoErrorNamesAnotherLock(t *testing.T) {
	eof := errors.New("EOF")
	for text, want := range map[string]string{
		`redishold: release "short/3": %w`:     "EOF",
		`redishold: release "a \"b\": c": %w`:  "EOF",
		`redishold: closed during the call %w`: "redishold: closed during the call EOF",
		`redishold: release "never ends %w`:    `redishold: release "never ends EOF`,
	} {
		err := elsewhere{fmt.Errorf(text, eof)}
		if got := err.Error(); got != want || !errors.Is(err, eof) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		l := newLab(3, 0)
		nodes := l.nodes(func() time.Duration { return 0 })
		for i, n := range nodes {
			nodes[i] = failing{n.(*conn)}
		}
		d, err := NewDriver(nodes, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		told := ""
		for i := 0; i < 100 && !strings.Contains(told, errNotAsked.Error()); i++ {
			_, err = d.Acquire(t.Context(), request(fmt.Sprintf("lock %03d", i), time.Second))
			told = strings.Replace(err.Error(), fmt.Sprintf("lock %03d", i), "mine", 1)
		}
		if !strings.Contains(told, errNotAsked.Error()+": EOF") || strings.Contains(told, "lock ") {
			t.Error(told)
		}
	})
}

// failing is a way to a server on which connections break.
type failing struct{ *conn }

func (failing) Acquire(_ context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	return driver.Grant{}, fmt.Errorf("lab: acquire %q: EOF", req.Ref.Key)
}

func (failing) Release(_ context.Context, req *driver.ReleaseRequest) error {
	return fmt.Errorf("lab: release %q: EOF", req.Ref.Key)
}

// unequal is a way to a server which begins each term with a token of its own, and does not raise it.
type unequal struct {
	*conn
	ahead driver.Token
}

func (u unequal) Acquire(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	g, err := u.conn.Acquire(ctx, req)
	g.Token += u.ahead
	return g, err
}

func (u unequal) Renew(context.Context, *driver.RenewRequest) (driver.Grant, error) {
	return driver.Grant{}, fmt.Errorf("%w", driver.ErrTokenPassed)
}

// An attempt that all nodes have granted, and that has failed, says why.
func TestGrantedWithoutAToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(3, 0)
		nodes := l.nodes(func() time.Duration { return rtt / 2 })
		for i, n := range nodes {
			nodes[i] = unequal{n.(*conn), driver.Token(i)}
		}
		d, err := NewDriver(nodes, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		_, err = d.Acquire(t.Context(), request("k", 10*time.Second))
		if err == nil || !errors.Is(err, driver.ErrNotApplied) || strings.Contains(err.Error(), "no majority (") ||
			!strings.Contains(err.Error(), `acquire "k": granted by 3 of 3, of which no majority agreed on a token within `) {
			t.Error(err)
		}
	})
}
