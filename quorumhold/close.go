package quorumhold

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/holdlock/holdlock/driver"
)

const (
	// closeGrace is how long Close waits for what goes on in the background.
	closeGrace = time.Second
	// closeLook is how often it looks whether all that it waits for is calls of nodes that hang.
	closeLook = 5 * time.Millisecond
)

// Close implements driver.Driver. It waits up to a second for what goes on in the background, above all for terms of failed
// attempts to be given back, and closes the nodes. It does not wait for nodes that did not answer before, nor for calls that take a
// quarter of a second more than a majority may: of these nodes nothing will be heard before the terms there have ended.
func (d *Driver) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	d.closed, d.idle = true, make(chan struct{})
	close(d.closing)
	for _, w := range d.rested {
		close(w.work)
	}
	d.rested = nil
	watches := slices.Collect(maps.Keys(d.watches))
	d.watches = map[*watch]struct{}{}
	idle := d.idle
	if d.running == 0 {
		close(idle)
	}
	d.mu.Unlock()
	d.blind()
	for _, w := range watches {
		w.stop()
	}

	d.settle(idle)
	d.cancel()
	var errs []error
	for _, n := range d.nodes {
		if err := n.Close(); err != nil && !errors.Is(err, driver.ErrClosed) {
			errs = append(errs, fmt.Errorf("node %s: %w", n.name, err))
		}
	}
	grace := time.NewTimer(closeGrace)
	defer grace.Stop()
	select {
	case <-idle:
	case <-grace.C: // a node that hangs against its contract
	}
	return errors.Join(errs...)
}

// settle waits until nothing goes on in the background but calls of nodes that hang.
func (d *Driver) settle(idle chan struct{}) {
	grace := time.NewTimer(closeGrace)
	defer grace.Stop()
	look := time.NewTicker(closeLook)
	defer look.Stop()
	alone := 0
	for {
		select {
		case <-idle:
			return
		case <-grace.C:
			return
		case now := <-look.C:
			if d.broken.patience || !d.hangs(now) {
				alone = 0
			} else if alone++; alone > 1 { // the first time, a call that has been admitted may not have begun yet
				return
			}
		}
	}
}

// hangs says whether all that goes on are calls of nodes that do not answer.
func (d *Driver) hangs(now time.Time) bool {
	late := lookGrace + time.Duration(d.pace.Load())
	hung := 0
	for _, n := range d.nodes {
		n.mu.Lock()
		for _, f := range n.flying {
			if n.suspect || now.Sub(f.since) > late {
				hung++
			}
		}
		n.mu.Unlock()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.running <= hung
}
