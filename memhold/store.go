package memhold

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// A Store holds terms. Drivers on the same Store exclude each other, as processes do that share a server; closing one
// loses nothing. It is safe for concurrent use.
type Store struct {
	mu       sync.Mutex
	slots    map[string]*slot      // by key
	lines    map[string][]*place   // by key, in the order in which they came; see queue.go
	watchers map[string][]*watcher // likewise; see watch.go
	visits   []visit               // one for each slot, by time; see forget.go
	records  map[recordID]record   // see ledger.go
	swept    time.Time             // when old ones were looked for
}

// NewStore returns an empty store.
func NewStore() *Store {
	return &Store{slots: map[string]*slot{}, lines: map[string][]*place{}, watchers: map[string][]*watcher{}}
}

// A slot is what the store knows about one key.
type slot struct {
	token  driver.Token  // of the last term
	free   time.Time     // the key is taken before this moment, and free from it on
	ending driver.Ending // how the last term ended, or will have ended if nothing happens until free
	term   *term         // the last term; nil once it is released
	last   driver.Token  // of the last term if it was released
	prior  *driver.Term  // of a term that was undone: the one before, as if nothing had come since; ending says how it ended
	job    *job          // the record of the job that the key names; nil if there is none; see job.go
}

// A term is the part that is forgotten on release.
type term struct {
	nonce    string
	holder   driver.Holder
	acquired time.Time
	seed     driver.Token  // of the term at other stores, or 0; shown instead of the slot's
	broken   string        // by whom and why
	previous driver.Ending // of the term before, to be told again to a caller who did not hear it
	prior    *driver.Term
	last     driver.Token // of the term before, if it was released
}

func (s *slot) taken(now time.Time) bool      { return now.Before(s.free) }
func (s *slot) belongsTo(ref driver.Ref) bool { return s.term != nil && s.term.nonce == ref.Nonce }

// keep lets the slot be taken until t, or longer if it is anyway.
func (s *slot) keep(t time.Time) {
	if t.After(s.free) {
		s.free = t
	}
}

// The steps below are the semantics. Each runs under s.mu, at the moment now.

func (s *Store) acquire(now time.Time, req *driver.AcquireRequest) (driver.Grant, error) {
	key := req.Ref.Key
	s.promote(now, key)
	if at := s.slots[key]; at != nil {
		if req.Once != nil {
			if err := at.inTheWay(now, req); err != nil {
				return driver.Grant{}, err
			}
		}
		if !at.taken(now) {
			return s.start(now, req)
		}
		if !at.belongsTo(req.Ref) || at.ending == driver.Broken {
			return driver.Grant{}, &driver.HeldError{Term: at.describe(key, now)}
		}
		// Already mine: the first reply was lost. The caller counts from the sending of this try, so its time starts anew.
		at.keep(now.Add(max(req.TTL, req.MinHold)))
		grant := at.grant()
		if req.Once != nil {
			grant.Job = at.showJob(key, now)
		}
		return grant, nil
	}
	return s.start(now, req)
}

// grant is what is told to the holder of the term that stands.
func (s *slot) grant() driver.Grant {
	return driver.Grant{Token: s.token, Previous: s.term.previous, Prior: s.term.prior, PriorToken: s.term.last}
}

// start begins a term of a key that is free.
func (s *Store) start(now time.Time, req *driver.AcquireRequest) (driver.Grant, error) {
	key := req.Ref.Key
	at, known := s.slots[key]
	if !known {
		at = &slot{}
	}
	token, err := driver.TokenAfter(at.token, now, max(req.Floor, req.Seed))
	if (req.Seed > at.token || req.Seed == at.token && at.belongsTo(req.Ref)) && req.Seed != 0 && req.Seed <= driver.MaxToken {
		token, err = req.Seed, nil
	}
	if err != nil {
		return driver.Grant{}, fmt.Errorf("memhold: acquire %q: %w", key, err)
	}
	since := now
	if req.Seed != 0 && !req.Since.IsZero() {
		since = req.Since
	}
	grant := driver.Grant{Token: token, Previous: at.ending}
	if at.term != nil { // it was not released
		prior := at.describe(key, now)
		grant.Prior = &prior
	} else {
		grant.Prior, grant.PriorToken = at.prior, at.last
	}
	*at = slot{token: token, free: now.Add(max(req.TTL, req.MinHold)), ending: driver.Lapsed, term: &term{
		nonce: req.Ref.Nonce, holder: req.Holder, acquired: since, previous: grant.Previous, prior: grant.Prior,
		last: grant.PriorToken, seed: req.Seed,
	}, job: at.job}
	if req.Once != nil {
		at.claim(now, req)
		grant.Job = at.showJob(key, now)
	}
	if !known {
		s.slots[key] = at
		s.remember(now, key)
	}
	return grant, nil
}

// current returns the slot of the term ref, or why it is not the current one.
func (s *Store) current(now time.Time, ref driver.Ref) (*slot, error) {
	at := s.slots[ref.Key]
	switch {
	case at == nil:
		return nil, driver.ErrGone
	case !at.belongsTo(ref):
		if before := at.before(); before != nil && before.Nonce == ref.Nonce && before.Broken != "" {
			return nil, fmt.Errorf("%w: %s", driver.ErrBroken, before.Broken) // its successor's slot still tells
		}
		return nil, driver.ErrGone
	case at.taken(now):
		return at, nil
	case at.ending == driver.Broken:
		return nil, fmt.Errorf("%w: %s", driver.ErrBroken, at.term.broken)
	default:
		return nil, fmt.Errorf("%w: its time ran out %v ago", driver.ErrGone, now.Sub(at.free))
	}
}

func (s *Store) renew(now time.Time, req *driver.RenewRequest) (driver.Grant, error) {
	at, err := s.current(now, req.Ref)
	if err == nil && at.ending == driver.Broken {
		err = fmt.Errorf("%w: %s", driver.ErrBroken, at.term.broken)
	}
	if err == nil && req.Floor != 0 {
		if req.Floor < at.token {
			err = fmt.Errorf("%w: it is %d, the floor %d", driver.ErrTokenPassed, at.token, req.Floor)
		} else {
			at.token, at.term.seed = req.Floor, 0
		}
	}
	if err != nil {
		return driver.Grant{}, fmt.Errorf("memhold: renew %q: %w", req.Ref.Key, err)
	}
	at.keep(now.Add(req.TTL))
	return driver.Grant{Token: at.token}, nil
}

func (s *Store) release(now time.Time, req *driver.ReleaseRequest) error {
	at, err := s.current(now, req.Ref)
	if req.Undo {
		s.slots[req.Ref.Key].withdraw(req.Ref)
	}
	if req.Record != nil {
		err = s.slots[req.Ref.Key].record(now, req, err)
		if errors.Is(err, errRecorded) {
			return nil
		}
	}
	if err != nil {
		if s.leave(req.Ref) {
			err = nil
		}
		s.promote(now, req.Ref.Key)
		if err != nil {
			err = fmt.Errorf("memhold: release %q: %w", req.Ref.Key, err)
		}
		return err
	}
	at.ending, at.prior, at.last = driver.Released, nil, at.token
	if t := at.term; req.Undo { // as if it had never been
		at.ending, at.prior, at.last = t.previous, t.prior, t.last
	}
	at.term, at.free = nil, now.Add(req.KeepFor) // a slot that is taken without a term is cooling
	if req.Record != nil && req.Record.State != driver.JobOpen {
		s.wakeAll(req.Ref.Key)
	}
	s.freed(now, req.Ref.Key)
	return nil
}

func (s *Store) breakTerm(now time.Time, req *driver.BreakRequest) error {
	at, err := s.current(now, req.Ref)
	if err != nil {
		return fmt.Errorf("memhold: break %q: %w", req.Ref.Key, err)
	}
	at.term.broken, at.ending = req.By, driver.Broken
	if req.Now {
		at.free = now
		s.freed(now, req.Ref.Key)
	}
	return nil
}

// before is the term before the last one, if it was not released.
func (s *slot) before() *driver.Term {
	if s.term != nil {
		return s.term.prior
	}
	return s.prior
}

// freed passes a key on that has become free, or will when it has cooled.
func (s *Store) freed(now time.Time, key string) {
	s.promote(now, key)
	if at := s.slots[key]; at.term == nil || !at.taken(now) {
		s.wake(key)
	}
}

func (s *slot) describe(key string, now time.Time) driver.Term {
	d := driver.Term{Key: key, Token: s.token, Remaining: max(0, s.free.Sub(now)), Cooling: s.term == nil}
	if t := s.term; t != nil {
		d.Token = cmp.Or(t.seed, s.token)
		d.Nonce, d.Holder, d.Acquired, d.Broken = t.nonce, t.holder, t.acquired, t.broken
	}
	return d
}
