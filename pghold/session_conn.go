package pghold

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdlock/holdlock/driver"
)

// A session is one connection and the terms of one TTL that live on it. Callers put what they want into its queue; whoever of them
// gets the turn uses the connection, for all that is in the queue. When there is nothing to do a goroutine of its own has the
// turn and waits in a read, which is what sees the end of the connection; the next caller interrupts it.
//
// That callers do it themselves saves switches of goroutines, which on a busy machine cost more than the statement. It
// means that a call can outlast its context while the server hangs, so Traits.Prompt is not claimed.
type session struct {
	d       *SessionDriver
	ttl     time.Duration
	turn    chan struct{}   // full while somebody uses what follows
	conn    *pgx.Conn       // nil: none
	parting <-chan struct{} // closed when nothing is left of the last connection; nil: there was none
	last    time.Time       // when it was of use

	idle *time.Timer     // when the goroutine looks after the connection
	done chan struct{}   // closed when the goroutine has ended
	ctx  context.Context // ends with close
	stop context.CancelFunc

	mu        sync.Mutex
	queue     []*op
	interrupt func()                  // ends the read that the goroutine waits in; nil if it does not
	terms     map[string]*sessionTerm // by key: whose advisory locks this session has. Only who has the turn changes it
	closing   bool
	backend   uint32 // the server process behind conn; 0 if there is none
}

// A sessionTerm is a term whose advisory lock the session has. That is given back when nobody trusts the term any more and the row
// still stands: from then on the row alone keeps others out.
type sessionTerm struct {
	ref  driver.Ref
	id   int64
	over time.Time
	lost func(error)
}

const (
	linger      = 10 * time.Millisecond // after a call, before waiting in a read: to interrupt that costs the next call more than its statement
	idleSession = 30 * time.Second      // after which a connection without terms is closed
	closeBudget = time.Second
	dialBudget  = 10 * time.Second
	minBudget   = time.Second
)

func newSession(d *SessionDriver, ttl time.Duration) *session {
	s := &session{
		d: d, ttl: ttl, turn: make(chan struct{}, 1), idle: time.NewTimer(time.Hour), done: make(chan struct{}),
		terms: map[string]*sessionTerm{},
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	go s.run()
	return s
}

// close ends the goroutine and the connection. Callers that are in the queue find out.
func (s *session) close() {
	s.mu.Lock()
	before := s.closing
	s.closing = true
	s.mu.Unlock()
	if before {
		return
	}
	s.stop()
	<-s.done
	s.turn <- struct{}{} // for good
	s.hangUp()
	if s.parting != nil { // as in hangUp of connections
		select {
		case <-s.parting:
		case <-time.After(closeBudget):
		}
	}
}

// run looks after the connection while nobody uses it.
func (s *session) run() {
	defer close(s.done)
	defer s.idle.Stop()
	for {
		select {
		case <-s.idle.C:
		case <-s.ctx.Done():
			return
		}
		select {
		case s.turn <- struct{}{}:
		case <-s.ctx.Done():
			return
		}
		next := s.rest()
		<-s.turn
		s.idle.Reset(next)
	}
}

// lead works for a caller who has the turn until there is an answer to its op.
func (s *session) lead(o *op) {
	for s.ctx.Err() == nil {
		select {
		case <-o.done:
		default:
			if ops := s.take(); len(ops) > 0 && s.connect(ops) {
				s.send(ops)
				s.last = time.Now()
			}
			continue
		}
		break
	}
	<-s.turn
	s.idle.Reset(linger)
}

// connect makes sure that there is a connection, for ops that wait for it. If there is none they have failed.
func (s *session) connect(ops []*op) bool {
	if s.conn != nil {
		return true
	}
	ctx, cancel := context.WithTimeout(s.ctx, dialBudget)
	defer cancel()
	conn, err := s.d.dial(ctx, s.ttl)
	if err == nil {
		s.conn = conn
		s.setBackend(conn.PgConn().PID())
		return true
	}
	if s.ctx.Err() != nil {
		err = driver.ErrClosed
	}
	for _, o := range ops {
		s.fail(o, &unsentError{fmt.Errorf("no connection: %w", err)})
	}
	return false
}

// budget bounds one statement: no longer than the holders of the terms here may trust them.
func (s *session) budget() (context.Context, context.CancelFunc) {
	return context.WithTimeout(s.ctx, max(s.ttl-s.ttl/10, minBudget))
}

// rest waits for a call or the end of the connection, and meanwhile gives back what is over. It returns how soon it wants to
// be called again.
func (s *session) rest() time.Duration {
	for s.conn != nil && s.ctx.Err() == nil {
		until := s.expire()
		if s.conn == nil {
			break
		}
		ctx, cancel := context.WithDeadline(s.ctx, until)
		s.mu.Lock()
		if len(s.queue) > 0 {
			s.mu.Unlock()
			cancel()
			return linger
		}
		s.interrupt = cancel
		s.mu.Unlock()
		note, err := s.conn.WaitForNotification(ctx)
		s.mu.Lock()
		s.interrupt = nil
		s.mu.Unlock()
		over := ctx.Err() != nil
		cancel()
		switch {
		case err == nil:
			s.heed(note)
		case s.conn.IsClosed() || !over:
			s.disconnected(err)
		}
	}
	return time.Hour // the next call makes a connection and sets it
}

// expire gives back the advisory locks of terms whose time is over, and closes a connection that nobody needs. It returns
// when to look again.
func (s *session) expire() (next time.Time) {
	now := time.Now()
	next = now.Add(time.Hour)
	var over []*sessionTerm
	s.mu.Lock()
	for _, t := range s.terms {
		if !t.over.After(now) {
			over = append(over, t)
		} else if t.over.Before(next) {
			next = t.over
		}
	}
	empty := len(s.terms) == len(over)
	s.mu.Unlock()
	if len(over) > 0 {
		s.unlock(over)
		return now
	}
	if empty {
		if idle := s.last.Add(idleSession); idle.After(now) {
			return idle
		}
		s.hangUp()
	}
	return next
}

// heed gives back the advisory lock of a term that another process has ended.
func (s *session) heed(note *pgconn.Notification) {
	text, nonce, _ := strings.Cut(note.Payload, " ")
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return
	}
	var over []*sessionTerm
	s.mu.Lock()
	for _, t := range s.terms {
		if t.id == id && t.ref.Nonce == nonce {
			over = append(over, t)
		}
	}
	s.mu.Unlock()
	if len(over) > 0 {
		s.unlock(over)
	}
}

// unlock gives back advisory locks whose terms are over.
func (s *session) unlock(over []*sessionTerm) {
	ids := make([]int64, len(over))
	for i, t := range over {
		ids[i] = t.id
	}
	ctx, cancel := s.budget()
	defer cancel()
	if _, err := s.conn.Exec(ctx, s.d.sql.unlock, ids); err != nil {
		s.disconnected(err)
		return
	}
	for _, t := range over {
		s.drop(t.ref)
		s.forget(t.ref)
	}
}

// cleanse makes sure that a statement which has failed has left no advisory lock behind; if it cannot, the connection goes.
func (s *session) cleanse(ops []*op) {
	for _, o := range ops {
		if o.kind != acquireOp || s.has(o.ref.Key) { // what it had before it keeps
			continue
		}
		for unlocked := true; unlocked; {
			ctx, cancel := s.budget()
			err := s.conn.QueryRow(ctx, "SELECT pg_catalog.pg_advisory_unlock($1::bigint)", o.id).Scan(&unlocked)
			cancel()
			if err != nil {
				s.disconnected(err)
				return
			}
		}
	}
}

// disconnected ends the connection, which is broken or in doubt, and tells the holders of all terms on it.
func (s *session) disconnected(err error) {
	s.hangUp()
	s.mu.Lock()
	terms := s.terms
	s.terms = map[string]*sessionTerm{}
	s.mu.Unlock()
	err = explainEnd(err)
	for _, t := range terms {
		s.forget(t.ref)
		if t.lost != nil && s.ctx.Err() == nil {
			t.lost(err)
		}
	}
	if len(terms) > 0 && s.ctx.Err() == nil {
		s.d.rows.log.Warn("a connection with locks on it has ended", "store", s.d.traits.Location, "locks", len(terms), "error", err)
	}
}

// explainEnd says what may have ended a connection.
func explainEnd(err error) error {
	var refused *pgconn.PgError
	if !errors.As(err, &refused) {
		return err
	}
	switch refused.Code {
	case "57P01":
		return fmt.Errorf("an administrator ended it, or the server shuts down: %w", err)
	case "57P02", "57P03":
		return fmt.Errorf("a process of the server has crashed: %w", err)
	case "57P05":
		return fmt.Errorf("the server ended it because it was silent for idle_session_timeout: %w", err)
	}
	return err
}

func (s *session) hangUp() {
	if s.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeBudget)
	defer cancel()
	_ = s.conn.Close(ctx)
	s.parting = s.conn.PgConn().CleanupDone() // the holders on it are to be told first
	s.conn = nil
	s.setBackend(0)
}

func (s *session) setBackend(pid uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.backend = pid
}

// has says whether this session has the advisory lock of a key.
func (s *session) has(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.terms[key] != nil
}

// holds says whether it has it for this term.
func (s *session) holds(ref driver.Ref) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.terms[ref.Key]
	return t != nil && t.ref == ref
}

// hold enters a term whose advisory lock the session has now, in place of one before it.
func (s *session) hold(o *op) {
	s.mu.Lock()
	before := s.terms[o.ref.Key]
	t := &sessionTerm{ref: o.ref, id: o.id}
	if before != nil && before.ref == o.ref {
		t = before
	}
	t.over = trusted(max(o.acquire.TTL, o.acquire.MinHold))
	s.terms[o.ref.Key] = t
	s.mu.Unlock()
	if before != nil && before != t {
		s.forget(before.ref)
	}
}

// trusted returns when the trust has ended of a holder who has just been answered: it counts from before it asked.
func trusted(ttl time.Duration) time.Time { return time.Now().Add(ttl - ttl/10) }

func (s *session) prolong(o *op) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.terms[o.ref.Key]; t != nil && t.ref == o.ref {
		if over := trusted(o.renew.TTL); over.After(t.over) {
			t.over = over
		}
	}
}

// drop takes a term out of the table: its advisory lock is given back.
func (s *session) drop(ref driver.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.terms[ref.Key]; t != nil && t.ref == ref {
		delete(s.terms, ref.Key)
	}
}

// forget ends the way by which calls about a term find this session.
func (s *session) forget(ref driver.Ref) { s.d.unroute(ref, s) }

// onLoss has lost called when the connection of a term ends. It reports false if the term is not here.
func (s *session) onLoss(ref driver.Ref, lost func(error)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.terms[ref.Key]
	if t == nil || t.ref != ref {
		return false
	}
	t.lost = lost
	return true
}

func toText(h driver.Holder) (string, error) {
	b, err := json.Marshal(h)
	return string(b), err
}
