package quorumhold

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/memhold"
)

// pausing lets a term be released while it pauses before it asks a server again, at which another term stands. Another server has
// forgotten the term. It returns what the release said, and how many terms are still being given back a minute later.
func pausing(t *testing.T, off broken) (retired int, released error) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(3, 0)
		d := l.client(t, off)
		defer d.Close()
		l.servers[2].down(true)
		req := request("k", 20*time.Second)
		if _, err := d.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		l.servers[2].down(false)
		time.Sleep(2 * suspectLast)
		other := l.nodes(func() time.Duration { return 0 })[2]
		if _, err := other.Acquire(t.Context(), request("k", 10*time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Renew(t.Context(), &driver.RenewRequest{Ref: req.Ref, TTL: req.TTL}); err != nil {
			t.Fatal(err)
		}
		// Its first pauses are shorter than it takes to ask; by now it is in the fifth or so.
		time.Sleep(seedPause << 4)
		l.servers[1].forget()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		released = d.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref})
		time.Sleep(time.Minute)
		retired = len(d.retired.nodes)
	})
	return retired, released
}

func TestAReleaseInAPause(t *testing.T) {
	if retired, err := pausing(t, broken{}); !errors.Is(err, driver.ErrGone) || retired != 0 {
		t.Errorf("%v; %d terms are being given back; want that it is gone at two of three, and none", err, retired)
	}
	if retired, err := pausing(t, broken{pause: true}); !errors.Is(err, context.DeadlineExceeded) || retired == 0 {
		t.Errorf("the control: %v; %d terms are being given back", err, retired)
	}
}

// A renewal that is confirmed starts seeds while it holds nothing that whoever looks through all terms may be waiting for.
func TestSeedsAreStartedWithoutTheTerm(t *testing.T) {
	l := newLab(3, 0)
	d := l.open(t, nil, func() time.Duration { return 0 })
	defer d.Close()
	l.servers[2].down(true)
	req := request("k", time.Minute/2)
	if _, err := d.Acquire(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	held := d.known(req.Ref)
	for asked := true; asked; {
		held.mu.Lock()
		asked = held.at[2].state == asking
		held.mu.Unlock()
	}
	done := make(chan struct{})
	d.mu.Lock() // as sweep does
	go func() {
		defer close(done)
		d.confirmed(&tally{req: &driver.RenewRequest{Ref: req.Ref, TTL: req.TTL}, term: held}, time.Now())
	}()
	for deadline, started := time.Now().Add(30*time.Second), false; !started; {
		if held.mu.TryLock() {
			started = held.at[2].seeds
			held.mu.Unlock()
		}
		if time.Now().After(deadline) {
			t.Error("it waits for the one and holds the other")
			break
		}
		time.Sleep(time.Millisecond)
	}
	d.mu.Unlock()
	<-done
}

// batching is a way to a server that renews many terms at once.
type batching struct{ *conn }

func (b batching) RenewBatch(ctx context.Context, reqs []*driver.RenewRequest) []driver.RenewResult {
	all, err := reach(ctx, b.conn, func(d *memhold.Driver) (all []driver.RenewResult, err error) {
		for _, req := range reqs {
			g, err := d.Renew(context.Background(), req)
			all = append(all, driver.RenewResult{Grant: g, Err: err})
		}
		return all, nil
	})
	if err != nil {
		all = make([]driver.RenewResult, len(reqs))
		for i := range all {
			all[i].Err = err
		}
	}
	return all
}

// A server that has lost its data is given all terms again, however many they are and long that takes.
func TestAllAreGivenAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const far, leases = 100 * time.Millisecond, 1000 // maxInFlight at a time: eight rounds
		l := newLab(3, 0)
		nodes := l.nodes(func() time.Duration { return far / 2 })
		for i, n := range nodes {
			nodes[i] = batching{n.(*conn)}
		}
		d, err := NewDriver(nodes, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		reqs := make([]*driver.RenewRequest, leases)
		var group sync.WaitGroup
		for i := range reqs {
			group.Go(func() {
				req := request(fmt.Sprint("job/", i), 20*time.Second)
				if _, err := d.Acquire(t.Context(), req); err != nil {
					t.Error(err)
				}
				reqs[i] = &driver.RenewRequest{Ref: req.Ref, TTL: req.TTL}
			})
		}
		group.Wait()
		time.Sleep(time.Second)
		l.servers[2].forget()
		for range 2 { // it is found out, and mended
			for _, res := range d.RenewBatch(t.Context(), reqs) {
				if res.Err != nil {
					t.Fatal(res.Err)
				}
			}
			time.Sleep(2 * time.Second)
		}
		l.servers = l.servers[2:]
		again := 0
		for i := range reqs {
			again += l.taken(fmt.Sprint("job/", i))
		}
		if again != leases {
			t.Errorf("%d of %d are there again", again, leases)
		}
	})
}
