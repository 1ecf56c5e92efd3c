package driver

import (
	"context"
	"time"
)

// A Doctor looks for what about its store would lose locks, or keep them from working, before it does. It changes nothing but a
// lock of its own, for a moment, and works with the rights that locks need; what it may not see it says.
type Doctor interface {
	Diagnose(ctx context.Context, opts DoctorOptions) []Diagnosis
}

// DoctorOptions say what the store is used for.
type DoctorOptions struct {
	TTL time.Duration // the shortest that locks are declared with; 0 is 30 s
}

// Diagnosis is what a Doctor has found out about one thing.
type Diagnosis struct {
	Check   string  `json:"check"` // what was looked at, in a word or two; the same on every store of a kind
	Verdict Verdict `json:"verdict"`
	Found   string  `json:"found"`             // what is there
	Harm    string  `json:"harm,omitempty"`    // what can happen because of it
	Setting string  `json:"setting,omitempty"` // what to change, as exactly as can be said
}

// Verdict is how bad something is.
type Verdict uint8

// The verdicts.
const (
	Fine    Verdict = iota // nothing to do
	Unseen                 // the user may not look, or it could not be found out
	Caution                // locks can get lost, in the situation that Harm names
	Refuse                 // locks do not work, or are not to be trusted here
)

// String returns the verdict as it is shown.
func (v Verdict) String() string { return [...]string{"ok", "not seen", "warning", "refuses"}[v] }

// MarshalText makes the verdict a word in JSON.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }
