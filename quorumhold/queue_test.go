package quorumhold

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// paced returns a client of servers whose answers take there and back.
func (l *lab) paced(t *testing.T, off broken, there ...time.Duration) *Driver {
	t.Helper()
	nodes := l.nodes(nil)
	for i, n := range nodes {
		n.(*conn).latency = steady(rand.New(rand.NewPCG(1, uint64(i))), there[i]/2)
	}
	d, err := NewDriver(nodes, nil)
	if err != nil {
		t.Fatal(err)
	}
	d.broken = off
	return d
}

func (n *node) waits() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.queue.len()
}

// overload is what came of it that one of three servers is slower than the callers.
type overload struct {
	waited       int           // calls that waited for it in the end
	starts, ends int           // requests that it got
	took         time.Duration // of the first acquire after that which needs it
	err          error
}

// overloaded lets many take and give back locks for a while over three servers of which the last is slow, but answers every call in
// time. Then there is no load, and another one hangs.
func overloaded(t *testing.T, off broken) (o overload) {
	synctest.Test(t, func(t *testing.T) {
		const soon = 10 * time.Millisecond
		l := newLab(3, 0)
		d := l.paced(t, off, soon, soon, defaultNodeTimeout/4)
		defer d.Close()
		end := time.Now().Add(time.Second)
		var group sync.WaitGroup
		for i := range 60 {
			group.Go(func() {
				for n := 0; time.Now().Before(end); n++ {
					req := request(fmt.Sprintf("job/%d/%d", i, n), 20*time.Second)
					_, err := d.Acquire(t.Context(), req)
					if err == nil {
						err = d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref})
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		group.Wait()
		o.waited = d.nodes[2].waits()
		l.servers[0].hang()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		began := time.Now()
		_, o.err = d.Acquire(ctx, request("k", 20*time.Second))
		o.took = time.Since(began)
		l.servers[0].wake()
		time.Sleep(2 * time.Minute) // all that is queued is done
		s := l.servers[2]
		s.mu.Lock()
		o.starts, o.ends = s.starts, s.ends
		s.mu.Unlock()
		if n := d.nodes[2].waits(); n > 0 || len(d.retired.nodes) > 0 {
			t.Errorf("in the end %d calls wait, and %d terms are being given back", n, len(d.retired.nodes))
		}
	})
	return o
}

// A server that is slower than its callers collects nothing that nobody needs, and is there when it is needed.
func TestASlowServerHasNoBacklog(t *testing.T) {
	o := overloaded(t, broken{})
	t.Logf("%+v", o)
	if o.err != nil || o.took > defaultNodeTimeout {
		t.Errorf("after the load an acquire took %v: %v", o.took, o.err)
	}
	if o.waited > 120 {
		t.Errorf("60 callers left %d calls behind", o.waited)
	}
	if o.ends > o.starts {
		t.Errorf("it was asked to start %d terms and to end %d", o.starts, o.ends)
	}
	if o := overloaded(t, broken{hoard: true}); o.err == nil || o.waited < 1000 {
		t.Errorf("the control, where every call is made: %+v", o)
	}
	if o := overloaded(t, broken{waste: true}); o.ends <= o.starts {
		t.Errorf("the control, where each term is ended everywhere: %+v", o)
	}
}

// What waits to strengthen a term that a majority has granted is bounded by a time, and not by how many terms there are.
func TestASlowServerGetsSomeOfWhatIsHeld(t *testing.T) {
	held := func(off broken) (most, stands int) {
		synctest.Test(t, func(t *testing.T) {
			const soon = 10 * time.Millisecond
			l := newLab(3, 0)
			d := l.paced(t, off, soon, soon, defaultNodeTimeout/2)
			defer func() { d.Close(); time.Sleep(time.Second) }() // all that is on its way arrives
			end := time.Now().Add(time.Second)
			var group sync.WaitGroup
			for i := range 50 {
				group.Go(func() {
					for n := 0; time.Now().Before(end); n++ {
						if _, err := d.Acquire(t.Context(), request(fmt.Sprintf("job/%d/%d", i, n), 20*time.Second)); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			for time.Now().Before(end) {
				most = max(most, d.nodes[2].waits())
				time.Sleep(soon)
			}
			group.Wait()
			s := l.servers[2]
			s.mu.Lock()
			stands = s.starts
			s.mu.Unlock()
		})
		return most, stands
	}
	most, stands := held(broken{})
	t.Logf("at most %d calls waited; %d terms were started there", most, stands)
	if most > 2500 {
		t.Errorf("%d calls waited", most)
	}
	if stands < maxInFlight {
		t.Errorf("only %d terms were started there", stands)
	}
	if more, _ := held(broken{hoard: true}); more < 2*most {
		t.Errorf("the control: %d calls waited, and without the rule %d", most, more)
	}
}

// Where the servers are equally fast, terms stand at all of them, however long calls wait for their turn.
func TestManyAtOnceStandEverywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const far = 40 * time.Millisecond
		l := newLab(5, 0)
		d := l.paced(t, broken{}, far, far, far, far, far)
		defer d.Close()
		const callers = 1000
		began := time.Now()
		var group sync.WaitGroup
		for i := range callers {
			group.Go(func() {
				if _, err := d.Acquire(t.Context(), request(fmt.Sprint("job/", i), 10*time.Second)); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		if waited := time.Since(began); waited < 2*patience {
			t.Errorf("nobody waited for longer than %v", waited)
		}
		time.Sleep(time.Second)
		stand := 0
		for i := range callers {
			stand += l.taken(fmt.Sprint("job/", i))
		}
		// Some are decided at the very moment at which their turn would come at the others.
		if want := 5 * callers; stand < want*9/10 {
			t.Errorf("%d terms stand at %d servers together, want %d", callers, stand, want)
		}
	})
}

// keptUnderLoad renews one term while thousands take and give back other locks, and says whether it was lost.
func keptUnderLoad(t *testing.T, off broken) (lost error) {
	synctest.Test(t, func(t *testing.T) {
		const ttl, far = 2 * time.Second, 200 * time.Millisecond
		l := newLab(3, 0)
		d := l.paced(t, off, far, far, far)
		defer d.Close()
		began := time.Now()
		req := request("kept", ttl)
		if _, err := d.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		end := time.Now().Add(3 * ttl)
		var group sync.WaitGroup
		for i := range 2000 {
			group.Go(func() {
				for n := 0; time.Now().Before(end); n++ {
					req := request(fmt.Sprintf("job/%d/%d", i, n), 20*time.Second)
					if _, err := d.Acquire(t.Context(), req); err == nil {
						_ = d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref})
					}
				}
			})
		}
		for until := began.Add(ttl); time.Now().Before(end) && lost == nil; {
			time.Sleep(ttl / 4)
			sent := time.Now()
			ctx, cancel := context.WithDeadline(t.Context(), until)
			_, err := d.Renew(ctx, &driver.RenewRequest{Ref: req.Ref, TTL: ttl})
			cancel()
			switch {
			case err == nil && time.Now().Before(until):
				until = sent.Add(ttl)
			case !time.Now().Before(until):
				lost = errors.Join(errors.New("its time was over"), err)
			}
		}
		group.Wait()
		time.Sleep(time.Minute)
	})
	return lost
}

// Whoever holds a lock keeps it, however many want others: renewals do not stand in the same line.
func TestALeaseIsKeptWhileThousandsAcquire(t *testing.T) {
	if err := keptUnderLoad(t, broken{}); err != nil {
		t.Errorf("it was lost: %v", err)
	}
	if err := keptUnderLoad(t, broken{equal: true}); err == nil {
		t.Error("the control: a renewal that waits behind all others should come too late")
	}
}
