package quorumhold

import (
	"time"

	"github.com/holdlock/holdlock/driver"
)

// keep remembers a term that is held, in place of an older one of the same ref.
func (d *Driver) keep(t *term) {
	now := time.Now()
	t.mu.Lock()
	t.won = now
	t.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	if old := d.terms[t.ref]; old != nil && old != t {
		old.mu.Lock()
		old.phase = superseded
		old.mu.Unlock()
	}
	d.terms[t.ref] = t
	d.sweep(now)
}

// sweep forgets the terms whose holders neither renewed nor released them, some time after they have ended. It looks at
// all of them, a fraction of a microsecond each, now and then. Runs under d.mu.
func (d *Driver) sweep(now time.Time) {
	if now.Before(d.swept.Add(2 * d.opts.MaxTTL)) {
		return
	}
	d.swept = now
	for ref, t := range d.terms {
		t.mu.Lock()
		over := now.After(t.deadline.Add(d.opts.MaxTTL))
		t.mu.Unlock()
		if over {
			delete(d.terms, ref)
		}
	}
}

// known returns the term of a ref that this driver holds, or nil.
func (d *Driver) known(ref driver.Ref) *term {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.terms[ref]
}

// forget drops a term that has ended.
func (d *Driver) forget(t *term) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.terms[t.ref] == t {
		delete(d.terms, t.ref)
	}
}
