package redishold

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
)

// Callers at the same time share pipelines, since most of what a short script costs is the way to the server and back. A
// caller who finds nobody under way, or one only, is sent at once and alone. As long as less than maxFlights are under way, the
// others set off at once as well; then they queue, and whoever comes back takes those who have come meanwhile along, as one
// pipeline. So nobody waits for company, and pipelines grow by themselves when there is more to do.
//
// Each flight is a goroutine that its callers can leave behind when their time is up (R9). They harm nobody by that: a
// pipeline has a deadline of its own, the last one of its members'. A flight that does not come back soon, as on a
// connection that has died silently, is replaced.
const (
	maxFlights   = 3
	maxAlone     = 2
	maxPipeline  = 64                     // calls: few enough that the server answers the first ones soon
	flightIsLate = 200 * time.Millisecond // from then on it does not count any more
	maxHung      = 64                     // bounds the late ones
)

// sharer sends the calls of a driver. On a Cluster there is none: a pipeline over several nodes would be as slow as the
// slowest of them, or hang with it.
type sharer struct {
	client redis.UniversalClient
	direct bool // the client keeps the deadlines of contexts
	broken broken

	mu       sync.Mutex
	queue    []*member
	flights  []*flight // under way, those that are late too
	late     int
	starting bool // a flight has been started and has not taken its passengers
	closed   bool

	watch    *time.Timer // looks for late flights while somebody queues
	watching bool

	ends   *time.Timer // looks for members whose time is up
	endsAt time.Time   // zero while nobody waits

	messages sync.Pool // channels for members, without a message
}

// flight is one goroutine that sends, or one caller who sends by himself.
type flight struct {
	since   time.Time
	late    bool
	members []*member
}

// member is one call of a script.
type member struct {
	ctx    context.Context
	script *script
	keys   []string
	args   []any
	turn   turn      // in the place of args
	slot   [1]string // keys of most turns
	reply  any       // turns have theirs in turn
	err    error

	budget   bool // ctx ends by its deadline alone: the sharer sees to it
	deadline time.Time
	done     chan struct{} // has one message when state is set
	state    atomic.Int32
}

// The states of a member.
const (
	waiting  = iota
	answered // what was answered is in reply and err
	left     // its time was up, or the driver was closed; it may still be under way
	unsent   // the same, and it never will be
)

// settle gives a member its last state, once.
func (s *sharer) settle(r *member, state int32) {
	switch {
	case s.broken.sure && state == left:
		state = unsent
	case s.broken.vague && state == unsent:
		state = left
	}
	if r.state.CompareAndSwap(waiting, state) {
		r.done <- struct{}{}
	} else if s.broken.twice {
		r.state.Store(state)
	}
}

func newSharer(client redis.UniversalClient) *sharer {
	s := &sharer{client: client}
	if c, ok := client.(*redis.Client); ok {
		o := c.Options()
		s.direct = o.ContextTimeoutEnabled && o.ReadTimeout >= 0 && o.WriteTimeout >= 0 // below 0 deadlines are not set
	}
	s.watch = time.AfterFunc(time.Hour, s.replaceLate)
	s.watch.Stop()
	s.ends = time.AfterFunc(time.Hour, s.endWaits)
	s.ends.Stop()
	return s
}

// message returns a channel for the message of one member.
func (s *sharer) message() chan struct{} {
	if c, ok := s.messages.Get().(chan struct{}); ok {
		return c
	}
	return make(chan struct{}, 1)
}

// do sends one call and returns when it is answered or ctx ends.
func (s *sharer) do(ctx context.Context, r *member) (any, error) {
	r.ctx = ctx
	s.mu.Lock()
	switch {
	case s.closed && !s.broken.open:
		s.mu.Unlock()
		return nil, fmt.Errorf("%w (%w)", driver.ErrClosed, driver.ErrNotApplied)
	case s.late >= maxHung && !s.broken.endless:
		s.mu.Unlock()
		return nil, errHung
	}
	r.budget = driver.BudgetOnly(ctx)
	if s.direct && r.budget && len(s.queue) == 0 && s.underWay() < maxAlone {
		alone := &lone{ctx: patient{Context: ctx}}
		s.depart(&alone.flight)
		s.mu.Unlock()
		// No goroutine: the wake-ups of two would cost more than the script.
		alone.send(&alone.ctx, s.client, r)
		s.mu.Lock()
		s.arrive(&alone.flight)
		s.mu.Unlock()
		return r.reply, r.err
	}
	r.done = s.message()
	if r.budget {
		r.deadline, _ = ctx.Deadline()
		s.endAt(r.deadline)
	}
	s.queue = append(s.queue, r)
	s.dispatch()
	s.mu.Unlock()
	if r.budget {
		<-r.done
		s.messages.Put(r.done) // settle has sent, and does so once
	} else {
		select {
		case <-r.done:
			s.messages.Put(r.done)
		case <-ctx.Done():
			s.leave(r)
		}
	}
	certainty, end := error(nil), ctx.Err()
	if end == nil && r.budget && !time.Now().Before(r.deadline) {
		end = context.DeadlineExceeded // the timer of ctx may be a moment later than that of endWaits
	}
	switch r.state.Load() {
	case answered:
		return r.reply, r.err
	case unsent:
		certainty = driver.ErrNotApplied
	}
	if end != nil {
		return nil, errors.Join(fmt.Errorf("no answer in time: %w", end), certainty)
	}
	return nil, errors.Join(fmt.Errorf("closed during the call: %w", driver.ErrClosed), certainty)
}

// patient is the context of a caller who sends by himself. Its channel, which takes a timer, is made when it is asked for a
// second time: go-redis looks whether a context has ended before it takes a connection, and waits for the end only if there is
// no connection to be had. One who waits at once is held to the deadline by that of the connection.
type patient struct {
	context.Context
	asked bool
}

// Done is part of context.Context.
func (p *patient) Done() <-chan struct{} {
	if !p.asked {
		p.asked = true
		return nil
	}
	return p.Context.Done()
}

var errHung = fmt.Errorf("%d calls of this store are without an answer; no more are made until one returns: %w",
	maxHung, driver.ErrNotApplied)

// leave is for a member who gives up. One who queues is taken out.
func (s *sharer) leave(r *member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.queue, r)
	if i < 0 {
		s.settle(r, left)
		return
	}
	if !s.broken.stays {
		s.queue = slices.Delete(s.queue, i, i+1)
	}
	s.settle(r, unsent)
}

// endAt sees to it that somebody looks at the waiting members at some time. As deadlines lie far ahead and answers come
// soon, the timer is hardly ever touched.
func (s *sharer) endAt(t time.Time) {
	if s.broken.forever {
		return
	}
	if s.endsAt.IsZero() || t.Before(s.endsAt) && !s.broken.later {
		s.endsAt = t
		s.ends.Reset(time.Until(t))
	}
}

// endWaits ends the waiting of members whose budget is used up.
func (s *sharer) endWaits() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.endsAt = time.Time{}
	up := func(r *member) bool {
		if !r.budget || r.state.Load() != waiting {
			return false
		}
		if now.Before(r.deadline) {
			if !s.broken.once {
				s.endAt(r.deadline)
			}
			return false
		}
		return true
	}
	s.queue = slices.DeleteFunc(s.queue, func(r *member) bool {
		if !up(r) {
			return false
		}
		s.settle(r, unsent)
		return !s.broken.stays
	})
	for _, f := range s.flights {
		for _, r := range f.members {
			if up(r) {
				s.settle(r, left)
			}
		}
	}
}

// close ends all waiting.
func (s *sharer) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	s.watch.Stop()
	s.ends.Stop()
	for _, r := range s.queue {
		s.settle(r, unsent)
	}
	if !s.broken.pending {
		s.queue = nil
	}
	for _, f := range s.flights {
		for _, r := range f.members {
			s.settle(r, left)
		}
	}
}

// underWay, depart, arrive and dispatch are called with mu held.
func (s *sharer) underWay() int { return len(s.flights) - s.late }

func (s *sharer) depart(f *flight) {
	f.since = time.Now()
	s.flights = append(s.flights, f)
}

func (s *sharer) arrive(f *flight) {
	if f.late {
		s.late--
	}
	i := slices.Index(s.flights, f)
	s.flights = slices.Delete(s.flights, i, i+1)
	s.dispatch()
}

// dispatch starts a flight for those who queue, if one may. One that is starting takes along who comes until it starts.
func (s *sharer) dispatch() {
	switch {
	case len(s.queue) == 0 || s.starting:
	case s.underWay() < maxFlights && (s.underWay() == 0 || !s.broken.company):
		s.starting = true
		f := &flight{}
		s.depart(f)
		go s.fly(f)
	case !s.watching && !s.broken.patient:
		s.watching = true
		s.watch.Reset(flightIsLate)
	}
}

// replaceLate makes room for those who queue behind flights that do not come back.
func (s *sharer) replaceLate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watching = false
	for _, f := range s.flights {
		if !f.late && time.Since(f.since) >= flightIsLate && (s.late < maxHung || s.broken.endless) {
			f.late = true
			s.late++
		}
	}
	s.dispatch()
}

// fly sends what queues until nothing does.
func (s *sharer) fly(f *flight) {
	for s.board(f) {
		s.send(f.members)
		for _, r := range f.members {
			s.settle(r, answered)
		}
	}
}

// board takes the next passengers of a flight. Without any the flight is over.
func (s *sharer) board(f *flight) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.underWay() > 1 && len(s.queue) < maxPipeline {
		s.mu.Unlock()
		runtime.Gosched() // those who were just answered ask again, and go with this flight instead of the next
		s.mu.Lock()
	}
	clear(f.members)
	n := min(len(s.queue), maxPipeline)
	if s.broken.long {
		n = len(s.queue)
	}
	s.starting = false
	if n == 0 || f.late && !s.broken.returned {
		f.members = nil
		s.arrive(f)
		return false
	}
	f.members = append(f.members[:0], s.queue[:n]...)
	left := copy(s.queue, s.queue[n:])
	clear(s.queue[left:])
	s.queue = s.queue[:left]
	f.since = time.Now()
	if !s.broken.rest {
		s.dispatch()
	}
	return true
}
