package quorumhold

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// askedTwice has a term granted by three servers of five while another holds the other two, and has it asked for again when these are free
// and answer first: by the same driver or by another one, which knows nothing of it. It returns the tokens that were told.
func askedTwice(t *testing.T, knows bool) (first, second driver.Token) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(5, 0)
		var slow time.Duration // of the first two servers
		open := func() (*Driver, []driver.Driver) {
			nodes := l.nodes(func() time.Duration { return 0 })
			for _, n := range nodes[:2] {
				n.(*conn).latency = func() time.Duration { return slow }
			}
			d, err := NewDriver(nodes, nil)
			if err != nil {
				t.Fatal(err)
			}
			return d, nodes
		}
		d, nodes := open()
		defer d.Close()
		other, _ := open()
		defer other.Close()

		rival := request("k", 10*time.Second)
		for _, n := range nodes[3:] {
			if _, err := n.Acquire(t.Context(), rival); err != nil {
				t.Fatal(err)
			}
		}
		req := request("k", 10*time.Second)
		g, err := d.Acquire(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(rtt) // all have answered
		for _, n := range nodes[3:] {
			if err := n.Release(t.Context(), &driver.ReleaseRequest{Ref: rival.Ref}); err != nil {
				t.Fatal(err)
			}
		}
		slow = 10 * rtt
		time.Sleep(rtt)
		if knows {
			other = d
		}
		again, err := other.Acquire(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		first, second = g.Token, again.Token
	})
	return first, second
}

func TestAskedAgainTheTokenStays(t *testing.T) {
	if first, second := askedTwice(t, true); second != first {
		t.Errorf("a term has token %d, and %d when it was asked for again", first, second)
	}
	// The two servers that are free give a token of their own to who does not know the first. It is larger, so fences go on working.
	if first, second := askedTwice(t, false); second <= first {
		t.Errorf("the control: a term has token %d, and %d when another asks for it", first, second)
	}
}

// askedInVain has a term that stands asked for again, which is interrupted. It returns what that said, what a renewal of the term says then,
// and at how many servers it stands after its release.
func askedInVain(t *testing.T, off broken) (left int, again, renewal error) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(5, 0)
		d := l.client(t, off)
		defer d.Close()
		l.servers[4].down(true) // one has missed the term, and gets it now
		req := request("k", 3*time.Second)
		if _, err := d.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		l.servers[4].down(false)
		time.Sleep(10 * rtt)
		for _, s := range l.servers[:3] {
			s.hang()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		_, again = d.Acquire(ctx, req)
		for _, s := range l.servers[:3] {
			s.wake()
		}
		time.Sleep(500 * time.Millisecond)
		_, renewal = d.Renew(t.Context(), &driver.RenewRequest{Ref: req.Ref, TTL: req.TTL})
		rival := l.open(t, nil, func() time.Duration { return 0 })
		defer rival.Close()
		if _, err := rival.Acquire(t.Context(), request("k", time.Second)); err == nil && renewal == nil {
			t.Error("somebody else was granted a lock that is held")
		}
		if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil && renewal == nil {
			t.Error(err)
		}
		time.Sleep(10 * rtt)
		left = l.taken("k")
	})
	return left, again, renewal
}

func TestAskedAgainInVainTheTermStays(t *testing.T) {
	left, again, renewal := askedInVain(t, broken{})
	if again == nil || errors.Is(again, driver.ErrNotApplied) || renewal != nil || left != 0 {
		t.Errorf("asked again: %v; renewed: %v; left at %d servers", again, renewal, left)
	}
	if _, again, renewal := askedInVain(t, broken{again: true}); !errors.Is(again, driver.ErrNotApplied) || !errors.Is(renewal, driver.ErrGone) {
		t.Errorf("the control: asked again: %v; renewed: %v", again, renewal)
	}
}
