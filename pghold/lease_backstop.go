package pghold

import (
	"sync"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// All who wait for a key in one process ask now and then, in case a hint got lost. What one of them hears will do for the
// others for a moment, so that any number of them costs about one statement a second: the first who asks when the last
// answer is a second old asks the server, and meanwhile the others get that one.
const (
	refusalAge = time.Second
	refusalMax = 2 * time.Second
)

// refusals are the last answers to those who ask in vain.
type refusals struct {
	mu    sync.Mutex
	byKey map[string]refusal
}

type refusal struct {
	term driver.Term
	at   time.Time // before it was asked for
	next time.Time // when somebody has gone to ask again
}

// recent returns a refusal that is not old, as it would be given now.
func (r *refusals) recent(key string) (*driver.HeldError, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, known := r.byKey[key]
	if !known {
		return nil, false
	}
	now := time.Now()
	age := now.Sub(last.at)
	switch {
	case age > refusalMax || age >= last.term.Remaining:
		delete(r.byKey, key)
		return nil, false
	case age > refusalAge && now.Sub(last.next) > refusalAge:
		last.next = now
		r.byKey[key] = last
		return nil, false
	}
	t := last.term
	t.Remaining -= age
	return &driver.HeldError{Term: t}, true
}

// keep remembers a refusal. Old ones go when there are many.
func (r *refusals) keep(t driver.Term, asked time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.byKey) >= 1000 {
		for key, old := range r.byKey {
			if time.Since(old.at) > refusalMax {
				delete(r.byKey, key)
			}
		}
	}
	if r.byKey == nil {
		r.byKey = map[string]refusal{}
	}
	r.byKey[t.Key] = refusal{term: t, at: asked}
}

// forget is called when the key has been freed by this process.
func (r *refusals) forget(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byKey, key)
}
