package quorumhold

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// A Driver keeps terms at a majority of nodes. It implements driver.Driver, BatchRenewer, Waiter, Lister and Breaker, the
// last three as far as the nodes do. It is safe for concurrent use. Every call returns within a moment after its ctx has
// ended, whatever the nodes do.
type Driver struct {
	nodes  []*node
	need   int // answers that are a majority
	opts   Options
	traits driver.Traits

	// random returns a duration below the given one; tests make it repeatable.
	random  func(time.Duration) time.Duration
	flights int // calls of one node that may be under way; maxInFlight
	broken  broken

	ctx    context.Context // of what repeats in the background; ended by Close
	cancel context.CancelFunc
	looks  context.Context // of calls that change nothing; ended as soon as Close begins
	blind  context.CancelFunc

	mu      sync.Mutex
	closed  bool
	closing chan struct{}
	stats   stats
	running int           // calls of background, each of which has at most one call of a node under way
	rested  []*worker     // wait for work
	idle    chan struct{} // made by Close, closed when running is 0
	terms   map[driver.Ref]*term
	watches map[*watch]struct{}
	swept   time.Time // see forget.go
	timers  sync.Pool // see limit.go

	retired retirement
	pace    atomic.Int64 // ns that the last round took until it was decided
}

const (
	// drift is how much longer than asked nodes keep a term: their clocks may run faster than the holder's by 1%, and Redis
	// counts in whole milliseconds. See the package comment.
	driftShare = 100
	driftFixed = 2 * time.Millisecond
	// tokenLead is how far ahead of its own clock a caller proposes tokens. Nodes whose clocks differ from the caller's by less
	// then all answer with the proposal, and one round trip is enough.
	tokenLead = 500 * time.Millisecond

	defaultMaxTTL      = 30 * time.Second
	defaultNodeTimeout = time.Second
)

// NewDriver returns a driver on a majority of nodes; programs use Open. Close closes the nodes.
func NewDriver(nodes []driver.Driver, opts *Options) (*Driver, error) {
	o := Options{}
	if opts != nil {
		o = *opts
	}
	o.MaxTTL = cmp.Or(o.MaxTTL, defaultMaxTTL)
	o.NodeTimeout = cmp.Or(o.NodeTimeout, defaultNodeTimeout)
	switch n := len(nodes); {
	case n == 0:
		return nil, errors.New("quorumhold: there are no nodes")
	case n < 3 && !o.AllowWeak:
		return nil, fmt.Errorf("quorumhold: %d nodes survive no failure; use 3 or 5, or set AllowWeak", n)
	case n%2 == 0 && !o.AllowWeak:
		return nil, fmt.Errorf("quorumhold: %d nodes survive no more failures than %d; use an odd number, or set AllowWeak", n, n-1)
	case o.MaxTTL < 0 || o.NodeTimeout < 0:
		return nil, fmt.Errorf("quorumhold: MaxTTL %s and NodeTimeout %s must not be negative", o.MaxTTL, o.NodeTimeout)
	case len(o.Names) != 0 && len(o.Names) != n:
		return nil, fmt.Errorf("quorumhold: %d names for %d nodes", len(o.Names), n)
	}
	d := &Driver{
		need: len(nodes)/2 + 1, opts: o, random: rand.N[time.Duration], flights: maxInFlight, closing: make(chan struct{}),
		terms: map[driver.Ref]*term{}, watches: map[*watch]struct{}{}, retired: retirement{nodes: map[driver.Ref]int{}},
	}
	names := map[string]int{}
	for i, drv := range nodes {
		name := drv.Traits().Location
		if len(o.Names) > 0 {
			name = o.Names[i]
		}
		if twin, ok := names[name]; ok {
			return nil, fmt.Errorf("quorumhold: nodes %d and %d are both %s: the nodes have to be different stores", twin+1, i+1, name)
		}
		names[name] = i
		if drv.Traits().Fencing == driver.NoTokens {
			return nil, fmt.Errorf("quorumhold: node %s has no tokens, so a quorum could not agree on any", name)
		}
		d.nodes = append(d.nodes, &node{Driver: drv, name: name})
	}
	d.traits = d.makeTraits()
	if d.opts.MaxTTL = d.traits.MaxTTL; d.opts.MaxTTL < 4*d.traits.MinTTL {
		return nil, fmt.Errorf("quorumhold: MaxTTL %s is too short for nodes whose shortest TTL is %s", d.opts.MaxTTL, d.traits.MinTTL)
	}
	d.ctx, d.cancel = context.WithCancel(context.Background())
	d.looks, d.blind = context.WithCancel(d.ctx)
	return d, nil
}

// broken are rules that tests switch off, to see that they are needed.
type broken struct {
	raise bool // laggards of the majority are not raised
	drift bool // nodes are asked for the bare TTL
	seeds bool // nodes that lack a term are not given it
	doubt bool // nodes that do not answer are asked all the same
	busy  bool // calls of a node that has enough to do are not made
	hoard bool // calls that nobody needs any more are made when their turn comes
	equal bool // renewals wait for their turn like all other calls
	waste bool // a release is sent to nodes that were never asked to start the term
	pause bool // a node that is to be asked again after a pause counts as one that is being asked
	// Close waits for nodes that hang as well.
	patience bool
	// Of several requests to start a term at a node only the last counts, and what is not confirmed is repeated as it was.
	ghosts bool
}

// makeTraits takes the weakest of the nodes for each fact.
func (d *Driver) makeTraits() driver.Traits {
	t := d.nodes[0].Traits()
	var names []string
	for _, n := range d.nodes {
		one := n.Traits()
		names = append(names, n.name)
		t.Scope, t.Fencing = min(t.Scope, one.Scope), min(t.Fencing, one.Fencing)
		t.Forgets, t.Clock = max(t.Forgets, one.Forgets), max(t.Clock, one.Clock)
		t.MinTTL, t.TTLStep = max(t.MinTTL, one.MinTTL), max(t.TTLStep, one.TTLStep)
		if one.MaxTTL > 0 {
			d.opts.MaxTTL = min(d.opts.MaxTTL, one.MaxTTL*driftShare/(driftShare+1)-driftFixed)
		}
	}
	if d.opts.Abstaining && t.Forgets == driver.OnRestart {
		t.Forgets = driver.AbstainsAfterLoss
	}
	slices.Sort(names)
	t.Name = "quorum"
	t.Location = cmp.Or(d.opts.Location, fmt.Sprintf("quorum of %d: %s", len(names), strings.Join(names, "; ")))
	t.MaxTTL = d.opts.MaxTTL
	t.TTLStep += d.stretch(t.MaxTTL) - t.MaxTTL
	t.FIFO, t.Transactional, t.Prompt = false, false, true
	t.Records = driver.NoRecords // a job finished on one majority could look unfinished to another
	return t
}

// stretch returns how long a node is asked to keep what has to last for t by the clock of this process.
func (d *Driver) stretch(t time.Duration) time.Duration {
	if t <= 0 {
		return 0
	}
	if d.broken.drift {
		return t
	}
	return t + min(t, d.opts.MaxTTL)/driftShare + driftFixed
}

// Traits implements driver.Driver.
func (d *Driver) Traits() driver.Traits { return d.traits }

// work is what is done in the background.
type work interface{ run() }

type function func()

func (f function) run() { f() }

// background runs f on a goroutine that Close waits for. It reports false if the driver is closed.
func (d *Driver) background(f work) bool {
	d.mu.Lock()
	if d.idle != nil && d.running == 0 {
		d.mu.Unlock()
		return false // Close no longer waits
	}
	d.running++
	var w *worker
	if last := len(d.rested) - 1; last >= 0 {
		w, d.rested = d.rested[last], d.rested[:last]
	}
	d.mu.Unlock()
	if w != nil {
		w.work <- f
		return true
	}
	w = &worker{work: make(chan work, 1)}
	w.work <- f
	go d.run(w)
	return true
}

// A worker is a goroutine of background. Some of them wait for the next call when they have made one: their stacks have
// grown as far as clients need, which costs a new goroutine as much as half of the call.
type worker struct{ work chan work }

// maxRested is how many workers wait for each node. With 64 callers a tenth of the throughput is lost with 2.
const maxRested = 16

func (d *Driver) run(w *worker) {
	for f := range w.work {
		f.run()
		d.mu.Lock()
		if d.running--; d.running == 0 && d.idle != nil {
			close(d.idle)
		}
		rest := d.idle == nil && len(d.rested) < maxRested*len(d.nodes)
		if rest {
			d.rested = append(d.rested, w)
		}
		d.mu.Unlock()
		if !rest {
			return
		}
	}
}

// usable says why a call cannot be made.
func (d *Driver) usable(ctx context.Context, verb, key string) error {
	err := ctx.Err()
	select {
	case <-d.closing:
		err = driver.ErrClosed
	default:
	}
	if err != nil {
		return fmt.Errorf("quorumhold: %s %q: %w (%w)", verb, key, err, driver.ErrNotApplied)
	}
	return nil
}

// interrupted says why a call has to end now, or nil.
func (d *Driver) interrupted(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-d.closing:
		return driver.ErrClosed
	default:
		return nil
	}
}
