package drivertest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// R6: a store that says FIFO keeps waiters in line and hands over in the step that frees the key. See driver.Queue.
var queueCases = []testCase{
	{"R6/FIFOHasALine", func(r *rig) {
		if _, ok := driver.As[driver.Queue](r.open()); !ok && r.traits.FIFO {
			r.Errorf("R6: Traits.FIFO is set, but the store keeps no line")
		}
	}},
	{"R6/EnqueueOfAFreeKeyGrants", func(r *rig) {
		l := r.line()
		if l == nil {
			return
		}
		req := r.request("k", r.long)
		if _, err := l.q.Enqueue(r.ctx, req); err != nil {
			r.Fatalf("Enqueue of a free key: %v", err)
		}
		if s := r.refused(r.open(), "k"); s.Nonce != req.Ref.Nonce {
			r.Errorf("R6: the key is held by another one than who was granted: %+v", s.Term)
		}
	}},
	{"R6/AReleaseHandsOverInOrder", func(r *rig) {
		// The places are of two processes, the last release is by a third.
		l, other := r.line(), r.line()
		if l == nil {
			return
		}
		t := r.acquire(r.open(), "k", r.long)
		var places []*spot
		for i := range 6 {
			places = append(places, r.enqueue([]*line{l, other}[i%2], "k", r.long, i+1))
		}
		tokens := t.Token
		r.release(t)
		for i, p := range places {
			g := r.handedOver(p)
			if r.traits.Fencing != driver.NoTokens && g.Token <= tokens {
				r.Errorf("R3: a hand-over has token %d after %d", g.Token, tokens)
			}
			if g.Previous != driver.Released {
				r.Errorf("R6: the term before hand-over %d is said to have ended: %v", i, g.Previous)
			}
			tokens = g.Token
			if err := p.l.d.Release(r.ctx, &driver.ReleaseRequest{Ref: p.req.Ref}); err != nil {
				r.Fatalf("Release of what was handed over: %v", err)
			}
		}
		r.acquire(l.d, "k", r.long) // nobody is left in line
	}},
	{"R6/AHandOverIsPushed", func(r *rig) {
		l := r.line()
		if l == nil {
			return
		}
		t := r.acquire(r.open(), "k", r.long)
		p := r.enqueue(l, "k", r.long, 1)
		r.release(t)
		push := l.pushed(p)
		if push.Grant.Token <= t.Token && r.traits.Fencing != driver.NoTokens {
			r.Errorf("R3: a hand-over has token %d after %d", push.Grant.Token, t.Token)
		}
		if push.TTL <= 0 || push.TTL > min(r.long, driver.Provisional)+r.traits.TTLStep {
			r.Errorf("R6: a hand-over is said to last %v, want at most %v", push.TTL, min(r.long, driver.Provisional))
		}
	}},
	{"R6/AHandOverLastsForTheClaim", func(r *rig) {
		// Nobody confirms it, as if the waiter had died in the last moment. It may have begun to work before: a message is enough for
		// that, so it is a lapse, and what the term before it was is none of the successor's business.
		l := r.line()
		if l == nil {
			return
		}
		t := r.acquire(r.open(), "k", r.long)
		p := r.enqueue(l, "k", r.long, 1)
		sent := time.Now()
		r.release(t)
		g := l.pushed(p).Grant
		next := r.passes(t.d, "k", sent.Add(driver.Provisional), time.Now().Add(driver.Provisional+r.traits.TTLStep))
		r.follows(next, driver.Lapsed)
		if next.Prior == nil || next.Prior.Token != g.Token {
			r.Errorf("R10: Prior = %+v after a hand-over with token %d that nobody has confirmed", next.Prior, g.Token)
		}
	}},
	{"R6/RenewAndAttendConfirm", func(r *rig) {
		l := r.line()
		if l == nil {
			return
		}
		for _, how := range []string{"Renew", "Attend"} {
			t := r.acquire(r.open(), how, r.long)
			p := r.enqueue(l, how, r.long, 1)
			r.release(t)
			l.pushed(p)
			sent := time.Now()
			if how == "Renew" {
				if _, err := l.d.Renew(r.ctx, &driver.RenewRequest{Ref: p.req.Ref, TTL: r.long}); err != nil {
					r.Fatalf("Renew of what was handed over: %v", err)
				}
			} else if s := r.attend(p); !s.Granted {
				r.Fatalf("R6: Attend of what was handed over: %+v", s)
			}
			r.endsBetween(r.look(l.d, how), sent.Add(r.long), time.Now().Add(r.long+r.traits.TTLStep))
		}
	}},
	{"R6/AttendTellsWhereAPlaceStands", func(r *rig) {
		l := r.line()
		if l == nil {
			return
		}
		sent := time.Now()
		t := r.acquire(r.open(), "k", r.long)
		first, second := r.enqueue(l, "k", r.long, 1), r.enqueue(l, "k", r.long, 2)
		never := &spot{l: l, req: r.request("k", r.long)}
		for i, want := range []int{1, 2, 0} {
			s := r.attend([]*spot{first, second, never}[i])
			if s.Place != want || s.Granted {
				r.Errorf("R6: place %d of the line is told %+v", want, s)
			}
			if want > 0 {
				r.endsBetween(sight{driver.Term{Key: "k", Remaining: s.Remaining}, sent, time.Now()}, t.earliest(), r.latest(t))
			}
		}
		// Together, and with more of them, it is the same.
		third := r.enqueue(l, "k", r.long, 3)
		asked := []*driver.AcquireRequest{first.req, never.req, second.req, third.req, second.req}
		together := l.q.Attend(r.ctx, asked)
		for i, want := range []int{1, 0, 2, 3, 2} {
			if len(together) != len(asked) || together[i].Err != nil || together[i].Place != want || together[i].Granted {
				r.Errorf("R6: asked together, %d of the places is told %+v, want place %d", i, together, want)
			}
		}
		if _, err := l.q.Enqueue(r.ctx, second.req); !placed(err, 2) {
			r.Errorf("R6: the same Enqueue again: %v, want place 2", err)
		}
	}},
	{"R6/AFreeKeyGoesToTheLineFirst", func(r *rig) {
		l := r.line()
		if l == nil {
			return
		}
		for how, touch := range map[string]func(key string){
			"Acquire": func(key string) { r.refused(r.open(), key) },
			"Enqueue": func(key string) { r.enqueue(l, key, r.long, 1) },
			"Attend":  func(key string) { r.attend(&spot{l: l, req: r.request(key, r.long)}) },
		} {
			t, p := r.lapsingTerm(l, how)
			time.Sleep(time.Until(r.latest(t).Add(10 * time.Millisecond)))
			r.alive(l)
			touch(how)
			if g := l.pushed(p).Grant; g.Previous != driver.Lapsed || g.Prior == nil || g.Prior.Nonce != "" && g.Prior.Nonce != t.ref.Nonce {
				r.Errorf("R6: after %s the grant is %+v, want that of the first in line after a lapse", how, g)
			}
		}
	}},
	{"R6/BreakNowHandsOver", func(r *rig) {
		l := r.line()
		if l == nil {
			return
		}
		op := r.breaker(l.d)
		if op == nil {
			return
		}
		t := r.acquire(r.open(), "k", r.long)
		p := r.enqueue(l, "k", r.long, 1)
		r.mustBreak(op, &driver.BreakRequest{Ref: t.ref, By: "ops", Now: true})
		if g := r.handedOver(p); g.Previous != driver.Broken {
			r.Errorf("R6: the grant after Break is %+v", g)
		}
	}},
	{"R6/ReleaseLeavesTheLine", func(r *rig) {
		l := r.line()
		if l == nil {
			return
		}
		t := r.acquire(r.open(), "k", r.long)
		first, second := r.enqueue(l, "k", r.long, 1), r.enqueue(l, "k", r.long, 2)
		if err := l.d.Release(r.ctx, &driver.ReleaseRequest{Ref: first.req.Ref}); err != nil {
			r.Errorf("R6: Release of a place: %v", err)
		}
		if s := r.attend(first); s != (driver.Standing{}) {
			r.Errorf("R6: a place that was left is told %+v", s)
		}
		r.release(t)
		r.handedOver(second)
		// The second time it is gone, as everything is that does not stand.
		r.gone("Release of a place that was left", l.d.Release(r.ctx, &driver.ReleaseRequest{Ref: first.req.Ref}))
	}},
	{"R6/ManyLeaveTheLineAtOnce", func(r *rig) {
		l, other := r.line(), r.line()
		if l == nil {
			return
		}
		t := r.acquire(r.open(), "k", r.long)
		var left, stay []*spot
		for i := range 12 {
			if p := r.enqueue([]*line{l, other}[i/6], "k", r.long, i+1); i%6 == 3 {
				stay = append(stay, p)
			} else {
				left = append(left, p)
			}
		}
		never := &spot{l: l, req: r.request("k", r.long)}
		for range 2 { // the second time, if its answer was lost
			r.leave(l, append(slices.Clone(left[:5]), never)...)
			r.leave(other, left[5:]...)
		}
		for _, p := range append(left, never) {
			if s := r.attend(p); s != (driver.Standing{}) {
				r.Errorf("R6: a place that was left is told %+v", s)
			}
		}
		for i, p := range stay {
			if s := r.attend(p); s.Place != i+1 {
				r.Errorf("R6: who stays is told %+v, want place %d", s, i+1)
			}
		}
		r.release(t)
		r.handedOver(stay[0])
		r.refused(r.open(), "k")
	}},
	{"R6/WhatAPlaceHasBecomeIsLeft", func(r *rig) {
		l := r.line()
		if l == nil {
			return
		}
		t := r.acquire(r.open(), "k", r.long)
		var left []*spot
		for i := range 3 {
			left = append(left, r.enqueue(l, "k", r.long, i+1))
		}
		stays := r.enqueue(l, "k", r.long, 4)
		r.release(t)
		l.pushed(left[0])
		r.leave(l, left...)
		if g := r.handedOver(stays); g.Previous != driver.Released {
			r.Errorf("R6: behind a term that was left the next in line is told that the one before was %v", g.Previous)
		}
		l.pushed(stays)
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, p := range left[1:] {
			if _, ok := l.by[p.req.Ref.Nonce]; ok {
				r.Errorf("R6: the key was handed over to one that left in the same call")
			}
		}
	}},
	{"R6/WhatWasLeftGetsNoPlace", func(r *rig) {
		l := r.line()
		if l == nil || !r.h.Overtaken {
			return
		}
		var late []*spot
		for range 3 {
			late = append(late, &spot{l: l, req: r.request("k", r.long)})
		}
		r.leave(l, late...)
		t := r.acquire(r.open(), "k", r.long)
		for _, p := range late {
			_, err := l.q.Enqueue(r.ctx, p.req)
			if held := (*driver.HeldError)(nil); errors.As(err, &held) && held.Place > 0 {
				r.Errorf("R6: a request that was left before it arrived got place %d", held.Place)
			}
		}
		r.release(t)
		r.late(l.d, late[0].req)
		r.acquire(l.d, "k", r.long)
	}},
	{"R6/ASilentProcessIsSkipped", func(r *rig) {
		l, dead := r.line(), r.line()
		if l == nil {
			return
		}
		t := r.acquire(r.open(), "k", r.long)
		r.enqueue(dead, "k", r.long, 1)
		p := r.enqueue(l, "k", r.long, 2)
		for silent := time.Now().Add(driver.Alive + 100*time.Millisecond); time.Now().Before(silent); time.Sleep(200 * time.Millisecond) {
			r.attend(p)
		}
		r.release(t)
		if s := r.attend(p); !s.Granted {
			r.Errorf("R6: behind a process that has been silent for %v a place is told %+v", driver.Alive, s)
		}
	}},
	{"R6/ACoolingKeyIsNotHandedOver", func(r *rig) {
		l := r.line()
		if l == nil {
			return
		}
		t := r.acquire(r.open(), "k", r.long)
		p := r.enqueue(l, "k", r.long, 1)
		sent := time.Now()
		if err := t.d.Release(r.ctx, &driver.ReleaseRequest{Ref: t.ref, KeepFor: r.short}); err != nil {
			r.Fatalf("Release: %v", err)
		}
		r.eventually("R6: the key is handed over when it has cooled", func() bool {
			s := r.attend(p)
			if s.Granted && time.Now().Before(sent.Add(r.short)) {
				r.Errorf("R1: handed over %v before it had cooled", time.Until(sent.Add(r.short)))
			}
			return s.Granted
		})
	}},
}

// A line is a driver as a Queue, and what was pushed to it.
type line struct {
	r  *rig
	d  driver.Driver
	q  driver.Queue
	mu sync.Mutex
	by map[string]driver.Push // nonce
}

// line opens a driver that listens, or returns nil if the store keeps no lines.
func (r *rig) line() *line {
	r.Helper()
	l := &line{r: r, d: r.open(), by: map[string]driver.Push{}}
	var ok bool
	if l.q, ok = driver.As[driver.Queue](l.d); !ok {
		return nil
	}
	if err := l.q.Listen(r.ctx, l.hear); err != nil {
		r.Fatalf("Listen: %v", err)
	}
	return l
}

func (l *line) hear(p driver.Push) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.by[p.Nonce] = p
}

// pushed waits for the message about a place.
func (l *line) pushed(p *spot) (m driver.Push) {
	l.r.Helper()
	l.r.eventually("R6: a hand-over is pushed", func() (ok bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		m, ok = l.by[p.req.Ref.Nonce]
		return ok
	})
	return m
}

// A spot is one place.
type spot struct {
	l   *line
	req *driver.AcquireRequest
}

func placed(err error, n int) bool {
	var held *driver.HeldError
	return errors.As(err, &held) && held.Place == n
}

// enqueue takes a place that has to be the n-th.
func (r *rig) enqueue(l *line, key string, ttl time.Duration, n int) *spot {
	r.Helper()
	p := &spot{l, r.request(key, ttl)}
	if _, err := l.q.Enqueue(r.ctx, p.req); !placed(err, n) {
		r.Fatalf("R6: Enqueue of the taken key %q: %v, want place %d", key, err, n)
	}
	return p
}

// lapsingTerm starts a term that ends soon and takes a place behind it, which is too late at times where calls are slow.
func (r *rig) lapsingTerm(l *line, key string) (term, *spot) {
	r.Helper()
	for ttl := r.short; ; ttl *= 2 {
		t := r.acquire(l.d, key, ttl)
		p := &spot{l, r.request(key, r.long)}
		_, err := l.q.Enqueue(r.ctx, p.req)
		if placed(err, 1) {
			return t, p
		}
		if err != nil || ttl > time.Minute {
			r.Fatalf("R6: Enqueue of the taken key %q: %v, want place 1", key, err)
		}
		if err := l.d.Release(r.ctx, &driver.ReleaseRequest{Ref: p.req.Ref}); err != nil {
			r.Fatalf("Release: %v", err)
		}
	}
}

// leave gives up places whose requests may still arrive.
func (r *rig) leave(l *line, spots ...*spot) {
	r.Helper()
	var left []driver.Leaving
	for _, p := range spots {
		left = append(left, driver.Leaving{Request: p.req})
	}
	if err := l.q.Leave(r.ctx, "k", left); err != nil {
		r.Fatalf("R6: Leave: %v", err)
	}
}

func (r *rig) attend(p *spot) driver.Standing {
	r.Helper()
	s := p.l.q.Attend(r.ctx, []*driver.AcquireRequest{p.req})
	if len(s) != 1 || s[0].Err != nil {
		r.Fatalf("Attend: %+v", s)
	}
	return s[0]
}

// alive says that a line's process is, by attending to something else.
func (r *rig) alive(l *line) {
	r.Helper()
	r.attend(&spot{l: l, req: r.request(fmt.Sprint("not", time.Now().UnixNano()), r.long)})
}

// handedOver checks that a place has become the term, and confirms it.
func (r *rig) handedOver(p *spot) driver.Grant {
	r.Helper()
	s := r.attend(p)
	if !s.Granted {
		r.Fatalf("R6: the next in line is told %+v after a release", s)
	}
	return s.Grant
}
