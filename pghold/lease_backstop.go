package pghold

import (
	"sync"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// All who wait for a key in one process ask now and then, in case a hint got lost. What one of them hears will do for the
// others for a moment, so that any number of them costs about one statement a second.
const refusalAge = time.Second

// refusals are the last answers to those who ask in vain.
type refusals struct {
	mu    sync.Mutex
	byKey map[string]refusal
}

type refusal struct {
	term driver.Term
	at   time.Time // before it was asked for
}

// recent returns a refusal that is not old, as it would be given now.
func (r *refusals) recent(key string) (*driver.HeldError, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, known := r.byKey[key]
	if !known {
		return nil, false
	}
	age := time.Since(last.at)
	if age > refusalAge || age >= last.term.Remaining {
		delete(r.byKey, key)
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
			if time.Since(old.at) > refusalAge {
				delete(r.byKey, key)
			}
		}
	}
	if r.byKey == nil {
		r.byKey = map[string]refusal{}
	}
	r.byKey[t.Key] = refusal{t, asked}
}

// forget is called when the key has been freed by this process.
func (r *refusals) forget(key string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byKey, key)
}
