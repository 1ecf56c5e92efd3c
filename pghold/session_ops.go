package pghold

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

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
	if s.closing {
		s.mu.Unlock()
		s.fail(o, &unsentError{driver.ErrClosed})
		return
	}
	s.queue = append(s.queue, o)
	interrupt := s.interrupt
	s.mu.Unlock()
	if interrupt != nil {
		interrupt()
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// wait returns when there is an answer or the caller's context has ended. What is not sent by then is not sent.
func (o *op) wait() error {
	select {
	case <-o.done:
		return o.err
	case <-o.ctx.Done():
	}
	s := o.s
	s.mu.Lock()
	sent := o.sent
	if !sent {
		if i := slices.Index(s.queue, o); i >= 0 {
			s.queue = slices.Delete(s.queue, i, i+1)
		}
	}
	s.mu.Unlock()
	if !sent {
		if o.kind == acquireOp {
			s.forget(o.ref)
		}
		return &unsentError{fmt.Errorf("the connection was not free in time: %w", o.ctx.Err())}
	}
	select {
	case <-o.done: // both at once
		return o.err
	default:
		return fmt.Errorf("no answer in time: %w", o.ctx.Err())
	}
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
		refs := map[driver.Ref]bool{}
		rest := s.queue[:0]
		for _, o := range s.queue {
			if o.kind != kind || len(some) == batchSize || refs[o.ref] { // a second try of the same term comes after the first
				rest = append(rest, o)
				continue
			}
			refs[o.ref], o.sent = true, true
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
	if s.conn.IsClosed() {
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
	var keys, nonces, holders []string
	var ttls, floors, ids []int64
	var mine []bool
	for _, o := range ops {
		holder, err := toText(o.acquire.Holder)
		if err != nil {
			return &unsentError{err}
		}
		keys, nonces, holders = append(keys, o.ref.Key), append(nonces, o.ref.Nonce), append(holders, holder)
		ttls = append(ttls, micros(max(o.acquire.TTL, o.acquire.MinHold)))
		floors = append(floors, int64(min(o.acquire.Floor, driver.MaxToken)))
		ids, mine = append(ids, o.id), append(mine, s.has(o.ref.Key))
	}
	ctx, cancel := s.budget()
	defer cancel()
	return s.each(ctx, ops, s.granted, s.d.sql.acquire, s.d.rows.namespace, keys, nonces, ttls, floors, holders, ids, mine)
}

// each sends a statement that answers every op with a row of one word and what belongs to it.
func (s *session) each(ctx context.Context, ops []*op, judge func(o *op, word, rest string), sql string, args ...any) error {
	rows, err := s.conn.Query(ctx, sql, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	words := make([]string, 0, len(ops))
	for rows.Next() {
		words = append(words, string(rows.RawValues()[0]))
	}
	if err := rows.Err(); err != nil {
		return err
	}
	if len(words) != len(ops) {
		return fmt.Errorf("the server answered %d of %d calls", len(words), len(ops))
	}
	for i, o := range ops { // only now: before the end of the statement nothing is sure
		word, rest, _ := strings.Cut(words[i], " ")
		judge(o, word, rest)
	}
	return nil
}

// granted judges the answer to an acquire.
func (s *session) granted(o *op, word, rest string) {
	switch word {
	case "granted", "rearmed":
		if o.grant, o.err = parseGrant(o.ref.Key, rest); o.err == nil && word == "granted" {
			s.hold(o)
		}
	case "held", "blocked":
		var t driver.Term
		if t, o.err = parseTerm(o.ref.Key, rest); o.err == nil {
			if word == "blocked" {
				t.Remaining = blockedFor
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
	var keys, nonces []string
	var keeps, ids []int64
	var undo, mine []bool
	for _, o := range ops {
		keys, nonces, ids = append(keys, o.ref.Key), append(nonces, o.ref.Nonce), append(ids, o.id)
		keeps, undo = append(keeps, micros(o.release.KeepFor)), append(undo, o.release.Undo)
		mine = append(mine, s.holds(o.ref))
	}
	ctx, cancel := s.budget()
	defer cancel()
	return s.each(ctx, ops, s.released, s.d.sql.releaseOwn, s.d.rows.namespace, keys, nonces, keeps, undo, ids, mine)
}

// released judges the answer to a release.
func (s *session) released(o *op, word, rest string) {
	s.drop(o.ref)
	s.forget(o.ref)
	if word != "released" {
		o.answer = goneError("release", o.ref.Key, word, rest)
	}
}
