package quorumhold

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/holdlock/holdlock/driver"
)

const (
	// maxInFlight bounds the calls of one node that are under way. The others wait for their turn, see queue, until one of these is
	// answered, or not within Options.NodeTimeout, which makes the node suspect: then those who wait are not asked for.
	maxInFlight = 128
	// A suspect node is asked one call at a time, after pauses that grow from the first to the last.
	suspectFirst, suspectLast = 50 * time.Millisecond, time.Second
	// suspectAfter is how many failures that came at once make a node suspect.
	suspectAfter = 3
	// greeting is how many NodeTimeouts a node gets for a call as long as it has not answered any: to connect to a server, greet it, ask who it
	// is and send it a script takes several times as long as a call does later. It is the most that a suspect node gets, to which all that may
	// have to be done again: the first calls get one NodeTimeout, and then one more each.
	greeting = 5
)

// flight is one call under way.
type flight struct {
	number uint64
	since  time.Time
	limit  time.Duration // from then on. Only that a node takes longer says something about it, and not that a caller is in a hurry
}

// errNotAsked is the answer for a node that is suspect, or has far too much to do.
var errNotAsked = errors.New("not asked, because it did not answer before")

// A node is one of the stores, and what is known about how it does. What a node says about terms is not kept here.
type node struct {
	driver.Driver
	name string

	mu       sync.Mutex
	flying   []flight // the calls without an answer, oldest first
	flights  uint64   // so far
	failures int      // in a row
	suspect  bool
	again    time.Time // a suspect node is not asked before
	probing  bool      // the one call that a suspect node may get is on its way
	last     error     // of the last failure
	met      bool      // it has answered
	queue    queue     // calls that wait for their turn; none while the node is suspect
	debts    []debt
	paying   bool
}

// errBusy is for a call that has to wait, or be left out, because enough are under way.
var errBusy = errors.New("enough calls of it are under way")

// admit says whether a call may be made now. If it is only that the node has enough to do, the call is queued.
func (d *Driver) admit(n *node, now time.Time, wait *call) (flight, error) {
	timeout := d.opts.NodeTimeout
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.suspect && len(n.flying) > 0 && now.Sub(n.flying[0].since) > n.flying[0].limit+timeout {
		d.doubt(n, now, errors.New("a call of it hangs")) // it does not even give up when told to
	}
	switch {
	case d.broken.doubt:
	case n.suspect && (n.probing || now.Before(n.again)):
		return flight{}, n.notAsked()
	case len(n.flying) >= d.flights && (n.suspect || d.broken.busy), n.queue.len() >= maxQueued:
		return flight{}, n.notAsked()
	case len(n.flying) >= d.flights:
		if wait != nil {
			n.queue.add(queued{wait, now})
		}
		return flight{}, errBusy
	case n.suspect:
		n.probing = true
	}
	return d.depart(n, now), nil
}

// depart counts one more call that is under way. Runs under n.mu.
func (d *Driver) depart(n *node, now time.Time) flight {
	n.flights++
	times := 1
	switch {
	case d.broken.greeting:
	case !n.met:
		times = greeting
	case n.suspect:
		times = max(1, min(n.failures-1, greeting))
	}
	f := flight{n.flights, now, time.Duration(times) * d.opts.NodeTimeout}
	n.flying = append(n.flying, f)
	return f
}

// notAsked is the answer for a node that is not asked. Runs under n.mu.
func (n *node) notAsked() error {
	if n.last == nil {
		return fmt.Errorf("%w: %d calls of it are under way and %d wait (%w)", errNotAsked, len(n.flying), n.queue.len(), driver.ErrNotApplied)
	}
	return fmt.Errorf("%w: %w (%w)", errNotAsked, n.last, driver.ErrNotApplied)
}

// silence is what is known about a node that has not answered.
func (n *node) silence() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return cmp.Or(n.last, errPending)
}

// doubt makes the node suspect, and refuses what waits for it. Runs under n.mu.
func (d *Driver) doubt(n *node, now time.Time, why error) {
	n.suspect, n.last = true, why
	if waiting := n.queue.clear(); len(waiting) > 0 {
		err := n.notAsked()
		d.background(function(func() {
			for _, q := range waiting {
				q.what.told(err)
			}
		}))
	}
	pause := min(suspectLast, suspectFirst<<min(n.failures, 10))
	n.again = now.Add(pause/2 + d.random(pause/2+1))
}

// answered takes note of how a call went, and starts the next one.
func (d *Driver) answered(n *node, f flight, err error) {
	n.mu.Lock()
	if i := slices.IndexFunc(n.flying, func(x flight) bool { return x.number == f.number }); i >= 0 {
		n.flying = slices.Delete(n.flying, i, i+1)
	}
	n.probing = false
	if silent(err) {
		n.failures++
		n.last = elsewhere{err}
		if n.suspect || n.failures >= suspectAfter || errors.Is(err, context.DeadlineExceeded) {
			d.doubt(n, time.Now(), elsewhere{err})
		}
	} else {
		n.suspect, n.failures, n.last = false, 0, nil
		n.met = n.met || !errors.Is(err, context.Canceled)
	}
	var next *call
	var left []*call
	if len(n.flying) < d.flights && n.queue.len() > 0 {
		now := time.Now()
		if next, left = n.queue.next(now, &d.broken); next != nil {
			next.flight = d.depart(n, now)
		}
	}
	n.mu.Unlock()
	if next != nil {
		next.launch()
	}
	if len(left) > 0 { // there may be many, and somebody waits for the answer to this call
		refuse := func() {
			for _, c := range left {
				c.what.told(errNotNeeded)
			}
		}
		if !d.background(function(refuse)) {
			refuse()
		}
	}
}

// silent says whether the error means that the node has not done its work. All others are answers.
func silent(err error) bool {
	if err == nil {
		return false
	}
	var held *driver.HeldError
	return !errors.As(err, &held) && !errors.Is(err, driver.ErrGone) && !errors.Is(err, driver.ErrTokenPassed) &&
		!errors.Is(err, driver.ErrAbstains) && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, ErrMismatch) && !errors.Is(err, driver.ErrTokensExhausted) &&
		!errors.Is(err, driver.ErrDamaged) && !errors.Is(err, context.Canceled)
}

// unheard says whether the node may not have done what it was told.
func unheard(err error) bool { return silent(err) || errors.Is(err, context.Canceled) }

// A debt is a term that is to be given back to a node which did not answer.
type debt struct {
	release driver.ReleaseRequest // without KeepFor
	keep    time.Time             // the key stays taken until then
	until   time.Time             // by then the term has ended by itself
	paid    func()
}

// maxDebts bounds what is owed to one node. Beyond that, terms are left to expire.
const maxDebts = 1024

func (n *node) owe(x debt) {
	n.mu.Lock()
	var dropped func()
	if len(n.debts) >= maxDebts {
		dropped = n.debts[0].paid
		n.debts = n.debts[1:]
	}
	n.debts = append(n.debts, x)
	n.mu.Unlock()
	if dropped != nil {
		dropped()
	}
}

// pay starts to give back what is owed to a node that has just answered.
func (d *Driver) pay(n *node) {
	n.mu.Lock()
	start := len(n.debts) > 0 && !n.paying && !n.suspect
	n.paying = n.paying || start
	n.mu.Unlock()
	if start && !d.background(function(func() { d.payAll(n) })) {
		n.mu.Lock()
		n.paying = false
		n.mu.Unlock()
	}
}

// payAll goes on until nothing is owed or the node fails again.
func (d *Driver) payAll(n *node) {
	for {
		n.mu.Lock()
		if len(n.debts) == 0 || n.suspect || d.ctx.Err() != nil {
			n.paying = false
			n.mu.Unlock()
			return
		}
		x := n.debts[0]
		n.debts = n.debts[1:]
		n.mu.Unlock()
		now := time.Now()
		if !now.Before(x.until) {
			x.paid()
			continue
		}
		one, err := d.admit(n, now, nil)
		if err == nil {
			req := x.release
			req.KeepFor = max(0, x.keep.Sub(now))
			ctx, cancel := driver.WithBudget(context.Background(), one.limit)
			err = n.Release(ctx, &req)
			cancel()
			d.answered(n, one, err)
		}
		if !unheard(err) {
			x.paid()
			continue
		}
		n.owe(x)
		n.mu.Lock()
		n.paying = false
		n.mu.Unlock()
		return
	}
}
