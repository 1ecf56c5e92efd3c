package drivertest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// clockSkew is how far apart the wall clocks of the suite and of the store may be.
const clockSkew = 300 * time.Millisecond

// slack is how much a reported duration may be off by rounding, beside Traits.TTLStep.
const slack = 5 * time.Millisecond

// A rig is what a case works with: one fresh store, and verbs that check what every answer has to fulfil.
type rig struct {
	reporter
	h      Harness
	ctx    context.Context // ends when the case has taken far too long
	store  Store
	wrap   func(driver.Driver) driver.Driver
	opened []driver.Driver
	good   []driver.Driver // what is below mutants, which may not close it
	stops  []func()        // of watches
	traits driver.Traits

	long  time.Duration // a TTL that does not run out during a case
	short time.Duration // a TTL that is waited for
}

func newRig(tb testing.TB, rep reporter, h Harness, wrap func(driver.Driver) driver.Driver) *rig {
	return &rig{reporter: rep, h: h, store: h.NewStore(tb), wrap: wrap}
}

func (r *rig) do(tc testCase) {
	limit := 10 * r.h.Patience
	if r.h.Virtual {
		limit = 24 * time.Hour
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	r.ctx = ctx
	// One by one, for a mutant may panic in any of them.
	defer func() {
		for _, d := range r.good {
			d.Close()
		}
	}()
	defer func() {
		for _, d := range r.opened {
			if err := d.Close(); err != nil && !errors.Is(err, driver.ErrClosed) {
				r.Errorf("Close: %v", err)
			}
		}
	}()
	defer func() {
		for _, stop := range r.stops {
			stop()
		}
	}()
	r.traits = r.open().Traits()
	r.short = max(2*r.traits.MinTTL, 200*time.Millisecond, r.h.Straggle) // a call has no longer to be answered
	r.long = time.Hour
	if r.traits.MaxTTL > 0 {
		r.long = min(r.long, r.traits.MaxTTL)
	}
	tc.run(r)
}

const noStore = "the harness cannot open the store"

// open opens the store once more, as another process would.
func (r *rig) open() driver.Driver {
	r.Helper()
	d, err := r.store.Open()
	if err != nil {
		r.Fatalf("%s: %v", noStore, err)
	}
	if r.wrap != nil {
		r.good = append(r.good, d)
		d = r.wrap(d)
	}
	r.opened = append(r.opened, d)
	return d
}

// A term is one that the case holds or has held.
type term struct {
	driver.Grant
	d     driver.Driver
	ref   driver.Ref
	ttl   time.Duration
	sent  time.Time // before the last request that set its expiry
	heard time.Time // after the answer to it
}

// earliest and latest are the bounds of the moment at which the term ends unless renewed.
func (t term) earliest() time.Time { return t.sent.Add(t.ttl) }

func (r *rig) latest(t term) time.Time { return t.heard.Add(t.ttl + r.traits.TTLStep + r.h.Straggle) }

func (r *rig) request(key string, ttl time.Duration) *driver.AcquireRequest {
	return &driver.AcquireRequest{Ref: driver.Ref{Key: key, Nonce: newNonce()}, TTL: ttl, Holder: me()}
}

func newNonce() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// me is the holder in all requests that do not care. Two terms of one process have the same holder.
func me() driver.Holder {
	return driver.Holder{Host: "suite", PID: os.Getpid(), Label: "drivertest", Purpose: "conformance"}
}

// try makes one attempt to acquire.
func (r *rig) try(d driver.Driver, req *driver.AcquireRequest) (term, error) {
	t := term{d: d, ref: req.Ref, ttl: max(req.TTL, req.MinHold), sent: time.Now()}
	var err error
	t.Grant, err = d.Acquire(r.ctx, req)
	t.heard = time.Now()
	return t, err
}

// grant acquires what must be free.
func (r *rig) grant(d driver.Driver, req *driver.AcquireRequest) term {
	r.Helper()
	t, err := r.try(d, req)
	// Several real servers on a busy machine may not answer within a short TTL. What such an attempt won is given back.
	for tries := 0; err != nil && r.h.Straggle > 0 && tries < 30; tries++ {
		time.Sleep(50 * time.Millisecond)
		req.Ref.Nonce = newNonce()
		t, err = r.try(d, req)
	}
	if err != nil {
		r.Fatalf("Acquire of the free key %q: %v", req.Ref.Key, err)
	}
	return t
}

func (r *rig) acquire(d driver.Driver, key string, ttl time.Duration) term {
	r.Helper()
	return r.grant(d, r.request(key, ttl))
}

// calm gives the parts of a store that were not waited for time to catch up, as the slower nodes of a quorum.
func (r *rig) calm() {
	switch {
	case r.h.Virtual:
		time.Sleep(100 * time.Millisecond) // which costs nothing
	case r.h.Straggle > 0:
		time.Sleep(r.h.Straggle / 5)
	}
}

// refused tries to acquire what must be taken, and returns what the answer says about the term in the way.
func (r *rig) refused(d driver.Driver, key string) sight {
	r.Helper()
	sent := time.Now()
	got, err := d.Acquire(r.ctx, r.request(key, r.short))
	s := sight{sent: sent, heard: time.Now()}
	var held *driver.HeldError
	switch {
	case err == nil:
		r.Fatalf("R1: Acquire of the taken key %q was granted (token %d)", key, got.Token)
	case !errors.As(err, &held):
		r.Fatalf("R10: Acquire of the taken key %q: want *HeldError, got %v", key, err)
	}
	s.Term = held.Term
	if s.Key != key {
		r.Errorf("R10: *HeldError about key %q names key %q", key, s.Key)
	}
	return s
}

// renew renews a term that stands.
func (r *rig) renew(t *term, ttl time.Duration) {
	r.Helper()
	r.renewTo(t, ttl, 0)
}

func (r *rig) renewTo(t *term, ttl time.Duration, floor driver.Token) {
	r.Helper()
	sent := time.Now()
	got, err := t.d.Renew(r.ctx, &driver.RenewRequest{Ref: t.ref, TTL: ttl, Floor: floor})
	if err != nil {
		r.Fatalf("Renew of the current term of %q: %v", t.ref.Key, err)
	}
	if got.Previous != driver.None || got.Prior != nil {
		r.Errorf("Renew of %q: Previous = %v, Prior = %v; only Acquire tells these", t.ref.Key, got.Previous, got.Prior)
	}
	if floor == 0 && got.Token != t.Token {
		r.Errorf("R3: Renew of %q changed the token from %d to %d", t.ref.Key, t.Token, got.Token)
	}
	t.Token, t.ttl, t.sent, t.heard = got.Token, ttl, sent, time.Now()
}

func (r *rig) release(t term) {
	r.Helper()
	if err := t.d.Release(r.ctx, &driver.ReleaseRequest{Ref: t.ref}); err != nil {
		r.Fatalf("Release of the current term of %q: %v", t.ref.Key, err)
	}
}

// gone checks that an answer says: not the current term.
func (r *rig) gone(what string, err error) {
	r.Helper()
	var held *driver.HeldError
	switch {
	case err == nil:
		r.Errorf("R4: %s: want ErrGone, got success", what)
	case errors.As(err, &held) || !errors.Is(err, driver.ErrGone):
		r.Errorf("R10: %s: want ErrGone, got %v", what, err)
	}
}

// A sight is a term as the store showed it, and when.
type sight struct {
	driver.Term
	sent, heard time.Time // around the question
}

// endsBetween checks what a sight says about the end of the term.
func (r *rig) endsBetween(s sight, earliest, latest time.Time) {
	r.Helper()
	if end := s.heard.Add(s.Remaining + slack + r.traits.TTLStep); end.Before(earliest) {
		r.Errorf("R1: key %q has %v left, which is %v too short", s.Key, s.Remaining, earliest.Sub(end))
	}
	if end := s.sent.Add(s.Remaining - slack); end.After(latest) {
		r.Errorf("R1: key %q has %v left, which is %v too long", s.Key, s.Remaining, end.Sub(latest))
	}
}

// unchanged checks that nothing has touched a term between two sights of it.
func (r *rig) unchanged(before, after sight) {
	r.Helper()
	// Parts of a store begin to count one after the other, and it may not hear the same ones again.
	within := slack + r.h.Straggle
	r.endsBetween(after, before.sent.Add(before.Remaining-within), before.heard.Add(before.Remaining+within))
	a, b := before.Term, after.Term
	a.Remaining, b.Remaining = 0, 0
	if same := a.Acquired.Sub(b.Acquired).Abs() <= r.h.Straggle; same {
		a.Acquired, b.Acquired = time.Time{}, time.Time{}
	}
	if a != b {
		r.Errorf("R4: the term of %q was changed\nfrom %+v\nto   %+v", before.Key, a, b)
	}
}

// passes waits until the key passes to a rival on d. That must be neither before earliest nor, by what the store says
// meanwhile, after latest. It returns the rival's term.
func (r *rig) passes(d driver.Driver, key string, earliest, latest time.Time) term {
	r.Helper()
	for {
		t, err := r.try(d, r.request(key, r.long))
		var held *driver.HeldError
		switch {
		case err == nil:
			if t.heard.Before(earliest) {
				r.Errorf("R1: the term of %q ended at least %v early", key, earliest.Sub(t.heard))
			}
			return t
		case !errors.As(err, &held):
			r.Fatalf("Acquire of %q, which is held or free: %v", key, err)
		}
		// The answer may be right and still older than its arrival by any delay; only its own claims count.
		r.endsBetween(sight{held.Term, t.sent, t.heard}, earliest, latest)
		if t.sent.After(latest.Add(r.grace())) {
			r.Fatalf("R1: key %q is still held %v after its term had to end", key, t.sent.Sub(latest))
		}
		// Look ever more often as the end comes near, so that a millisecond too early is seen where calls are quick.
		time.Sleep(min(max(time.Until(earliest)/2, 100*time.Microsecond), 5*time.Millisecond))
	}
}

// grace is how late something that is due may be.
func (r *rig) grace() time.Duration {
	if r.h.Virtual {
		return time.Second // nothing but the polling takes time there
	}
	return r.h.Patience
}

// pause is one step of polling.
func (r *rig) pause() { time.Sleep(5 * time.Millisecond) }

// eventually polls until cond holds.
func (r *rig) eventually(what string, cond func() bool) {
	r.Helper()
	for give := time.Now().Add(r.grace()); !cond(); r.pause() {
		if time.Now().After(give) {
			r.Fatalf("%s: not so after %v", what, r.grace())
		}
	}
}

// lapse waits until a term has run out, without touching the key.
func (r *rig) lapse(t term) {
	r.Helper()
	time.Sleep(time.Until(r.latest(t)))
	if l, ok := driver.As[driver.Lister](t.d); ok {
		r.eventually("R1: the term of "+t.ref.Key+" has run out", func() bool {
			_, stands, err := l.Inspect(r.ctx, t.ref.Key)
			if err != nil {
				r.Fatalf("Inspect: %v", err)
			}
			return !stands
		})
	}
}

// look shows the present term of a key.
func (r *rig) look(d driver.Driver, key string) sight {
	r.Helper()
	l, ok := driver.As[driver.Lister](d)
	if !ok {
		return r.refused(d, key)
	}
	sent := time.Now()
	got, stands, err := l.Inspect(r.ctx, key)
	if err != nil || !stands {
		r.Fatalf("Inspect of the held key %q: stands = %v, error %v", key, stands, err)
	}
	return sight{got, sent, time.Now()}
}

// fenced says whether tokens are promised. Where they are not, there must be none, or someone would rely on them.
func (r *rig) fenced() bool {
	if r.traits.Fencing != driver.NoTokens {
		return true
	}
	if t := r.acquire(r.open(), "unfenced", r.long); t.Token != 0 {
		r.Errorf("R3: Traits.Fencing is NoTokens, but a grant has token %d", t.Token)
	}
	return false
}
