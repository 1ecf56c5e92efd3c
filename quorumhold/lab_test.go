package quorumhold

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/memhold"
)

// A lab is a set of servers in memory that can forget, hang, be cut off, and have clocks of their own.
type lab struct {
	servers []*server
	abstain time.Duration // how long a server that has forgotten grants nothing; 0 switches the rule off
}

type server struct {
	lab *lab

	mu      sync.Mutex
	store   *memhold.Store
	forgot  time.Time
	hung    chan struct{} // closed when it wakes; nil if it is well
	rate    float64       // its clock runs faster by this share
	offset  time.Duration // its clock is ahead by this
	refuses bool          // connections fail at once
	forgets int
	waiting int             // requests that came while it hung
	starts  int             // requests to start a term that came
	ends    int             // requests to end one
	refused map[string]bool // nonces of undone acquires that may still arrive
}

func newLab(n int, abstain time.Duration) *lab {
	l := &lab{abstain: abstain}
	for range n {
		l.servers = append(l.servers, &server{lab: l, store: memhold.NewStore()})
	}
	return l
}

// nodes returns connections of one client to all servers.
func (l *lab) nodes(latency func() time.Duration) []driver.Driver {
	var all []driver.Driver
	for _, s := range l.servers {
		all = append(all, &conn{server: s, latency: latency, closed: make(chan struct{})})
	}
	return all
}

func (l *lab) open(tb testing.TB, opts *Options, latency func() time.Duration) *Driver {
	tb.Helper()
	d, err := NewDriver(l.nodes(latency), opts)
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

// forget is a restart without data.
func (s *server) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store, s.forgot, s.forgets = memhold.NewStore(), time.Now(), s.forgets+1
}

// hang stops the server: what is sent to it waits in its socket.
func (s *server) hang() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hung == nil {
		s.hung = make(chan struct{})
	}
}

func (s *server) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hung != nil {
		close(s.hung)
		s.hung = nil
	}
}

func (s *server) down(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuses = down
}

// A conn is one client's way to a server.
type conn struct {
	server  *server
	latency func() time.Duration
	closed  chan struct{}
	once    sync.Once
}

func (c *conn) Traits() driver.Traits {
	t := memhold.NewDriver(nil).Traits()
	t.Location = fmt.Sprintf("server %p", c.server)
	t.Forgets = driver.OnRestart
	return t
}

func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

// reach carries a request to the server and runs f there, and carries the answer back. When ctx ends the caller goes, and
// the request goes on: it is on its way, or in a socket of a server that hangs.
func reach[T any](ctx context.Context, c *conn, f func(*memhold.Driver) (T, error)) (T, error) {
	type answer struct {
		v   T
		err error
	}
	var zero T
	there, back := c.latency(), c.latency()
	if err := ctx.Err(); err != nil {
		return zero, fmt.Errorf("%w (%w)", err, driver.ErrNotApplied)
	}
	done := make(chan answer, 1)
	go func() {
		time.Sleep(there)
		s := c.server
		s.mu.Lock()
		if s.refuses {
			s.mu.Unlock()
			done <- answer{err: fmt.Errorf("connection refused (%w)", driver.ErrNotApplied)}
			return
		}
		hung := s.hung
		if hung != nil {
			s.waiting++
		}
		s.mu.Unlock()
		if hung != nil {
			<-hung
		}
		s.mu.Lock()
		d := memhold.NewDriver(&memhold.Options{Store: s.store})
		s.mu.Unlock()
		v, err := f(d)
		time.Sleep(back)
		done <- answer{v, err}
	}()
	select {
	case a := <-done:
		return a.v, a.err
	case <-ctx.Done():
		return zero, fmt.Errorf("no answer: %w", ctx.Err())
	case <-c.closed:
		return zero, driver.ErrClosed
	}
}

// abstains says whether the server must not grant now.
func (s *server) abstains() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if left := s.lab.abstain - time.Since(s.forgot); !s.forgot.IsZero() && left > 0 {
		return fmt.Errorf("%w for %v more: it lost its data", driver.ErrAbstains, left)
	}
	return nil
}

// scale turns a duration on the server's clock into a true one.
func (s *server) scale(t time.Duration) time.Duration {
	return time.Duration(float64(t) / (1 + s.rate))
}

func (c *conn) Acquire(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	return reach(ctx, c, func(d *memhold.Driver) (driver.Grant, error) {
		s := c.server
		s.mu.Lock()
		s.starts++
		s.mu.Unlock()
		if err := s.abstains(); err != nil {
			return driver.Grant{}, err
		}
		s.mu.Lock()
		refused := s.refused[req.Ref.Nonce]
		s.mu.Unlock()
		if refused {
			return driver.Grant{}, fmt.Errorf("it was undone (%w)", driver.ErrNotApplied)
		}
		r := *req
		r.TTL, r.MinHold = s.scale(r.TTL), s.scale(r.MinHold)
		// What the store adds to its own clock is added to one that is off.
		now := time.Now().Add(s.offset)
		r.Floor = max(driver.TokenAt(now), min(r.Floor, driver.TokenAt(now.Add(time.Second))))
		return d.Acquire(context.Background(), &r)
	})
}

func (c *conn) Renew(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
	return reach(ctx, c, func(d *memhold.Driver) (driver.Grant, error) {
		if err := c.server.abstains(); err != nil && req.Floor != 0 {
			return driver.Grant{}, err
		}
		r := *req
		r.TTL = c.server.scale(r.TTL)
		return d.Renew(context.Background(), &r)
	})
}

func (c *conn) Release(ctx context.Context, req *driver.ReleaseRequest) error {
	_, err := reach(ctx, c, func(d *memhold.Driver) (struct{}, error) {
		r := *req
		s := c.server
		r.KeepFor = s.scale(r.KeepFor)
		s.mu.Lock()
		s.ends++
		if r.Undo && !r.Answered {
			if s.refused == nil {
				s.refused = map[string]bool{}
			}
			s.refused[r.Ref.Nonce] = true
		}
		s.mu.Unlock()
		return struct{}{}, d.Release(context.Background(), &r)
	})
	return err
}

func (c *conn) Inspect(ctx context.Context, key string) (driver.Term, bool, error) {
	type found struct {
		term driver.Term
		ok   bool
	}
	f, err := reach(ctx, c, func(d *memhold.Driver) (f found, err error) {
		f.term, f.ok, err = d.Inspect(context.Background(), key)
		return f, err
	})
	return f.term, f.ok, err
}

func (c *conn) List(ctx context.Context, prefix, after string, limit int) ([]driver.Term, error) {
	return reach(ctx, c, func(d *memhold.Driver) ([]driver.Term, error) {
		return d.List(context.Background(), prefix, after, limit)
	})
}

// taken counts the servers on which the key is held or cooling now.
func (l *lab) taken(key string) (n int) {
	for _, s := range l.servers {
		s.mu.Lock()
		d := memhold.NewDriver(&memhold.Options{Store: s.store})
		s.mu.Unlock()
		if _, ok, _ := d.Inspect(context.Background(), key); ok {
			n++
		}
	}
	return n
}

// steady returns a latency that jitters around d.
func steady(dice *rand.Rand, d time.Duration) func() time.Duration {
	var mu sync.Mutex
	return func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return d/2 + time.Duration(dice.Int64N(int64(d)))
	}
}
