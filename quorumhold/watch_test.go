package quorumhold

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/memhold"
)

// hinting is a way to a server that sends hints.
type hinting struct {
	*conn
	asked, begun, stopped atomic.Int32
}

func (h *hinting) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	h.asked.Add(1)
	type watch struct {
		hints <-chan struct{}
		stop  func()
	}
	w, err := reach(ctx, h.conn, func(d *memhold.Driver) (w watch, err error) {
		w.hints, w.stop, err = d.Watch(context.Background(), key)
		return w, err
	})
	if err != nil {
		return nil, nil, err
	}
	h.begun.Add(1)
	return w.hints, func() { h.stopped.Add(1); w.stop() }, nil
}

// hintingClient returns a driver over servers that send hints, and its ways to them in the order in which it watches the key "k".
func (l *lab) hintingClient(t *testing.T) (*Driver, []*hinting) {
	t.Helper()
	nodes := l.nodes(func() time.Duration { return rtt / 2 })
	ways := make([]*hinting, len(nodes))
	for i, n := range nodes {
		ways[i] = &hinting{conn: n.(*conn)}
		nodes[i] = ways[i]
	}
	d, err := NewDriver(nodes, nil)
	if err != nil {
		t.Fatal(err)
	}
	first := firstWatched("k", len(nodes))
	return d, append(ways[first:len(ways):len(ways)], ways[:first]...)
}

// watches returns how many watches of each node have begun and were not stopped.
func watches(ways []*hinting) (n []int32) {
	for _, w := range ways {
		n = append(n, w.begun.Load()-w.stopped.Load())
	}
	return n
}

func same(a []int32, b ...int32) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return len(a) == len(b)
}

// A watch of nodes that are well takes one round trip, and asks no more of them than it needs.
func TestNodesAreWatchedSideBySide(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, ways := newLab(5, 0).hintingClient(t)
		defer d.Close()
		began := time.Now()
		_, stop, err := d.Watch(t.Context(), "k")
		if took := time.Since(began); err != nil || took != rtt {
			t.Errorf("it took %v (%v), want %v", took, err, rtt)
		}
		if n := watches(ways); !same(n, 1, 1, 0, 0, 0) {
			t.Errorf("watched: %v", n)
		}
		stop()
		stop()
		if n := watches(ways); !same(n, 0, 0, 0, 0, 0) {
			t.Errorf("after its end: %v", n)
		}
	})
}

// Nodes that hang are not waited for: others send the hints instead.
func TestWatchWhileNodesHang(t *testing.T) {
	for _, tc := range []struct {
		name string
		hang []int // which of those to be watched
		want []int32
	}{
		{"the first", []int{0}, []int32{0, 1, 1, 0, 0}},
		{"the second", []int{1}, []int32{1, 0, 1, 0, 0}},
		{"both", []int{0, 1}, []int32{0, 0, 1, 1, 0}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(5, 0)
				d, ways := l.hintingClient(t)
				defer d.Close()
				for _, i := range tc.hang {
					ways[i].server.hang()
					defer ways[i].server.wake()
				}
				req := request("k", 10*time.Second)
				if _, err := d.Acquire(t.Context(), req); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				hints, stop, err := d.Watch(t.Context(), "k")
				if took := time.Since(began); err != nil || took > lookGrace+rtt {
					t.Fatalf("it took %v (%v), want a moment", took, err)
				}
				time.Sleep(2 * rtt)
				if n := watches(ways); !same(n, tc.want...) {
					t.Errorf("watched: %v, want %v", n, tc.want)
				}
				if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
					t.Error(err)
				}
				began = time.Now()
				select {
				case <-hints:
				case <-time.After(time.Minute):
				}
				if late := time.Since(began); late > rtt {
					t.Errorf("the hint came %v after the release", late)
				}
				for _, i := range tc.hang { // they answer before they are given up, and nobody needs them any more
					ways[i].server.wake()
				}
				time.Sleep(time.Second)
				if n := watches(ways); !same(n, tc.want...) {
					t.Errorf("watched later: %v, want %v", n, tc.want)
				}
				stop()
				if n := watches(ways); !same(n, 0, 0, 0, 0, 0) {
					t.Errorf("after its end: %v", n)
				}
			})
		})
	}
}

// A watch that fails, is given up, or is stopped before all nodes have answered leaves nothing behind, and none is left by Close.
func TestWatchEndsWhileNodesHang(t *testing.T) {
	for _, how := range []string{"given up", "stopped", "closed", "closed before"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(3, 0)
				d, ways := l.hintingClient(t)
				defer d.Close()
				hung := 2
				if how == "given up" || how == "closed before" {
					hung = 3
				}
				for _, w := range ways[:hung] {
					w.server.hang()
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if how == "closed before" {
					time.AfterFunc(time.Second/2, func() { d.Close() })
				}
				began := time.Now()
				_, stop, err := d.Watch(ctx, "k")
				took := time.Since(began)
				switch how {
				case "given up":
					if !errors.Is(err, context.DeadlineExceeded) || took != time.Second {
						t.Errorf("after %v: %v", took, err)
					}
				case "closed before":
					if !errors.Is(err, driver.ErrClosed) || took != time.Second/2 {
						t.Errorf("after %v: %v", took, err)
					}
				case "stopped":
					stop()
				case "closed":
					d.Close()
				}
				if err != nil && hung == 2 {
					t.Fatalf("after %v: %v", took, err)
				}
				for _, w := range ways {
					w.server.wake()
				}
				time.Sleep(10 * time.Second)
				if n := watches(ways); !same(n, 0, 0, 0) {
					t.Errorf("watched: %v", n)
				}
			})
		})
	}
}

// A watch whose nodes all fail says so, and nodes that refuse are replaced at once.
func TestWatchWhereNodesFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(3, 0)
		d, ways := l.hintingClient(t)
		defer d.Close()
		ways[0].server.down(true)
		began := time.Now()
		_, stop, err := d.Watch(t.Context(), "k")
		if took := time.Since(began); err != nil || took > 2*rtt || !same(watches(ways), 0, 1, 1) {
			t.Fatalf("after %v: %v, watched %v", took, err, watches(ways))
		}
		stop()
		ways[1].server.down(true)
		if _, stop, err = d.Watch(t.Context(), "k"); err != nil || !same(watches(ways), 0, 0, 1) {
			t.Fatalf("%v, watched %v", err, watches(ways))
		}
		stop()
		ways[2].server.down(true)
		if _, _, err = d.Watch(t.Context(), "k"); err == nil {
			t.Error("no error")
		}
	})
}

// A lock passes on at once while a minority of servers hangs, whether a program has reached them before or not, and whichever they are.
func TestHandOverWhileNodesHang(t *testing.T) {
	for _, early := range []bool{false, true} {
		for hung := range 3 {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(3, 0)
				open := func() *holdlock.Lock {
					d, _ := l.hintingClient(t)
					c, err := holdlock.NewClient(d, nil)
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() { _ = c.Shutdown(context.Background()) })
					lock, err := c.NewLock("k", &holdlock.LockOptions{TTL: 30 * time.Second})
					if err != nil {
						t.Fatal(err)
					}
					return lock
				}
				holder, waiter := open(), open()
				if early {
					for _, lock := range []*holdlock.Lock{holder, waiter} {
						lease, err := lock.TryAcquire(t.Context())
						if err != nil {
							t.Fatal(err)
						}
						_ = lease.Release(t.Context())
						time.Sleep(time.Second)
					}
				}
				l.servers[hung].hang()
				defer l.servers[hung].wake()
				lease, err := holder.TryAcquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				var free time.Time
				time.AfterFunc(2*time.Second, func() {
					free = time.Now()
					_ = lease.Release(t.Context())
				})
				next, err := waiter.Acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if late := time.Since(free); late > 50*time.Millisecond {
					t.Errorf("reached before %v, server %d hangs: handed over after %v", early, hung, late)
				}
				_ = next.Release(t.Context())
			})
		}
	}
}
