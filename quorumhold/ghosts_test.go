package quorumhold

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// wakeAll wakes all servers and makes the caller, who suspects some of them, notice.
func (l *lab) wakeAll(t *testing.T, d *Driver) {
	t.Helper()
	for _, s := range l.servers {
		s.wake()
	}
	for range 3 {
		time.Sleep(suspectLast)
		req := request("other", time.Second)
		if _, err := d.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(10 * rtt)
}

// late says at how many servers an acquire that was on its way all the time starts a term now.
func (l *lab) late(t *testing.T, req *driver.AcquireRequest) (n int) {
	t.Helper()
	for _, node := range l.nodes(func() time.Duration { return 0 }) {
		_, err := node.Acquire(t.Context(), req)
		var other *driver.HeldError
		switch {
		case err == nil:
			n++
		case !errors.Is(err, driver.ErrNotApplied) && !errors.As(err, &other):
			t.Fatal(err)
		}
	}
	return n
}

// askedAgain lets one server of five hang while it is asked for a term. The server is then suspect, and with that not asked for the
// seed that follows a renewal; or, if it wakes before, it is asked and has the term. It returns at how many servers the term stands after
// its release, and how many would grant it to a request that is later still.
func askedAgain(t *testing.T, off broken, wakes bool) (left, late int) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(5, 0)
		d := l.client(t, off)
		defer d.Close()
		l.servers[4].hang()
		req := request("k", 20*time.Second)
		if _, err := d.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		time.Sleep(defaultNodeTimeout)
		if wakes {
			l.wakeAll(t, d)
		}
		if _, err := d.Renew(t.Context(), &driver.RenewRequest{Ref: req.Ref, TTL: req.TTL}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * rtt)
		l.servers[4].wake() // the first request arrives
		time.Sleep(10 * rtt)
		if n := l.taken("k"); n != 5 {
			t.Fatalf("the term stands at %d servers", n)
		}
		if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
			t.Fatal(err)
		}
		l.wakeAll(t, d)
		left = l.taken("k")
		// A request can be later still only where one was not answered.
		l.servers = l.servers[4:]
		late = l.late(t, req)
	})
	return left, late
}

// A node that did not answer is asked again, and that is answered. The first request may arrive all the same, so the end of the term is
// sent there, and the node refuses the nonce afterwards.
func TestTheFirstRequestIsLate(t *testing.T) {
	for _, wakes := range []bool{false, true} {
		if left, late := askedAgain(t, broken{}, wakes); left != 0 || late != 0 {
			t.Errorf("asked again %v: the term is left at %d servers, and comes back at %d", wakes, left, late)
		}
		if left, late := askedAgain(t, broken{ghosts: true}, wakes); (left == 0) != wakes || late != 1 {
			t.Errorf("the control, asked again %v: the term is left at %d servers, and comes back at %d", wakes, left, late)
		}
	}
}

// unconfirmed lets an attempt fail whose give-back two servers do not confirm, and returns at how many of these its nonce can be had again.
func unconfirmed(t *testing.T, off broken) (again int) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(5, 0)
		d := l.client(t, off)
		defer d.Close()
		for _, s := range l.servers[2:] {
			s.hang()
		}
		req := request("k", 20*time.Second)
		failed := make(chan error, 1)
		go func() {
			_, err := d.Acquire(context.Background(), req)
			failed <- err
		}()
		time.Sleep(10 * rtt)
		if n := l.taken("k"); n != 2 {
			t.Fatalf("granted by %d servers", n)
		}
		for _, s := range l.servers {
			s.hang()
		}
		if err := <-failed; !errors.Is(err, driver.ErrNotApplied) {
			t.Fatal(err)
		}
		time.Sleep(2 * defaultNodeTimeout)
		for _, s := range l.servers {
			s.wake()
		}
		l.wakeAll(t, d)
		if n := l.taken("k"); n != 0 || d.retired.has(req.Ref) {
			t.Fatalf("left at %d servers; to be confirmed: %v", n, d.retired.has(req.Ref))
		}
		l.servers = l.servers[:2]
		again = l.late(t, req)
	})
	return again
}

// What was not confirmed may arrive after it was confirmed when it was sent again. It would end another term of the nonce, so there is none.
func TestTheGiveBackIsLate(t *testing.T) {
	if n := unconfirmed(t, broken{}); n != 0 {
		t.Errorf("%d servers grant the nonce again", n)
	}
	if n := unconfirmed(t, broken{ghosts: true}); n != 2 {
		t.Errorf("the control: %d servers grant the nonce again, want 2", n)
	}
}
