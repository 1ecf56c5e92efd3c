package quorumhold

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// Renew implements driver.Driver.
func (d *Driver) Renew(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
	res := d.RenewBatch(ctx, []*driver.RenewRequest{req})
	return res[0].Grant, res[0].Err
}

// RenewBatch implements driver.BatchRenewer: one call of each node for all terms. A term is renewed when a majority has
// confirmed that it still stands there. Nodes that have forgotten it are given it again, see seed; they count from the next
// renewal on.
func (d *Driver) RenewBatch(ctx context.Context, reqs []*driver.RenewRequest) []driver.RenewResult {
	r := &renewal{d: d, sent: time.Now(), tallies: make([]tally, len(reqs)), changed: make(chan struct{}, 1)}
	for i, req := range reqs {
		r.tallies[i] = tally{req: req, ref: req.Ref, heard: make([]error, len(d.nodes))}
		y := &r.tallies[i]
		if y.fail = d.usable(ctx, "renew", req.Ref.Key); y.fail == nil {
			y.fail = d.tooLong("renew", req.Ref.Key, "a TTL", req.TTL)
		}
		if y.term = d.known(req.Ref); y.term != nil {
			y.ref = y.term.node
		}
	}
	for i := range d.nodes {
		r.ask(i)
	}
	for !r.decided() {
		select {
		case <-r.changed:
			continue
		case <-ctx.Done():
		case <-d.closing:
		}
		break
	}
	now := time.Now()
	r.over.Store(&now)
	return r.results(ctx)
}

// A renewal is one round for many terms.
type renewal struct {
	d       *Driver
	sent    time.Time // before the first byte: what is confirmed lasts from here
	changed chan struct{}
	over    atomic.Pointer[time.Time] // since when the caller has his answer

	mu      sync.Mutex
	tallies []tally
}

// A tally is what the nodes have said about one term.
type tally struct {
	req   *driver.RenewRequest
	ref   driver.Ref // as the nodes know it
	term  *term      // nil if another process has acquired it
	fail  error      // it was not asked for
	open  int
	did   int
	gone  int // nodes where it certainly does not stand
	broke error
	past  error
	token map[driver.Token]int // by how many nodes
	heard []error
}

// ask sends to one node what concerns it.
func (r *renewal) ask(i int) {
	n := r.d.nodes[i]
	var reqs []*driver.RenewRequest
	var which []int
	limit := r.d.opts.NodeTimeout
	r.mu.Lock()
	for j := range r.tallies {
		y := &r.tallies[j]
		if y.fail != nil {
			continue
		}
		req := &driver.RenewRequest{Ref: y.ref, TTL: r.d.stretch(y.req.TTL), Floor: y.req.Floor}
		if t := y.term; t != nil {
			t.mu.Lock()
			stands, token := t.at[i].state == granted, t.at[i].token
			if req.Floor == 0 && token < t.token {
				req.Floor = t.token // it was not reached when the token was agreed on
			}
			t.mu.Unlock()
			if !stands {
				y.gone++
				continue
			}
		}
		y.open++
		reqs, which = append(reqs, req), append(which, j)
		limit = min(limit, y.req.TTL)
	}
	r.mu.Unlock()
	if len(reqs) == 0 {
		return
	}
	needed := func(time.Duration) bool {
		over := r.over.Load()
		return over == nil || time.Since(*over) < patience
	}
	askNode(r.d, n, errand{limit, !r.d.broken.equal, needed}, func(ctx context.Context) ([]driver.RenewResult, error) {
		if b, ok := driver.As[driver.BatchRenewer](n.Driver); ok {
			res := b.RenewBatch(ctx, reqs)
			return res, allFailed(res)
		}
		res := make([]driver.RenewResult, len(reqs))
		for k, req := range reqs {
			res[k].Grant, res[k].Err = n.Renew(ctx, req)
		}
		return res, allFailed(res)
	}, func(res []driver.RenewResult, err error) {
		for k, j := range which {
			if res == nil {
				r.heard(i, j, reqs[k], driver.Grant{}, err)
			} else {
				r.heard(i, j, reqs[k], res[k].Grant, res[k].Err)
			}
		}
		select {
		case r.changed <- struct{}{}:
		default:
		}
	})
}

// allFailed returns the failure if the node has done nothing for anybody.
func allFailed(res []driver.RenewResult) error {
	for _, one := range res {
		if !silent(one.Err) {
			return nil
		}
	}
	return res[0].Err
}

// heard takes the answer of node i about term j, early or late.
func (r *renewal) heard(i, j int, req *driver.RenewRequest, g driver.Grant, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	y := &r.tallies[j]
	y.open--
	y.heard[i] = err
	switch {
	case err == nil:
		y.did++
		if y.token == nil {
			y.token = map[driver.Token]int{}
		}
		y.token[g.Token]++
	case errors.Is(err, driver.ErrBroken):
		y.broke = err
	case errors.Is(err, driver.ErrGone):
		y.gone++
	case errors.Is(err, driver.ErrTokenPassed) && y.req.Floor != 0:
		y.past = err
	}
	if t := y.term; t != nil {
		t.mu.Lock()
		defer t.mu.Unlock()
		switch {
		case err == nil:
			t.at[i].token = g.Token
		case errors.Is(err, driver.ErrTokenPassed):
			t.at[i].token = max(t.at[i].token, req.Floor)
		case errors.Is(err, driver.ErrGone) && !errors.Is(err, driver.ErrBroken) && t.at[i].state == granted: // it may be asked again by now
			t.at[i] = place{ghost: t.at[i].ghost}
		}
	}
}

// decided says whether nothing that can still come changes a result.
func (r *renewal) decided() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for j := range r.tallies {
		if y := &r.tallies[j]; y.fail == nil && y.did < r.d.need && y.did+y.open >= r.d.need {
			return false
		}
	}
	return true
}

func (r *renewal) results(ctx context.Context) []driver.RenewResult {
	out := make([]driver.RenewResult, len(r.tallies))
	r.mu.Lock()
	defer r.mu.Unlock()
	for j := range r.tallies {
		out[j].Grant, out[j].Err = r.result(ctx, &r.tallies[j])
	}
	return out
}

func (r *renewal) result(ctx context.Context, y *tally) (driver.Grant, error) {
	d, key := r.d, y.req.Ref.Key
	switch {
	case y.fail != nil:
		return driver.Grant{}, y.fail
	case y.did >= d.need:
		return driver.Grant{Token: d.confirmed(y, r.sent)}, nil
	case y.broke != nil && y.did+y.open < d.need:
		return driver.Grant{}, failure("renew", key, y.broke)
	case y.gone > len(d.nodes)-d.need:
		if t := y.term; t != nil {
			// What a minority still has runs out by itself: the holder may not hear of this, and believe in it until its deadline.
			d.forget(t)
			t.mu.Lock()
			t.phase = superseded
			t.mu.Unlock()
		}
		return driver.Grant{}, failure("renew", key, fmt.Errorf("%w at %d of %d nodes", driver.ErrGone, y.gone, len(d.nodes)))
	case y.past != nil && y.did+y.open < d.need:
		return driver.Grant{}, failure("renew", key, y.past)
	}
	e := &NoMajorityError{
		Verb: "renew", Key: key, Did: y.did, Answered: y.did + y.gone, Of: len(d.nodes), Need: d.need,
		interruptedErr: d.interrupted(ctx),
	}
	if y.open == 0 && y.did+y.gone < d.need {
		e.interruptedErr = nil
	}
	for i, err := range y.heard {
		if errors.Is(err, driver.ErrDamaged) { // the others that have spoken are counted
			e.Answered++
		}
		if err != nil {
			e.Nodes = append(e.Nodes, NodeFailure{d.nodes[i].name, err})
		}
	}
	return driver.Grant{}, e
}

// confirmed moves the deadline of a term that a majority has confirmed, and returns its token.
func (d *Driver) confirmed(y *tally, sent time.Time) driver.Token {
	t := y.term
	if t == nil {
		var token driver.Token
		for k, n := range y.token {
			if most := y.token[token]; n > most || n == most && k < token {
				token = k
			}
		}
		return token
	}
	t.mu.Lock()
	if y.req.Floor != 0 {
		t.token = y.req.Floor
	}
	if end := sent.Add(y.req.TTL); end.After(t.deadline) {
		t.deadline = end
	}
	t.ttl, t.minHold = y.req.TTL, 0
	var seeds []int
	if t.phase == held && time.Now().Before(t.deadline) && !d.broken.seeds {
		for i := range t.at {
			if p := &t.at[i]; p.state != granted && p.state != asking && !p.seeds {
				p.seeds = true
				seeds = append(seeds, i)
			}
		}
	}
	token := t.token
	t.mu.Unlock() // whoever has d.mu may wait for it
	for _, i := range seeds {
		if !d.background(function(func() { t.seed(i, 0) })) {
			t.mu.Lock()
			t.at[i].seeds = false
			t.mu.Unlock()
		}
	}
	return token
}

const (
	// A node may be granted for a moment to an attempt that fails, so a seed is repeated this often, with pauses that double.
	seedTries = 6
	seedPause = 5 * time.Millisecond
)

// seed gives a term that a majority has just confirmed to a node that does not have it: one that was down, or lost it, or
// granted another attempt which has failed. The node counts when its answer has arrived before the term's deadline, that
// is, if the term has stood without a gap from before the request to after the answer.
func (t *term) seed(i, tries int) {
	t.mu.Lock()
	if t.phase != held || !time.Now().Before(t.deadline) {
		t.at[i].seeds = false
		t.mu.Unlock()
		return
	}
	t.at[i].state = asking // from here on, what ends the term waits for the answer
	t.floor = t.token
	t.mu.Unlock()
	t.askFor([]int{i}, t.stands, func() {
		t.mu.Lock()
		again := t.phase == held && t.at[i].state == refused && tries < seedTries
		if again && t.d.broken.pause {
			t.at[i].state = asking
		}
		t.at[i].seeds = again
		t.mu.Unlock()
		if !again {
			return
		}
		if t.d.sleep(t.d.ctx, seedPause<<tries/2+t.d.random(seedPause<<tries)) == nil {
			t.seed(i, tries+1)
		}
	})
}
