package drivertest

import (
	"net/url"
	"strings"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// R10: an answer says what is.
var heldCases = []testCase{
	{"R10/HeldSaysWhoAndHowLong", func(r *rig) {
		a, b := r.open(), r.open()
		req := r.request("k", r.long)
		req.Holder = driver.Holder{Host: "web-1", PID: 4711, Label: "billing", Purpose: "charges cards"}
		t := r.grant(a, req)
		for _, s := range []sight{r.refused(b, "k"), r.look(b, "k")} {
			r.shows(s, t, req.Holder)
		}
		r.renew(&t, r.long)
		r.shows(r.refused(b, "k"), t, req.Holder)
	}},
	{"R10/HeldShowsTheSuccessor", func(r *rig) {
		a, b := r.open(), r.open()
		r.release(r.acquire(a, "k", r.long))
		r.lapse(r.acquire(a, "k", r.short))
		req := r.request("k", r.long)
		req.Holder = driver.Holder{Host: "successor"}
		t := r.grant(b, req)
		r.shows(r.refused(a, "k"), t, req.Holder)
	}},
	{"R10/AnyTextNamesAHolder", func(r *rig) {
		d := r.open()
		req := r.request("k", r.long)
		req.Holder = driver.Holder{
			Host:    `quotes "' back\slash`,
			PID:     1<<31 - 1,
			Label:   "line\nbreak, tab\t, emoji 🔒, {braces}",
			Purpose: strings.Repeat("ü", 500),
		}
		t := r.grant(d, req)
		r.shows(r.refused(d, "k"), t, req.Holder)
		r.shows(r.look(d, "k"), t, req.Holder)
	}},
	{"R10/TraitsAreFacts", func(r *rig) {
		a, b := r.open(), r.open()
		t := a.Traits()
		if t != b.Traits() || t != a.Traits() {
			r.Errorf("Traits differ between two drivers on one store: %+v and %+v", t, b.Traits())
		}
		if t.Name == "" || strings.ContainsAny(t.Name, " \t\n") {
			r.Errorf("Traits.Name = %q, want one word", t.Name)
		}
		if t.Location == "" {
			r.Errorf("Traits.Location is empty: nobody could tell two stores apart")
		}
		if u, err := url.Parse(t.Location); err == nil && u.User != nil {
			if _, secret := u.User.Password(); secret {
				r.Errorf("Traits.Location shows a password")
			}
		}
		if t.MinTTL < 100*time.Millisecond || t.TTLStep < 0 || t.MaxTTL < 0 || t.MaxTTL > 0 && t.MaxTTL < 4*t.MinTTL {
			r.Errorf("MinTTL %v, MaxTTL %v, TTLStep %v do not fit together", t.MinTTL, t.MaxTTL, t.TTLStep)
		}
		// Each must have words, or String would panic.
		for _, words := range []string{t.Scope.String(), t.Fencing.String(), t.Forgets.String(), t.Clock.String()} {
			if words == "" {
				r.Errorf("a trait has no words: %+v", t)
			}
		}
	}},
}

// shows checks that a sight is of the given term.
func (r *rig) shows(s sight, t term, holder driver.Holder) {
	r.Helper()
	if s.Key != t.ref.Key || s.Token != t.Token || s.Holder != holder || s.Cooling || s.Broken != "" {
		r.Errorf("R10: the term of %q with token %d, held by %+v, is shown as %+v", t.ref.Key, t.Token, holder, s.Term)
	}
	if off := s.Acquired.Sub(s.heard); off > time.Minute || off < -time.Hour {
		r.Errorf("R10: the term of %q is shown as acquired at %v, now is %v", t.ref.Key, s.Acquired, s.heard)
	}
	r.endsBetween(s, t.earliest(), r.latest(t))
}
