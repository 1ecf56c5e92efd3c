package pghold

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdlock/holdlock/driver"
)

// A SessionDriver is one program's access to session locks. It implements driver.Driver, BatchRenewer, Waiter, Lister,
// Breaker and LossNotifier, and is safe for concurrent use.
//
// # Protocol
//
// A term is a lease row (see LeaseDriver) and, beside it, an advisory lock that the session of its holder has.
//
//   - Acquire tries the advisory lock and then takes the row, in one statement. Whoever does not get both gets neither.
//   - The row decides who holds. Its expiry is what the holder's trust is measured against, so a successor never starts
//     while the holder before may trust its lease, however the session of that one has ended: PostgreSQL frees an advisory
//     lock when the server ends a connection, and a holder behind a broken network learns of it much later.
//   - The advisory lock adds to it that a session which lives keeps others out beyond the expiry. A process that runs gives it back
//     itself when its caller lets a term lapse; so it is one that stands still that keeps it.
//   - Release writes the row, gives the advisory lock back and wakes the first who waits, in one statement. It does not wait
//     for the disk: if a crash of the server loses it, the key stays taken until its expiry.
//   - When a connection ends, all terms on it are lost, and their holders are told at once (LossNotifier).
//
// Locks of one TTL live on one connection, with an in-process table in front, because a session gets an advisory lock again that it has
// already. Callers that come together share statements. Between them the connection waits in a read, which is what sees the end of
// it within milliseconds.
//
// What a server may do by itself comes after the holder has let go: tcp_keepalives and tcp_user_timeout are set to more than the TTL
// on each connection, idle_session_timeout to 0 (Block) or the TTL (Expire), all other timeouts to 0, and all of it is
// read back before the connection is used.
type SessionDriver struct {
	rows   *LeaseDriver // looks, breaks, waits, and ends terms of other sessions
	config *pgx.ConnConfig
	opts   SessionOptions
	traits driver.Traits
	sql    sessionSQL

	mu       sync.Mutex
	sessions map[time.Duration]*session // by TTL
	routes   map[driver.Ref]*session    // terms that live on a session or are on their way to it
	maxLocks int
	capacity int // of the server's lock table
	closed   bool

	askers askers
}

var _ interface {
	driver.Driver
	driver.BatchRenewer
	driver.Waiter
	driver.Lister
	driver.Breaker
	driver.LossNotifier
	driver.Ledger
} = (*SessionDriver)(nil)

// NewSessionDriver opens the store of session locks for combinators and tests; programs use OpenSessions, which see.
func NewSessionDriver(ctx context.Context, dsn string, opts *SessionOptions) (*SessionDriver, error) {
	if opts == nil {
		opts = &SessionOptions{}
	}
	if err := opts.check(); err != nil {
		return nil, err
	}
	config, err := leaseConfig(dsn, opts.rows())
	if err != nil {
		return nil, err
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, openBudget)
		defer cancel()
	}
	d := &SessionDriver{
		config: config.ConnConfig, opts: *opts,
		sessions: map[time.Duration]*session{}, routes: map[driver.Ref]*session{},
	}
	d.config.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement // the connection is our own, which is checked first
	d.config.StatementCacheCapacity, d.config.DescriptionCacheCapacity = 32, 32
	d.config.RuntimeParams["application_name"] = sessionName
	if err := d.lookAround(ctx); err != nil {
		return nil, fmt.Errorf("pghold: session locks on %s: %w", location(d.config), Refusal(err))
	}
	if d.rows, err = NewLeaseDriver(ctx, dsn, opts.rows()); err != nil {
		return nil, err
	}
	d.sql = newSessionSQL(d.rows.schema)
	d.traits = SessionTraits(d.rows.traits.Fencing == driver.Durable, opts.OnFrozen)
	d.traits.Location = d.rows.traits.Location + ", session locks" // which lease rows of the same schema exclude, and the other way round
	return d, nil
}

// How exact the end of a term is. A process that runs gives an advisory lock back when its holder's trust has ended, a tenth of the
// TTL before the row ends; if it is late by that and ttlStep, successors wait longer than was said.
const (
	sessionMinTTL = 250 * time.Millisecond
	ttlStep       = 100 * time.Millisecond

	maxIdleSession = (1<<31 - 1) * time.Millisecond / time.Second * time.Second // what idle_session_timeout can be, in whole seconds
)

// Traits implements driver.Driver.
func (d *SessionDriver) Traits() driver.Traits { return d.traits }

// Close implements driver.Driver. The connections are closed, and with them the advisory locks go; the rows keep the keys taken until
// their expiry.
func (d *SessionDriver) Close() error {
	d.mu.Lock()
	d.closed = true
	sessions := make([]*session, 0, len(d.sessions))
	for _, s := range d.sessions {
		sessions = append(sessions, s)
	}
	d.mu.Unlock()
	for _, s := range sessions {
		s.close()
	}
	return d.rows.Close()
}

// session returns the session for terms of one TTL.
func (d *SessionDriver) session(ttl time.Duration) (*session, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, driver.ErrClosed
	}
	s := d.sessions[ttl]
	if s == nil {
		s = newSession(d, ttl)
		d.sessions[ttl] = s
	}
	return s, nil
}

// Acquire implements driver.Driver.
func (d *SessionDriver) Acquire(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	const verb = "acquire"
	if err := d.rows.usable(ctx, verb, req.Ref.Key); err != nil {
		return driver.Grant{}, err
	}
	asked := time.Now()
	if req.BackStop {
		// One asks for all who wait for this key.
		leave, err := d.askers.enter(ctx, req.Ref.Key)
		if err != nil {
			return driver.Grant{}, leaseFailure(verb, req.Ref.Key, &unsentError{err})
		}
		defer leave()
		if held, known := d.rows.refusals.recent(req.Ref.Key); known {
			return driver.Grant{}, held
		}
	}
	s, err := d.session(req.TTL)
	if err == nil {
		err = d.route(req.Ref, s)
	}
	if err != nil {
		return driver.Grant{}, leaseFailure(verb, req.Ref.Key, &unsentError{err})
	}
	o := &op{kind: acquireOp, ctx: ctx, ref: req.Ref, id: LockID(d.rows.namespace, req.Ref.Key), acquire: req}
	if err := s.do(o); err != nil {
		return driver.Grant{}, leaseFailure(verb, req.Ref.Key, err)
	}
	if o.held != nil {
		if req.BackStop {
			d.rows.refusals.keep(o.held.Term, asked)
		}
		return driver.Grant{}, o.held
	}
	d.rows.collector.acquired(d.rows)
	return o.grant, nil
}

// route counts a term that may come to live on a session, and remembers which one it is.
func (d *SessionDriver) route(ref driver.Ref, s *session) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.routes) >= d.maxLocks && d.routes[ref] == nil {
		return fmt.Errorf("%w: this process has %d session locks, which is all it may have: the server has room for about %d locks of all "+
			"its clients, and when that is used up all of them fail. Raise max_locks_per_transaction there or "+
			"SessionOptions.MaxLocks here, or use lease rows (pghold.Open), which have no such limit", errCap, len(d.routes), d.capacity)
	}
	d.routes[ref] = s
	return nil
}

var errCap = errors.New("too many session locks")

func (d *SessionDriver) unroute(ref driver.Ref, s *session) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.routes[ref] == s {
		delete(d.routes, ref)
	}
}

func (d *SessionDriver) routed(ref driver.Ref) *session {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.routes[ref]
}

// Renew implements driver.Driver.
func (d *SessionDriver) Renew(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
	r := d.RenewBatch(ctx, []*driver.RenewRequest{req})[0]
	return r.Grant, r.Err
}

// RenewBatch implements driver.BatchRenewer. It is also the heartbeat of the connections that the terms live on: one statement for
// each, if it is no more than 500 terms.
func (d *SessionDriver) RenewBatch(ctx context.Context, reqs []*driver.RenewRequest) []driver.RenewResult {
	results := make([]driver.RenewResult, len(reqs))
	ops := make([]*op, len(reqs))
	var strangers []int
	for i, req := range reqs {
		s := d.routed(req.Ref)
		if err := d.rows.usable(ctx, "renew", req.Ref.Key); err != nil {
			results[i].Err = err
		} else if s == nil || req.Floor > driver.MaxToken {
			strangers = append(strangers, i) // a term of another process, or none at all: the row knows
		} else {
			ops[i] = &op{kind: renewOp, ctx: ctx, ref: req.Ref, renew: req}
			s.submit(ops[i])
		}
	}
	if len(strangers) > 0 {
		some := make([]*driver.RenewRequest, len(strangers))
		for j, i := range strangers {
			some[j] = reqs[i]
		}
		for j, r := range d.rows.RenewBatch(ctx, some) {
			results[strangers[j]] = r
		}
	}
	for i, o := range ops {
		if o == nil {
			continue
		}
		if err := o.wait(); err != nil {
			results[i].Err = leaseFailure("renew", o.ref.Key, err)
		} else {
			results[i] = driver.RenewResult{Grant: o.grant, Err: o.answer}
		}
	}
	return results
}

// Release implements driver.Driver.
func (d *SessionDriver) Release(ctx context.Context, req *driver.ReleaseRequest) error {
	const verb = "release"
	if err := d.rows.usable(ctx, verb, req.Ref.Key); err != nil {
		return err
	}
	d.rows.refusals.forget(req.Ref.Key)
	if s := d.routed(req.Ref); s != nil {
		o := &op{kind: releaseOp, ctx: ctx, ref: req.Ref, id: LockID(d.rows.namespace, req.Ref.Key), release: req}
		if err := s.do(o); err != nil {
			return leaseFailure(verb, req.Ref.Key, err)
		}
		return o.answer
	}
	id := LockID(d.rows.namespace, req.Ref.Key)
	answer, rest, err := d.rows.word(ctx, verb, req.Ref.Key, d.sql.releaseOther,
		d.rows.namespace, req.Ref.Key, req.Ref.Nonce, micros(req.KeepFor), req.Undo, id)
	switch {
	case err != nil:
		return err
	case answer == "released":
		d.dropped(ctx, id)
		return nil
	}
	return goneError(verb, req.Ref.Key, answer, rest)
}

// Watch implements driver.Waiter.
func (d *SessionDriver) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	return d.rows.Watch(ctx, key)
}

// Break implements driver.Breaker. With Now it also ends the session of a holder that stands still, and with it all other
// locks of that session.
func (d *SessionDriver) Break(ctx context.Context, req *driver.BreakRequest) error {
	const verb = "break"
	var done bool
	id, by := LockID(d.rows.namespace, req.Ref.Key), cmp.Or(req.By, "an operator")
	err := d.rows.step(ctx, verb, req.Ref.Key, d.sql.breakTerm,
		[]any{d.rows.namespace, req.Ref.Key, req.Ref.Nonce, by, req.Now, id}, func(rows pgx.Rows) error { return rows.Scan(&done) })
	if err != nil {
		return err
	}
	if !done {
		return d.breakFrozen(ctx, req, by, id)
	}
	if req.Now && !d.dropped(ctx, id) {
		return d.terminate(ctx, req.Ref.Key, id)
	}
	return nil
}

// dropWait is how long a session that runs gets to give an advisory lock back whose term another one has ended.
const dropWait = time.Second

// dropped waits until no session has an advisory lock, and says whether that is so. It is not important: the row is over.
func (d *SessionDriver) dropped(ctx context.Context, id int64) bool {
	for give, pause := time.Now().Add(dropWait), time.Millisecond; ; pause *= 2 {
		var busy bool
		err := d.rows.step(ctx, "wait for", "", d.sql.busy, []any{id}, func(rows pgx.Rows) error { return rows.Scan(&busy) })
		if err == nil && !busy {
			return true
		}
		if err != nil || time.Now().After(give) {
			return false
		}
		select {
		case <-time.After(min(pause, 50*time.Millisecond)):
		case <-ctx.Done():
			return false
		}
	}
}

// NotifyLoss implements driver.LossNotifier.
func (d *SessionDriver) NotifyLoss(ref driver.Ref, lost func(error)) {
	if s := d.routed(ref); s == nil || !s.onLoss(ref, lost) {
		lost(errors.New("the connection that it was granted on has ended since"))
	}
}

func byKey(a, b *op) int { return cmp.Compare(a.ref.Key, b.ref.Key) }

// askers lets one caller at a time ask about a key, so that the others can do with its answer.
type askers struct {
	mu    sync.Mutex
	byKey map[string]*asker
}

type asker struct {
	place chan struct{}
	n     int
}

// enter waits for the place. leave must be called.
func (a *askers) enter(ctx context.Context, key string) (leave func(), err error) {
	a.mu.Lock()
	if a.byKey == nil {
		a.byKey = map[string]*asker{}
	}
	k := a.byKey[key]
	if k == nil {
		k = &asker{place: make(chan struct{}, 1)}
		a.byKey[key] = k
	}
	k.n++
	a.mu.Unlock()
	gone := func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		if k.n--; k.n == 0 {
			delete(a.byKey, key)
		}
	}
	select {
	case k.place <- struct{}{}:
		return func() { <-k.place; gone() }, nil
	case <-ctx.Done():
		gone()
		return nil, ctx.Err()
	}
}
