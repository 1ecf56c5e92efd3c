package holdlock

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// line looks after the places of this client in the waiting lines of a store that keeps them (driver.Queue), with one
// goroutine and one subscription, while there are any. Its heartbeat, one call for all places, keeps them and tells what has
// become of them; a message from the store, a push, tells sooner.
//
// A push must not be trusted from the moment it arrives: it may have been on its way for any time. What is certain is that
// the term had not begun when a call was sent that was answered with the place still waiting. So:
//
//	push:       trust = sending of the last call whose answer listed this nonce as waiting + granted − margin
//	heartbeat:  trust = sending of the heartbeat + TTL − margin, for it re-arms the term that it reports
//
// Each nonce has one outcome. After that its place is forgotten, so a stale push finds nobody, and no nonce is used twice. What is
// granted to a nonce that was given up, and is not given back yet, is given back at once: the undoer knows those. One that somebody
// is about to take is not among them.
type line struct {
	c      *Client
	queue  driver.Queue
	ctx    context.Context // of heartbeats; ended by stop
	cancel context.CancelFunc
	wake   chan struct{}
	wg     sync.WaitGroup

	mu      sync.Mutex
	running bool
	places  map[string]*place // by nonce
	last    uint64            // the number of the newest
	now     bool              // attend at once: messages may have been lost

	listening bool      // or about to
	notBefore time.Time // the next try to
}

// A place is one nonce in line.
type place struct {
	req     *driver.AcquireRequest
	number  uint64        // later ones have higher ones
	inLine  bool          // the store has listed it
	listed  instant       // when the last call was sent that was answered with this nonce waiting
	due     time.Time     // when the term before it ends, if it is the next in line; else zero
	settled chan struct{} // closed when outcome is set; made when the place is listed
	outcome *outcome
	failed  int   // heartbeats in a row that failed
	failure error // of the last of them; nil if none did since the last answer about this place
	lasting bool  // and it was told that it will not pass
}

// An outcome is what has become of a place.
type outcome struct {
	granted bool // false: the store does not know the nonce
	grant   driver.Grant
	sent    instant       // trust counts from here
	lasts   time.Duration // how long the term lasts from then on, at least
	pushed  bool
}

const (
	beatEvery = time.Second // or sooner, see next
	beatLeast = 100 * time.Millisecond
	beatAfter = 2 * time.Millisecond // the end of the term before
)

func newLine(c *Client, q driver.Queue) *line {
	ctx, cancel := context.WithCancel(context.Background())
	return &line{c: c, queue: q, ctx: ctx, cancel: cancel, wake: make(chan struct{}, 1), places: map[string]*place{}}
}

// enqueue is Enqueue, called after sent, with the place if there is one. It is known before the answer comes, since a push
// can be faster.
func (l *line) enqueue(ctx context.Context, sent instant, req *driver.AcquireRequest) (*place, driver.Grant, error) {
	p := &place{req: req, listed: sent}
	l.mu.Lock()
	l.last++
	p.number = l.last
	l.places[req.Ref.Nonce] = p
	l.mu.Unlock()
	g, err := l.queue.Enqueue(ctx, req)
	var held *driver.HeldError
	if errors.As(err, &held) && held.Place > 0 {
		l.attend(p, held)
		return p, g, err
	}
	_ = l.drop(p) // it never stood in line
	return nil, g, err
}

// attend begins to look after a place that the store has listed.
func (l *line) attend(p *place, held *driver.HeldError) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p.settled = make(chan struct{})
	if p.outcome != nil { // a push was faster than the answer
		close(p.settled)
	}
	if l.ctx.Err() != nil || l.places[p.req.Ref.Nonce] != p {
		return
	}
	p.inLine = true
	p.stands(held.Place, held.Term.Remaining)
	if !l.running {
		l.running = true
		l.wg.Go(l.run)
		return
	}
	l.poke() // its heartbeat may be due sooner than that of the others
}

func (l *line) poke() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// drop forgets a place that is given up. It returns how the store has failed since it last answered about that place, or nil.
func (l *line) drop(p *place) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.places, p.req.Ref.Nonce)
	return p.failure
}

// settle ends a place with an outcome. Called with mu held.
func (l *line) settle(p *place, o outcome) {
	delete(l.places, p.req.Ref.Nonce)
	p.outcome = &o
	if p.settled != nil {
		close(p.settled)
	}
}

// hear takes a message from the store.
func (l *line) hear(m driver.Push) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.places[m.Nonce]; p != nil {
		l.settle(p, outcome{granted: true, grant: m.Grant, sent: p.listed, lasts: m.TTL, pushed: true})
		return
	}
	if m.Nonce == "" {
		l.now = true
		l.poke()
		return
	}
	l.c.undoer.granted(m.Nonce)
}

// run attends to the places until there is none.
func (l *line) run() {
	last := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		l.listen()
		next, budget, more := l.next(last)
		if !more {
			return
		}
		timer.Reset(time.Until(next))
		select {
		case <-l.wake:
			continue
		case <-timer.C:
		case <-l.ctx.Done():
			continue
		}
		last = time.Now()
		l.beat(budget)
	}
}

// next says when the next heartbeat is due and how long it may take, or that nobody waits any more.
func (l *line) next(last time.Time) (at time.Time, budget time.Duration, more bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	waiting := l.waiting()
	if len(waiting) == 0 || l.ctx.Err() != nil {
		l.running = false
		return at, 0, false
	}
	// A pushed grant is trusted from the last heartbeat on, so heartbeats must be much closer together than grants last.
	interval := beatEvery
	for _, p := range waiting {
		interval = min(interval, p.req.TTL/4)
	}
	budget = min(max(interval, beatLeast), l.c.timeout) // one that hangs must not hold up the next
	at = last.Add(interval)
	if l.now {
		l.now = false
		return time.Time{}, budget, true
	}
	for _, p := range waiting { // the expiry of a holder wakes nobody, so the next in line looks for itself
		if !p.due.IsZero() && p.due.Before(at) {
			at = p.due
		}
	}
	return at, budget, true
}

// listen makes the store push, beside the heartbeats, if it does not yet. Where it cannot, waiters are told by heartbeats.
func (l *line) listen() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listening || time.Now().Before(l.notBefore) || l.ctx.Err() != nil {
		return
	}
	l.listening, l.notBefore = true, time.Now().Add(beatEvery)
	l.wg.Go(func() {
		_, err := call(l.ctx, l.c, l.c.timeout, func(ctx context.Context) (struct{}, error) {
			return struct{}{}, l.queue.Listen(ctx, l.hear)
		}, discard)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.listening = err == nil
		l.now = err == nil // what was pushed before is lost
		l.poke()
	})
}

// beat sends one heartbeat for all places and hands out the answers.
func (l *line) beat(budget time.Duration) {
	l.mu.Lock()
	places := l.waiting()
	// In their order, in which a store can look for them with the least effort.
	slices.SortFunc(places, func(a, b *place) int { return cmp.Compare(a.number, b.number) })
	reqs := make([]*driver.AcquireRequest, len(places))
	for i, p := range places {
		reqs[i], p.due = p.req, time.Time{}
	}
	l.mu.Unlock()
	if len(places) == 0 {
		return
	}
	sent := l.c.clock.now()
	standings, err := call(l.ctx, l.c, budget, func(ctx context.Context) ([]driver.Standing, error) {
		return l.queue.Attend(ctx, reqs), nil
	}, discard)
	if err != nil && l.ctx.Err() != nil {
		return
	}
	if err != nil { // no answer: the places stand as they did
		standings = make([]driver.Standing, len(places))
		for i := range standings {
			standings[i].Err = err
		}
	}
	events, again := l.failing(places, standings)
	if again {
		l.c.undoer.answers()
	}
	defer l.tell(events)
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, p := range places {
		s := standings[i]
		switch {
		case s.Err != nil: // no answer
		case l.places[p.req.Ref.Nonce] != p: // settled meanwhile, or given up
			if s.Granted {
				l.c.undoer.granted(p.req.Ref.Nonce)
			}
		case s.Granted:
			l.settle(p, outcome{granted: true, grant: s.Grant, sent: sent, lasts: max(p.req.TTL, p.req.MinHold)})
		case s.Place == 0:
			l.settle(p, outcome{})
		default:
			p.listed = sent
			p.stands(s.Place, s.Remaining)
		}
	}
}

// failuresTold is how many heartbeats have to fail before it is told: one or two are common where a primary changes.
const failuresTold = 3

// failing counts the heartbeats that failed, and returns what is to be told: once for each place, until one succeeds, and once more
// if it has become a failure that will not pass. It also says whether the store answers again about one of them.
func (l *line) failing(places []*place, standings []driver.Standing) (events []Event, again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, p := range places {
		if standings[i].Err == nil {
			again = again || p.failed > 0
			p.failed, p.failure, p.lasting = 0, nil, false
			continue
		}
		p.failure = standings[i].Err
		p.failed++
		worse := lasts(p.failure) && !p.lasting
		if (p.failed == failuresTold || p.failed > failuresTold && worse) && l.places[p.req.Ref.Nonce] == p {
			p.lasting = lasts(p.failure)
			name, key := splitStoreKey(p.req.Ref.Key)
			events = append(events, Event{Kind: WaitFailing, Name: name, Key: key, Err: standings[i].Err})
		}
	}
	return events, again
}

func (l *line) tell(events []Event) {
	for _, e := range events {
		l.c.emit(e)
	}
}

// waiting returns the places that are in line. Called with mu held.
func (l *line) waiting() (in []*place) {
	for _, p := range l.places {
		if p.inLine {
			in = append(in, p)
		}
	}
	return in
}

// stands remembers when the next in line has to look.
func (p *place) stands(n int, remaining time.Duration) {
	p.due = time.Time{}
	if n == 1 {
		p.due = time.Now().Add(max(0, remaining) + beatAfter)
	}
}

// stop ends the goroutine and waits for it.
func (l *line) stop() {
	l.mu.Lock()
	l.cancel()
	l.mu.Unlock()
	l.wg.Wait()
}
