package holdlock_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/memhold"
)

// queued is a driver with a line, whose messages and heartbeats a test can bend. The steps are those of verify/line.pml.
type queued struct {
	*memhold.Driver
	forgets driver.Forgetting

	mu     sync.Mutex
	lose   bool                                 // no push arrives
	keep   bool                                 // pushes are kept back, and given to hear by deliver
	kept   []driver.Push                        //
	hear   func(driver.Push)                    //
	attend func([]*driver.AcquireRequest) error // before a heartbeat reaches the store
	undo   func([]driver.Ref) error             // before a call does that gives back
	drop   bool                                 // what is given back is not, and it is said to be
	slow   bool                                 // requests for places are not answered, and arrive by arrive
	late   []*driver.AcquireRequest             //
	beats  int
	renews int
	undos  int
}

func (q *queued) Traits() driver.Traits {
	t := q.Driver.Traits()
	t.Forgets = q.forgets
	return t
}

func (q *queued) Listen(ctx context.Context, hear func(driver.Push)) error {
	q.mu.Lock()
	q.hear = hear
	q.mu.Unlock()
	return q.Driver.Listen(ctx, func(p driver.Push) {
		q.mu.Lock()
		lose, keep := q.lose, q.keep
		if keep {
			q.kept = append(q.kept, p)
		}
		q.mu.Unlock()
		if !lose && !keep {
			hear(p)
		}
	})
}

func (q *queued) deliver() int {
	q.mu.Lock()
	kept, hear := q.kept, q.hear
	q.kept = nil
	q.mu.Unlock()
	for _, p := range kept {
		hear(p)
	}
	return len(kept)
}

func (q *queued) Enqueue(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	q.mu.Lock()
	slow := q.slow
	if slow {
		q.late = append(q.late, req)
	}
	q.mu.Unlock()
	if slow {
		return driver.Grant{}, errAway
	}
	return q.Driver.Enqueue(ctx, req)
}

// arrive brings the requests for places that were slow, and returns how many now wait.
func (q *queued) arrive(ctx context.Context) (n int) {
	q.mu.Lock()
	late := q.late
	q.late, q.slow = nil, false
	q.mu.Unlock()
	for _, req := range late {
		var held *driver.HeldError
		if _, err := q.Driver.Enqueue(ctx, req); errors.As(err, &held) {
			n++
		}
	}
	return n
}

func (q *queued) Attend(ctx context.Context, reqs []*driver.AcquireRequest) []driver.Standing {
	q.mu.Lock()
	q.beats++
	attend := q.attend
	q.mu.Unlock()
	if attend != nil {
		if err := attend(reqs); err != nil {
			out := make([]driver.Standing, len(reqs))
			for i := range out {
				out[i].Err = err
			}
			return out
		}
	}
	return q.Driver.Attend(ctx, reqs)
}

func (q *queued) Renew(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
	q.mu.Lock()
	q.renews++
	q.mu.Unlock()
	return q.Driver.Renew(ctx, req)
}

func (q *queued) Release(ctx context.Context, req *driver.ReleaseRequest) error {
	q.mu.Lock()
	q.undos++
	undo := q.undo
	q.mu.Unlock()
	if undo != nil {
		if err := undo([]driver.Ref{req.Ref}); err != nil {
			return err
		}
	}
	return q.Driver.Release(ctx, req)
}

func (q *queued) Leave(ctx context.Context, key string, left []driver.Leaving) error {
	q.mu.Lock()
	q.undos++
	undo, drop := q.undo, q.drop
	q.mu.Unlock()
	if drop {
		return nil
	}
	if undo != nil {
		refs := make([]driver.Ref, len(left))
		for i, l := range left {
			refs[i] = l.Request.Ref
		}
		if err := undo(refs); err != nil {
			return err
		}
	}
	return q.Driver.Leave(ctx, key, left)
}

func (q *queued) released() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.undos
}

func (q *queued) RenewBatch(ctx context.Context, reqs []*driver.RenewRequest) []driver.RenewResult {
	out := make([]driver.RenewResult, len(reqs))
	for i, req := range reqs {
		out[i].Grant, out[i].Err = q.Renew(ctx, req)
	}
	return out
}

// lineRig is a holder and a waiter, each a process of its own on one store, in virtual time.
type lineRig struct {
	*testing.T
	store  *memhold.Store
	q      *queued // the waiter's
	waiter *holdlock.Client
	holder *holdlock.Client
	events tally // of the waiter
}

// tally counts what an Observer is told.
type tally struct {
	mu sync.Mutex
	n  map[holdlock.EventKind]int
}

func (c *tally) Observe(e holdlock.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[holdlock.EventKind]int{}
	}
	c.n[e.Kind]++
}

func (c *tally) of(kind holdlock.EventKind) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n[kind]
}

func inLine(t *testing.T, f func(r *lineRig)) {
	t.Helper()
	inLineWith(t, nil, f)
}

func inLineWith(t *testing.T, change func(q *queued), f func(r *lineRig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := &lineRig{T: t, store: memhold.NewStore()}
		r.q = &queued{Driver: memhold.NewDriver(&memhold.Options{Store: r.store}), forgets: driver.NeverAlone}
		if change != nil {
			change(r.q)
		}
		var err error
		if r.waiter, err = holdlock.NewClient(r.q, &holdlock.ClientOptions{Observer: &r.events}); err != nil {
			t.Fatal(err)
		}
		r.holder = r.client()
		f(r)
		r.shut(r.waiter)
		r.shut(r.holder)
	})
}

func (r *lineRig) client() *holdlock.Client {
	r.Helper()
	c, err := memhold.Open(&memhold.Options{Store: r.store})
	if err != nil {
		r.Fatal(err)
	}
	return c
}

func (r *lineRig) shut(c *holdlock.Client) {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
	defer cancel()
	if err := c.Shutdown(ctx); err != nil && !errors.Is(err, holdlock.ErrShutdown) {
		r.Errorf("Shutdown: %v", err)
	}
}

func (r *lineRig) lock(c *holdlock.Client, opts holdlock.LockOptions) *holdlock.Lock {
	r.Helper()
	return r.named(c, "job", opts)
}

func (r *lineRig) named(c *holdlock.Client, name string, opts holdlock.LockOptions) *holdlock.Lock {
	r.Helper()
	l, err := c.NewLock(name, &opts)
	if err != nil {
		r.Fatal(err)
	}
	return l
}

func (r *lineRig) hold() *holdlock.Lease {
	r.Helper()
	lease, err := r.lock(r.holder, holdlock.LockOptions{}).TryAcquire(r.Context())
	if err != nil {
		r.Fatal(err)
	}
	return lease
}

// granted is the outcome of an Acquire that runs beside the test.
type granted struct {
	lease *holdlock.Lease
	err   error
	at    time.Time
}

func (r *lineRig) wait(ctx context.Context, l *holdlock.Lock) <-chan granted {
	out := make(chan granted, 1)
	go func() {
		lease, err := l.Acquire(ctx)
		out <- granted{lease, err, time.Now()}
	}()
	synctest.Wait()
	return out
}

// trusted checks the rule: whoever believes to hold owns the term, by the store's clock, for longer than it believes.
func (r *lineRig) trusted(lease *holdlock.Lease) {
	r.Helper()
	left := time.Until(lease.Deadline())
	if left <= 0 {
		return
	}
	d := memhold.NewDriver(&memhold.Options{Store: r.store})
	term, taken, _ := d.Inspect(r.Context(), "job")
	if !taken || term.Nonce != lease.Ref().Nonce || term.Remaining <= left {
		r.Errorf("a lease is trusted for %v, the store has %+v (taken: %v)", left, term, taken)
	}
}

func release(t *testing.T, lease *holdlock.Lease) {
	t.Helper()
	if err := lease.Release(t.Context()); err != nil {
		t.Errorf("Release: %v", err)
	}
}
