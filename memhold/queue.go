package memhold

import (
	"context"
	"slices"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// A place is a waiting Ref. Its driver is the process that has to be alive.
type place struct {
	driver *Driver
	req    driver.AcquireRequest
}

// Enqueue implements driver.Queue.
func (d *Driver) Enqueue(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	if err := d.usable(ctx, "enqueue", req.Ref.Key); err != nil {
		return driver.Grant{}, err
	}
	s, now := d.store, time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	d.seen = now
	g, err := s.acquire(now, req)
	held, taken := err.(*driver.HeldError)
	if !taken {
		return g, err
	}
	if held.Place = s.placeOf(req.Ref); held.Place == 0 {
		s.lines[req.Ref.Key] = append(s.lines[req.Ref.Key], &place{d, *req})
		held.Place = len(s.lines[req.Ref.Key])
	}
	return g, held
}

// Attend implements driver.Queue.
func (d *Driver) Attend(ctx context.Context, reqs []*driver.AcquireRequest) []driver.Standing {
	out := make([]driver.Standing, len(reqs))
	for i, req := range reqs {
		if err := d.usable(ctx, "attend", req.Ref.Key); err != nil {
			out[i].Err = err
			continue
		}
		d.store.mu.Lock()
		out[i] = d.store.attend(time.Now(), d, req)
		d.store.mu.Unlock()
	}
	return out
}

// Leave implements driver.Queue. No call returns while it can still take effect, so there is nothing to refuse.
func (d *Driver) Leave(ctx context.Context, key string, left []driver.Leaving) error {
	if err := d.usable(ctx, "leave", key); err != nil {
		return err
	}
	nonces := make(map[string]bool, len(left))
	for _, l := range left {
		nonces[l.Request.Ref.Nonce] = true
	}
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	d.store.leaveAll(time.Now(), key, nonces)
	return nil
}

// Listen implements driver.Queue.
func (d *Driver) Listen(ctx context.Context, hear func(driver.Push)) error {
	if err := d.usable(ctx, "listen", ""); err != nil {
		return err
	}
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	d.hear = hear
	return nil
}

// What follows runs under s.mu, at the moment now.

func (s *Store) attend(now time.Time, d *Driver, req *driver.AcquireRequest) driver.Standing {
	d.seen = now
	s.promote(now, req.Ref.Key)
	at := s.slots[req.Ref.Key]
	if at != nil && at.taken(now) && at.belongsTo(req.Ref) && at.ending != driver.Broken {
		at.keep(now.Add(max(req.TTL, req.MinHold)))
		return driver.Standing{Granted: true, Grant: at.grant()}
	}
	n := s.placeOf(req.Ref)
	if n == 0 {
		return driver.Standing{}
	}
	return driver.Standing{Place: n, Remaining: at.free.Sub(now)}
}

// promote hands a free key to the first in line whose driver is alive.
func (s *Store) promote(now time.Time, key string) {
	if at := s.slots[key]; at != nil && at.taken(now) {
		return
	}
	for len(s.lines[key]) > 0 {
		p := s.lines[key][0]
		s.lines[key] = s.lines[key][1:]
		if len(s.lines[key]) == 0 {
			delete(s.lines, key)
		}
		if p.driver.closed.Load() || now.Sub(p.driver.seen) >= driver.Alive {
			continue
		}
		// Nobody proposes a floor for a hand-over: the proposal of long ago says nothing.
		lasts := min(max(p.req.TTL, p.req.MinHold), driver.Provisional)
		g, err := s.start(now, &driver.AcquireRequest{Ref: p.req.Ref, TTL: lasts, Holder: p.req.Holder})
		if err == nil && p.driver.hear != nil {
			p.driver.hear(driver.Push{Nonce: p.req.Ref.Nonce, Grant: g, TTL: lasts})
		}
		return
	}
}

// placeOf returns where a Ref stands in line, from 1, or 0.
func (s *Store) placeOf(ref driver.Ref) int {
	for i, p := range s.lines[ref.Key] {
		if p.req.Ref == ref {
			return i + 1
		}
	}
	return 0
}

// leaveAll drops places, and ends the term that one of them has become, as if it had never been.
func (s *Store) leaveAll(now time.Time, key string, nonces map[string]bool) {
	line := slices.DeleteFunc(s.lines[key], func(p *place) bool { return nonces[p.req.Ref.Nonce] })
	if s.lines[key] = line; len(line) == 0 {
		delete(s.lines, key)
	}
	if at := s.slots[key]; at != nil && at.taken(now) && at.term != nil && nonces[at.term.nonce] {
		_ = s.release(now, &driver.ReleaseRequest{Ref: driver.Ref{Key: key, Nonce: at.term.nonce}, Undo: true}) // it is the current one
		return
	}
	s.promote(now, key)
}

// leave drops a place and reports whether there was one.
func (s *Store) leave(ref driver.Ref) bool {
	i := s.placeOf(ref)
	if i == 0 {
		return false
	}
	line := s.lines[ref.Key]
	line = append(line[:i-1:i-1], line[i:]...)
	if s.lines[ref.Key] = line; len(line) == 0 {
		delete(s.lines, ref.Key)
	}
	return true
}
