package redishold

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
)

// Callers at the same time share pipelines, since most of what a short script costs is the way to the server and back. A
// caller who finds nobody under way is sent at once and alone. As long as less than maxFlights are under way, the others
// set off at once as well; then they queue, and whoever comes back takes those who have come meanwhile along, as one
// pipeline. So nobody waits for company, and pipelines grow by themselves when there is more to do.
//
// Each flight is a goroutine that its callers can leave behind when their time is up (R9). They harm nobody by that: a
// pipeline has a deadline of its own, the last one of its members'. A flight that does not come back soon, as on a
// connection that has died silently, is replaced.
const (
	maxFlights   = 4
	maxPipeline  = 64                     // calls: few enough that the server answers the first ones soon
	flightIsLate = 200 * time.Millisecond // from then on it does not count any more
	maxHung      = 64                     // bounds the late ones
)

// sharer sends the calls of a driver. On a Cluster there is none: a pipeline over several nodes would be as slow as the
// slowest of them, or hang with it.
type sharer struct {
	client  redis.UniversalClient
	direct  bool // the client keeps the deadlines of contexts
	closing <-chan struct{}

	mu       sync.Mutex
	queue    []*member
	flights  []*flight // under way and not late
	late     int
	starting bool        // a flight has been started and has not taken its passengers
	watch    *time.Timer // looks for late flights while somebody queues
	watching bool
}

// flight is one goroutine that sends, or one caller who sends by himself.
type flight struct {
	since time.Time
	late  bool
}

// member is one call of a script.
type member struct {
	ctx    context.Context
	script *script
	keys   []string
	args   []any
	cmd    *redis.Cmd
	done   chan struct{}
}

func newSharer(client redis.UniversalClient, closing <-chan struct{}) *sharer {
	s := &sharer{client: client, closing: closing}
	if c, ok := client.(*redis.Client); ok {
		o := c.Options()
		s.direct = o.ContextTimeoutEnabled && o.ReadTimeout >= 0 && o.WriteTimeout >= 0 // below 0 deadlines are not set
	}
	s.watch = time.AfterFunc(time.Hour, s.replaceLate)
	s.watch.Stop()
	return s
}

// do sends one call and returns when it is answered or ctx ends.
func (s *sharer) do(ctx context.Context, r *member) (any, error) {
	r.ctx = ctx
	s.mu.Lock()
	if s.late >= maxHung {
		s.mu.Unlock()
		return nil, errHung
	}
	if s.direct && len(s.queue) == 0 && len(s.flights) == 0 && driver.BudgetOnly(ctx) {
		f := s.depart()
		s.mu.Unlock()
		// No goroutine: the wake-ups of two would cost more than the script.
		r.cmd = sendOne(ctx, s.client, r)
		s.mu.Lock()
		s.arrive(f)
		s.mu.Unlock()
		return r.cmd.Val(), r.cmd.Err()
	}
	r.done = make(chan struct{})
	s.queue = append(s.queue, r)
	s.dispatch()
	s.mu.Unlock()
	select {
	case <-r.done:
		return r.cmd.Val(), r.cmd.Err()
	case <-ctx.Done():
	case <-s.closing:
	}
	certainty := error(nil)
	if s.withdraw(r) {
		certainty = driver.ErrNotApplied
	}
	if err := ctx.Err(); err != nil {
		return nil, errors.Join(fmt.Errorf("no answer in time: %w", err), certainty)
	}
	return nil, errors.Join(fmt.Errorf("closed during the call: %w", driver.ErrClosed), certainty)
}

var errHung = fmt.Errorf("%d calls of this store are without an answer; no more are made until one returns: %w",
	maxHung, driver.ErrNotApplied)

// withdraw takes a call out of the queue. It reports false if it may have been sent.
func (s *sharer) withdraw(r *member) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, q := range s.queue {
		if q == r {
			s.queue = append(s.queue[:i], s.queue[i+1:]...)
			return true
		}
	}
	return false
}

// depart, arrive and dispatch are called with mu held.
func (s *sharer) depart() *flight {
	f := &flight{since: time.Now()}
	s.flights = append(s.flights, f)
	return f
}

func (s *sharer) arrive(f *flight) {
	if f.late {
		s.late--
	} else {
		for i := range s.flights {
			if s.flights[i] == f {
				s.flights = append(s.flights[:i], s.flights[i+1:]...)
				break
			}
		}
	}
	s.dispatch()
}

// dispatch starts a flight for those who queue, if one may. One that is starting takes along who comes until it starts.
func (s *sharer) dispatch() {
	switch {
	case len(s.queue) == 0 || s.starting:
	case len(s.flights) < maxFlights:
		s.starting = true
		go s.fly(s.depart())
	case !s.watching:
		s.watching = true
		s.watch.Reset(flightIsLate)
	}
}

// replaceLate makes room for those who queue behind flights that do not come back.
func (s *sharer) replaceLate() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watching = false
	inTime := s.flights[:0]
	for _, f := range s.flights {
		if time.Since(f.since) < flightIsLate || s.late >= maxHung {
			inTime = append(inTime, f)
			continue
		}
		f.late = true
		s.late++
	}
	clear(s.flights[len(inTime):])
	s.flights = inTime
	s.dispatch()
}

// fly sends what queues until nothing does.
func (s *sharer) fly(f *flight) {
	var batch []*member
	for {
		batch = s.board(f, batch[:0])
		if len(batch) == 0 {
			return
		}
		send(s.client, batch)
		for i, r := range batch {
			close(r.done)
			batch[i] = nil
		}
	}
}

// board takes the next passengers of a flight. Without any the flight is over.
func (s *sharer) board(f *flight, batch []*member) []*member {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.flights) > 1 && len(s.queue) < maxPipeline {
		s.mu.Unlock()
		runtime.Gosched() // those who were just answered ask again, and go with this flight instead of the next
		s.mu.Lock()
	}
	n := min(len(s.queue), maxPipeline)
	s.starting = false
	if n == 0 || f.late {
		s.arrive(f)
		return nil
	}
	batch = append(batch, s.queue[:n]...)
	left := copy(s.queue, s.queue[n:])
	clear(s.queue[left:])
	s.queue = s.queue[:left]
	f.since = time.Now()
	s.dispatch()
	return batch
}
