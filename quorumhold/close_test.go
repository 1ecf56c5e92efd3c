package quorumhold

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// Nobody waits for a server that hangs: a short job ends soon, one that is longer than a quarter of a second at once, and what only
// looks too.
func TestNoWaitForAHungServer(t *testing.T) {
	lasted := func(t *testing.T, work func(ctx context.Context, d *Driver) error, off broken) (worked, closed time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(3, 0)
			d := l.client(t, off)
			l.servers[1].hang()
			defer func() { l.servers[1].wake(); time.Sleep(time.Second) }() // all that is on its way arrives
			began := time.Now()
			if err := work(t.Context(), d); err != nil {
				t.Fatal(err)
			}
			worked = time.Since(began)
			began = time.Now()
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			closed = time.Since(began)
		})
		return worked, closed
	}
	job := func(long time.Duration) func(ctx context.Context, d *Driver) error {
		return func(ctx context.Context, d *Driver) error {
			req := request("k", 10*time.Second)
			if _, err := d.Acquire(ctx, req); err != nil {
				return err
			}
			time.Sleep(long)
			return d.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref})
		}
	}
	const soon = 10 * rtt
	for name, c := range map[string]struct {
		work   func(ctx context.Context, d *Driver) error
		worked time.Duration
		closed time.Duration
	}{
		"a short job":          {job(0), soon, lookGrace + soon + 3*closeLook},
		"a job":                {job(lookGrace), lookGrace + soon, soon + 3*closeLook},
		"a job of two seconds": {job(2 * time.Second), 2*time.Second + soon, soon + 3*closeLook},
		"a look at what is free": {func(ctx context.Context, d *Driver) error {
			_, held, err := d.Inspect(ctx, "k")
			if held {
				return errors.New("it is held")
			}
			return err
		}, soon, soon},
		"a list of nothing": {func(ctx context.Context, d *Driver) error { _, err := d.List(ctx, "", "", 100); return err }, soon, soon},
	} {
		worked, closed := lasted(t, c.work, broken{})
		if worked > c.worked || closed > c.closed {
			t.Errorf("%s took %v, and Close %v; want %v and %v at most", name, worked, closed, c.worked, c.closed)
		}
	}
	if _, closed := lasted(t, job(0), broken{patience: true}); closed < closeGrace*9/10 {
		t.Errorf("the control: a Close that waits for all takes %v", closed)
	}
}

// Servers that are far away are waited for: what a failed attempt was granted there is given back.
func TestCloseGivesBackFarAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const there = 200 * time.Millisecond // more than lookGrace for both ways
		l := newLab(3, 0)
		far := func() time.Duration { return there }
		a, b := l.open(t, nil, far), l.open(t, nil, far)
		l.servers[2].down(true)
		if _, err := a.Acquire(t.Context(), request("k", 20*time.Second)); err != nil {
			t.Fatal(err)
		}
		l.servers[2].down(false)
		var held *driver.HeldError
		if _, err := b.Acquire(t.Context(), request("k", 20*time.Second)); !errors.As(err, &held) {
			t.Fatalf("it is held, and yet: %v", err)
		}
		if n := l.taken("k"); n != 3 {
			t.Fatalf("taken at %d servers, want 3: nothing is to be given back", n)
		}
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		if n := l.taken("k"); n != 2 || len(b.retired.nodes) > 0 {
			t.Errorf("taken at %d servers after Close, with %d attempts not given back, want 2 and none", n, len(b.retired.nodes))
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second) // all that is on its way arrives
	})
}
