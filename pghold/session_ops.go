package pghold

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdlock/holdlock/driver"
)

type opKind uint8

const (
	releaseOp opKind = iota
	renewOp
	acquireOp
	opKinds
)

// An op is one call on its way through a session.
type op struct {
	kind    opKind
	ctx     context.Context
	ref     driver.Ref
	id      int64
	acquire *driver.AcquireRequest
	renew   *driver.RenewRequest
	release *driver.ReleaseRequest

	s      *session
	sent   bool          // it is part of a statement; under session.mu
	done   chan struct{} // closed when the rest is set
	err    error         // there was no answer
	answer error         // what the store said to a renewal or release
	grant  driver.Grant
	held   *driver.HeldError
}

// do submits an op and waits for it.
func (s *session) do(o *op) error {
	s.submit(o)
	return o.wait()
}

// submit puts an op into the queue.
func (s *session) submit(o *op) {
	o.s, o.done = s, make(chan struct{})
	s.mu.Lock()
	s.queue = append(s.queue, o)
	interrupt := s.interrupt
	s.mu.Unlock()
	if interrupt != nil {
		interrupt()
	}
}

// wait returns when there is an answer, or when the caller's context has ended: what is not sent by then is not sent.
func (o *op) wait() error {
	s := o.s
	var err error
	select {
	case s.turn <- struct{}{}:
		s.lead(o)
		err = driver.ErrClosed // unless it is done
	case <-o.done:
	case <-o.ctx.Done():
		err = o.ctx.Err()
	case <-s.ctx.Done():
		err = driver.ErrClosed
	}
	select {
	case <-o.done:
		return o.err
	default:
	}
	s.mu.Lock()
	sent := o.sent
	if i := slices.Index(s.queue, o); i >= 0 {
		s.queue = slices.Delete(s.queue, i, i+1)
	}
	s.mu.Unlock()
	if sent {
		return fmt.Errorf("no answer in time: %w", err)
	}
	if o.kind == acquireOp {
		s.forget(o.ref)
	}
	return &unsentError{fmt.Errorf("the connection was not free in time: %w", err)}
}

// fail ends an op without an answer.
func (s *session) fail(o *op, err error) {
	if o.kind == acquireOp {
		s.forget(o.ref)
	}
	o.err = err
	close(o.done)
}

// take returns what is to be sent next: ops of one kind, in the order of their keys, so that no two statements wait for each
// other. Releases come first.
func (s *session) take() []*op {
	s.mu.Lock()
	defer s.mu.Unlock()
	var some []*op
	for kind := range opKinds {
		keys := map[string]bool{}
		rest := s.queue[:0]
		for _, o := range s.queue {
			if o.kind != kind || len(some) == batchSize || keys[o.ref.Key] { // a second call about a key comes after the first
				rest = append(rest, o)
				continue
			}
			keys[o.ref.Key], o.sent = true, true
			some = append(some, o)
		}
		clear(s.queue[len(rest):])
		s.queue = rest
		if len(some) > 0 {
			break
		}
	}
	slices.SortStableFunc(some, byKey)
	return some
}

// send makes one statement of ops of one kind, and hands out the answers.
func (s *session) send(ops []*op) {
	var err error
	switch ops[0].kind {
	case acquireOp:
		err = s.sendAcquires(ops)
	case renewOp:
		err = s.sendRenewals(ops)
	case releaseOp:
		err = s.sendReleases(ops)
	}
	if err == nil {
		for _, o := range ops {
			close(o.done)
		}
		return
	}
	if s.conn == nil || s.conn.IsClosed() {
		s.disconnected(err)
	} else {
		// A statement that fails leaves the advisory locks that it has got.
		s.cleanse(ops)
	}
	for _, o := range ops {
		s.fail(o, err)
	}
}

func (s *session) sendAcquires(ops []*op) error {
	type call struct {
		o              *op
		holder, answer string
		ttl, floor     int64
		mine           bool
	}
	calls := make([]call, len(ops))
	var plain []*call
	for i, o := range ops {
		holder, err := toText(o.acquire.Holder)
		if err != nil {
			return &unsentError{err}
		}
		calls[i] = call{
			o: o, holder: holder, answer: "missed", mine: s.has(o.ref.Key),
			ttl: micros(max(o.acquire.TTL, o.acquire.MinHold)), floor: int64(min(o.acquire.Floor, driver.MaxToken-1)),
		}
		if !o.acquire.BackStop || calls[i].mine { // else it is taken, most likely
			plain = append(plain, &calls[i])
		}
	}
	ctx, cancel := s.budget()
	defer cancel()
	ns := s.d.rows.namespace
	var words []string
	var err error
	switch n := len(plain); n {
	case 0:
	case 1:
		c := plain[0]
		words, err = s.ask(ctx, 1, s.d.sql.acquire, ns, c.o.ref.Key, c.o.ref.Nonce, c.ttl, c.floor, c.holder, c.o.id, c.mine)
	default:
		keys, nonces, holders := make([]string, n), make([]string, n), make([]string, n)
		ttls, floors, ids := make([]int64, n), make([]int64, n), make([]int64, n)
		mine := make([]bool, n)
		for i, c := range plain {
			keys[i], nonces[i], ids[i] = c.o.ref.Key, c.o.ref.Nonce, c.o.id
			ttls[i], floors[i], holders[i], mine[i] = c.ttl, c.floor, c.holder, c.mine
		}
		words, err = s.ask(ctx, n, s.d.sql.acquireMany, ns, keys, nonces, ttls, floors, holders, ids, mine)
	}
	if err != nil {
		return err
	}
	for i, word := range words {
		plain[i].answer = word
	}
	for _, c := range calls {
		tried := !c.o.acquire.BackStop || c.mine
		for {
			if got := c.answer == "got"; got || c.answer == "missed" {
				c.answer, err = s.askRest(ctx, c.o, s.d.sql.acquireRest, ns, c.o.ref.Key, c.o.ref.Nonce, c.ttl, c.floor, c.holder, c.o.id, got, c.mine)
				if err != nil {
					return err
				}
			}
			if tried || !strings.HasPrefix(c.answer, "blocked ") {
				break
			}
			// The term is past its time, and nobody has looked yet whether a session still has the advisory lock: its process may be dead.
			tried = true
			c.answer, err = s.askRest(ctx, c.o, s.d.sql.acquire, ns, c.o.ref.Key, c.o.ref.Nonce, c.ttl, c.floor, c.holder, c.o.id, c.mine)
			if err != nil {
				return err
			}
		}
		s.granted(c.o, c.answer)
	}
	return nil
}

// askRest sends the statement of a single op that was left by the one of many. An error of the server is that op's alone;
// the error that it returns is that of a connection that has ended.
func (s *session) askRest(ctx context.Context, o *op, sql string, args ...any) (answer string, err error) {
	words, err := s.ask(ctx, 1, sql, args...)
	switch {
	case err == nil:
		return words[0], nil
	case s.conn.IsClosed():
		return "", err
	}
	s.cleanse([]*op{o})
	o.err = err
	if s.conn == nil {
		return "", err
	}
	return "", nil
}

// ask sends a statement that has n rows of one text.
func (s *session) ask(ctx context.Context, n int, sql string, args ...any) ([]string, error) {
	rows, err := s.conn.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	words := make([]string, 0, n)
	for rows.Next() {
		words = append(words, string(rows.RawValues()[0]))
	}
	if err := rows.Err(); err != nil {
		return nil, err // before the end of the statement nothing is sure
	}
	if len(words) != n {
		return nil, fmt.Errorf("the server answered %d of %d calls", len(words), n)
	}
	return words, nil
}

// granted judges the answer to an acquire.
func (s *session) granted(o *op, answer string) {
	word, rest, _ := strings.Cut(answer, " ")
	switch word {
	case "": // failed
	case "granted", "rearmed":
		if o.grant, o.err = parseGrant(o.ref.Key, rest); o.err == nil && word == "granted" {
			s.hold(o)
		}
	case "held", "blocked":
		var t driver.Term
		if t, o.err = parseTerm(o.ref.Key, rest); o.err == nil {
			if word == "blocked" {
				t.Remaining, t.Overdue = blockedFor(rest)
			}
			o.held = &driver.HeldError{Term: t}
		}
	case "undone":
		o.err = &unsentError{errUndone}
	case "exhausted":
		o.err = &unsentError{driver.ErrTokensExhausted}
	default:
		o.err = fmt.Errorf("the server answered %q", word)
	}
	if !s.holds(o.ref) {
		s.forget(o.ref)
	}
}

// blockedFor says when to ask again about a key that only a session keeps, for nobody knows when that ends: soon, if its process is
// just about to give it back, and ever later if it does not. overdue says that it does not.
func blockedFor(text string) (again time.Duration, overdue bool) {
	const soon, later, last = 5 * time.Millisecond, 250 * time.Millisecond, time.Second
	var r record
	_ = json.Unmarshal([]byte(text), &r) // it was parsed before
	past := -time.Duration(r.Remaining) * time.Microsecond
	switch {
	case r.Nonce == "": // a transaction has it
		return later, false
	case past < later:
		return soon, false
	}
	return min(past, last), past >= last // as in frozenStatement
}

var errUndone = errors.New("this attempt was given up, or its term given back, before it arrived")

func (s *session) sendRenewals(ops []*op) error {
	keys, nonces := make([]string, len(ops)), make([]string, len(ops))
	ttls, floors := make([]int64, len(ops)), make([]int64, len(ops))
	for i, o := range ops {
		keys[i], nonces[i], ttls[i], floors[i] = o.ref.Key, o.ref.Nonce, micros(o.renew.TTL), int64(o.renew.Floor)
	}
	ctx, cancel := s.budget()
	defer cancel()
	rows, err := s.conn.Query(ctx, s.d.sql.renew, s.d.rows.namespace, keys, nonces, ttls, floors)
	if err != nil {
		return err
	}
	defer rows.Close()
	n := 0
	for ; rows.Next() && n < len(ops); n++ {
		var answer string
		var token *int64
		var detail *string
		if err := rows.Scan(&answer, &token, &detail); err != nil {
			return err
		}
		r := s.d.rows.renewed(ops[n].renew, answer, token, detail)
		ops[n].grant, ops[n].answer = r.Grant, r.Err
		if r.Err == nil {
			s.prolong(ops[n])
		}
	}
	rows.Close()
	if err := rows.Err(); err != nil {
		return err
	}
	if n != len(ops) {
		return fmt.Errorf("the server answered %d of %d renewals", n, len(ops))
	}
	return nil
}

func (s *session) sendReleases(ops []*op) error {
	n := len(ops)
	keys, nonces := make([]string, n), make([]string, n)
	keeps, ids := make([]int64, n), make([]int64, n)
	mine := make([]bool, n)
	for i, o := range ops {
		keys[i], nonces[i], ids[i], keeps[i], mine[i] = o.ref.Key, o.ref.Nonce, o.id, micros(o.release.KeepFor), s.holds(o.ref)
	}
	ctx, cancel := s.budget()
	defer cancel()
	ns := s.d.rows.namespace
	sql, args := s.d.sql.releaseMany, []any{ns, keys, nonces, keeps, ids, mine}
	if n == 1 {
		sql, args = s.d.sql.release, []any{ns, keys[0], nonces[0], keeps[0], ids[0], mine[0]}
	}
	words, err := s.ask(ctx, n, sql, args...)
	if err != nil {
		return err
	}
	for i, o := range ops {
		answer := words[i]
		switch answer {
		case "waited": // if this fails, who waits finds out by polling: the release stands
			if _, err := s.conn.Exec(ctx, s.d.sql.wake, ns, keys[i]); err != nil && s.conn.IsClosed() {
				return err
			}
		case "rest":
			answer, err = s.askRest(ctx, o, s.d.sql.releaseRest, ns, keys[i], nonces[i], keeps[i], o.release.Undo, ids[i], mine[i])
			if err != nil {
				return err
			}
		}
		s.released(o, answer)
	}
	return nil
}

// released judges the answer to a release.
func (s *session) released(o *op, answer string) {
	word, rest, _ := strings.Cut(answer, " ")
	if word == "" { // failed
		return
	}
	s.drop(o.ref)
	s.forget(o.ref)
	if word != "released" && word != "waited" {
		o.answer = goneError("release", o.ref.Key, word, rest)
	}
}
