package quorumhold

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// A term is one that this driver tries to get, or holds, and where. It is kept as long as the caller holds it, so that
// nodes which answer late, or have forgotten it, can be brought up.
type term struct {
	d      *Driver
	ref    driver.Ref // as the caller knows it
	node   driver.Ref // as the nodes know it; see sibling
	holder driver.Holder
	ttl    time.Duration

	changed chan struct{} // holds one poke, for whoever waits for answers

	mu       sync.Mutex
	phase    phase
	minHold  time.Duration
	floor    driver.Token
	began    time.Time    // when the caller asked for it
	given    driver.Token // the token of the term, if it stands and is given to nodes that lack it
	before   *term        // of the same nonce, which this one is to replace, if that stands
	token    driver.Token // 0 as long as no majority has granted
	deadline time.Time    // the sending of the last confirmed request + ttl
	won      time.Time    // a majority has granted
	at       []place
}

type phase uint8

const (
	trying     phase = iota
	held             // a majority has confirmed it
	superseded       // another term of the same nonce has taken its place
	ended            // released, gone or given up: whatever still turns up at a node is given back
)

// A place is what is known about the term at one node.
type place struct {
	state standing
	token driver.Token
	grant driver.Grant
	other *driver.Term // who stands there instead, if refused
	err   error        // if failed or declined
	moved bool         // a raise of the token is on its way
	seeds bool         // see seed: a request is on its way, or one will be after a pause
	ghost bool         // a request to start it was never answered: it may come to stand although nobody is told
	then  *polled      // to be sent when a request that is on its way is answered
}

type standing uint8

const (
	absent   standing = iota // it certainly does not stand there, or is not known to
	asking                   // a request is on its way
	granted                  // it stands there, as of the last answer
	refused                  // another one does
	failed                   // no answer: it may stand there, now or later
	declined                 // the node has certainly done nothing
)

func (d *Driver) newTerm(req *driver.AcquireRequest, nonce string) *term {
	return &term{
		d: d, ref: req.Ref, node: driver.Ref{Key: req.Ref.Key, Nonce: nonce}, holder: req.Holder, ttl: req.TTL,
		minHold: req.MinHold, began: time.Now(), changed: make(chan struct{}, 1), at: make([]place, len(d.nodes)),
	}
}

func (t *term) poke() {
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// ask sends the request to start the term to some nodes.
func (t *term) ask(which []int) { t.askFor(which, t.needs, nil) }

// askFor is ask as long as it is needed, and calls then after each answer, if it is not nil.
func (t *term) askFor(which []int, needed func(time.Duration) bool, then func()) {
	t.mu.Lock()
	for _, i := range which {
		t.at[i].state = asking
	}
	req := &driver.AcquireRequest{
		Ref: t.node, TTL: t.d.stretch(t.ttl), MinHold: t.d.stretch(t.minHold), Floor: t.floor, Holder: t.holder,
	}
	if t.given != 0 && !t.d.broken.own {
		req.Seed, req.Since = t.given, t.began
	}
	how := errand{needed: needed}
	t.mu.Unlock()
	all, now := make([]acquire, len(which)), time.Now()
	for k, i := range which {
		a := &all[k]
		*a = acquire{call: call{d: t.d, n: t.d.nodes[i], errand: how, what: a}, term: t, at: i, req: req, then: then}
		a.send(now)
	}
}

// An acquire asks one node to start a term.
type acquire struct {
	call
	term  *term
	at    int
	req   *driver.AcquireRequest
	then  func()
	grant driver.Grant
}

func (a *acquire) ask(ctx context.Context) (err error) {
	a.grant, err = a.n.Acquire(ctx, a.req)
	return err
}

func (a *acquire) told(err error) {
	a.term.answered(a.at, a.grant, err)
	if a.then != nil {
		a.then()
	}
}

// needs says whether a request to start the term, or to raise its token, is still needed where it has waited for its turn.
func (t *term) needs(waited time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch t.phase {
	case trying:
		return true
	case held:
		return t.won.IsZero() || min(waited, time.Since(t.won)) < patience
	default:
		return false
	}
}

// stands is needs of a seed. There is one at a time for each term and node, and whoever holds the lock for longer relies on it.
func (t *term) stands(time.Duration) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.phase == held && time.Now().Before(t.deadline)
}

// answered takes the answer of node i to ask, early or late.
func (t *term) answered(i int, g driver.Grant, err error) {
	t.mu.Lock()
	p := &t.at[i]
	then, ghost, seeds := p.then, p.ghost, p.seeds
	if *p = (place{state: granted, token: g.Token, grant: g}); err != nil {
		*p = notGranted(err)
	}
	// One that was not answered may arrive after the answer to the next one.
	ghost = p.state == failed || ghost && !t.d.broken.ghosts
	p.ghost, p.seeds = ghost, seeds
	giveBack, raise := false, false
	switch t.phase {
	case trying:
		raise = p.state == granted && t.token != 0 && p.token < t.token
	case held:
		// Late, but the term stands: this node keeps it, so that the next node that fails does not end it.
		late := !time.Now().Before(t.deadline)
		raise = p.state == granted && !late && p.token < t.token
		if giveBack = p.state == granted && late; giveBack {
			*p = place{ghost: ghost, seeds: seeds}
			t.d.retired.add(t.ref, 1)
		}
	case ended:
		giveBack = then == nil && (p.state == granted || ghost)
		if !giveBack {
			t.d.retired.add(t.ref, -1)
		}
	}
	p.moved = raise
	open := t.open()
	t.mu.Unlock()
	if !open { // whoever waits need not look otherwise: to be woken costs as much as the answer
		t.poke()
	}
	switch {
	case then != nil:
		then.begin()
	case raise:
		t.raise(i)
	case giveBack:
		t.giveBack(i, ghost)
	}
}

// notGranted is what is known of a node that has answered a request to start a term with an error.
func notGranted(err error) place {
	var other *driver.HeldError
	switch {
	case errors.As(err, &other):
		return place{state: refused, other: &other.Term}
	case errors.Is(err, driver.ErrNotApplied), errors.Is(err, driver.ErrAbstains):
		return place{state: declined, err: err}
	default:
		return place{state: failed, err: err}
	}
}

// open says whether the vote may still be won and is not yet, so that judge calls it undecided. Runs under t.mu.
func (t *term) open() bool {
	mine, open := 0, 0
	for i := range t.at {
		switch t.at[i].state {
		case granted:
			mine++
		case asking:
			open++
		}
	}
	return t.phase == trying && t.token == 0 && mine < t.d.need && mine+open >= t.d.need
}

// whenAnswered begins p when its node has answered to the request to start the term. What ends the term there is not sent before,
// since it could overtake that, and the node would have to remember for minutes not to grant it.
func (t *term) whenAnswered(p *polled) {
	t.mu.Lock()
	if t.at[p.at].state == asking {
		t.at[p.at].then = p
		t.mu.Unlock()
		return
	}
	t.mu.Unlock()
	p.begin()
}

// ghost says whether the term may come to stand at node i although nobody was told.
func (t *term) ghost(i int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at[i].ghost
}

// lacking says whether the term certainly does not stand at node i, nor will.
func (t *term) lacking(i int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch p := &t.at[i]; p.state {
	case absent, refused:
		return !p.ghost
	case declined:
		return !p.ghost && !t.d.broken.waste
	default:
		return false
	}
}

// inherit takes over what is known of a term of the same nonce that this one is to replace. If that stands, nodes which do not have it
// are asked to begin with its token, or they could outvote those that have it, and the caller would be told two tokens of one term.
func (t *term) inherit(old *term) {
	old.mu.Lock()
	defer old.mu.Unlock()
	t.node = old.node
	if old.phase == held && time.Now().Before(old.deadline) {
		t.given, t.began, t.before = old.token, old.began, old
	}
	for i := range old.at {
		t.at[i].ghost = old.at[i].ghost || old.at[i].state == asking
	}
}

// yield ends a term that was to replace one which stands, and could not. That one goes on. Where it was not known to stand it may do so
// now, so its release is told there as well. It reports whether any node may have heard of this one.
func (t *term) yield() (heard bool) {
	t.mu.Lock()
	t.phase = superseded
	asked := make([]bool, len(t.at))
	for i := range t.at {
		s := t.at[i].state
		asked[i] = s == asking || s == granted || s == failed
		heard = heard || asked[i]
	}
	t.mu.Unlock()
	t.before.mu.Lock()
	defer t.before.mu.Unlock()
	for i := range asked {
		if p := &t.before.at[i]; asked[i] && p.state != granted {
			p.ghost = true
		}
	}
	return heard
}

// raise orders node i to set the token to that of the term. The node does so only while the term stands there.
func (t *term) raise(i int) {
	n := t.d.nodes[i]
	t.mu.Lock()
	req := &driver.RenewRequest{Ref: t.node, TTL: t.d.stretch(t.ttl), Floor: t.token}
	how := errand{urgent: !t.d.broken.equal, needed: t.needs}
	t.mu.Unlock()
	askNode(t.d, n, how, func(ctx context.Context) (driver.Grant, error) { return n.Renew(ctx, req) },
		func(g driver.Grant, err error) {
			t.mu.Lock()
			p := &t.at[i]
			p.moved = false
			switch {
			case err == nil:
				p.token = g.Token
			case errors.Is(err, driver.ErrTokenPassed):
				p.token = req.Floor + 1 // past it, by how much does not matter
			case errors.Is(err, driver.ErrGone):
				if p.state == granted { // it may be asked again by now
					*p = place{ghost: p.ghost}
				}
			default:
				p.err = err
			}
			t.mu.Unlock()
			t.poke()
		})
}

// end gives the term back wherever it stands or may come to stand.
func (t *term) end() {
	t.mu.Lock()
	var which []int
	ghost := make([]bool, len(t.at))
	if t.phase != ended {
		t.phase = ended
		for i := range t.at {
			switch p := &t.at[i]; {
			case p.state == asking: // when it is answered
				t.d.retired.add(t.ref, 1)
			case p.state == granted || p.ghost:
				which = append(which, i)
				ghost[i] = p.ghost
				t.d.retired.add(t.ref, 1)
			}
		}
	}
	t.mu.Unlock()
	for _, i := range which {
		t.giveBack(i, ghost[i])
	}
}

// giveBack gives the term back to node i, now or when it answers again. There was no work under it, so its key need not be
// kept. The nonce, which the caller has counted as retired, is not used again until that is done. If the term is a ghost, one
// that may still come to stand there, the node is to refuse it; to remember that of each would make its key slow. So is it if
// it did not confirm this: the undo may still be on its way, and must not end another term of the nonce.
func (t *term) giveBack(i int, ghost bool) {
	n := t.d.nodes[i]
	done := func() { t.d.retired.add(t.ref, -1) }
	t.mu.Lock()
	x := debt{
		release: driver.ReleaseRequest{Ref: t.node, Undo: true, Answered: !ghost}, until: time.Now().Add(max(t.ttl, t.minHold)), paid: done,
	}
	t.mu.Unlock()
	askNode(t.d, n, errand{}, func(ctx context.Context) (struct{}, error) { return struct{}{}, n.Release(ctx, &x.release) },
		func(_ struct{}, err error) {
			if unheard(err) {
				again := x
				again.release.Answered = again.release.Answered && t.d.broken.ghosts
				n.owe(again)
			} else {
				done()
			}
		})
}

// retirement counts, for each ref whose term is being given back, the nodes that have not confirmed it.
type retirement struct {
	mu    sync.Mutex
	nodes map[driver.Ref]int
}

func (r *retirement) add(ref driver.Ref, n int) {
	if n == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nodes[ref] += n; r.nodes[ref] <= 0 {
		delete(r.nodes, ref)
	}
}

func (r *retirement) has(ref driver.Ref) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.nodes[ref] > 0
}
