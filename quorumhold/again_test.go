package quorumhold

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// askedTwice has a term granted by three servers of five while another holds the other two, and asks for it again when these are free and
// answer first. It returns the tokens that were told.
func askedTwice(t *testing.T, by func(l *lab, first *Driver) *Driver) (first, second driver.Token) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(5, 0)
		latency := make([]time.Duration, 5)
		nodes := make([]driver.Driver, 5)
		for i, n := range l.nodes(nil) {
			n.(*conn).latency = func() time.Duration { return latency[i] }
			nodes[i] = n
		}
		d, err := NewDriver(nodes, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
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
		for _, n := range nodes[3:] {
			if err := n.Release(t.Context(), &driver.ReleaseRequest{Ref: rival.Ref}); err != nil {
				t.Fatal(err)
			}
		}
		latency[0], latency[1] = 10*rtt, 10*rtt
		time.Sleep(rtt)
		again, err := by(l, d).Acquire(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		first, second = g.Token, again.Token
	})
	return first, second
}

func TestAskedAgainTheTokenStays(t *testing.T) {
	if first, second := askedTwice(t, func(_ *lab, d *Driver) *Driver { return d }); second != first {
		t.Errorf("a term has token %d, and %d when it was asked for again", first, second)
	}
	// The control does not know that it has the term. Its token is another one, and larger.
	control := func(l *lab, _ *Driver) *Driver {
		nodes := l.nodes(func() time.Duration { return 0 })
		for _, n := range nodes[:2] {
			n.(*conn).latency = func() time.Duration { return 10 * rtt }
		}
		d, err := NewDriver(nodes, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return d
	}
	if first, second := askedTwice(t, control); second <= first {
		t.Errorf("the control: a term has token %d, and %d when another asks for it", first, second)
	}
}
