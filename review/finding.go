package review

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/review/ledger"
)

// Severity is how much a finding matters.
type Severity uint8

// The severities.
const (
	Note    Severity = iota // worth knowing
	Warning                 // will hurt some day
	Error                   // has hurt, or does now
)

// String returns the severity in lower case.
func (s Severity) String() string { return [...]string{"note", "warning", "error"}[s] }

// MarshalText makes the severity a word in JSON.
func (s Severity) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (s *Severity) UnmarshalText(b []byte) error {
	for _, v := range []Severity{Note, Warning, Error} {
		if v.String() == string(b) {
			*s = v
			return nil
		}
	}
	return fmt.Errorf("severity %.20q: note, warning or error", b)
}

// Finding is one thing that a review has to say about a lock.
type Finding struct {
	Lock     string   `json:"lock"`
	Kind     string   `json:"kind"` // as in docs/review.md
	Severity Severity `json:"severity"`
	Evidence string   `json:"evidence"` // what was seen, in a sentence with its numbers
	Advice   string   `json:"advice"`   // what to change
}

// Period is what is looked at.
type Period struct{ From, To time.Time }

// Days returns the length in days, of 24 hours.
func (p Period) Days() float64 { return p.To.Sub(p.From).Hours() / 24 }

// holds says whether a record has to do with the period. A host whose clock is ahead may be a day further.
func (p Period) holds(d driver.Day, u *ledger.Usage) bool {
	last := d + driver.Day(max(u.Covers, 1)-1)
	return last >= driver.DayOf(p.From) && d <= driver.DayOf(p.To)+1
}

// subject is a lock in a period, as the rules see it.
type subject struct {
	*ledger.Usage
	lock     *ledger.Lock
	asked    Period // what is to be looked at
	period   Period // what the counts are of: whole days, and sums of days, but not before the lock was known
	declared *ledger.Declaration
	all      []ledger.Declaration
}

// subjectOf looks at a lock in a period.
func subjectOf(l *ledger.Lock, p Period) *subject {
	s := &subject{Usage: &ledger.Usage{}, lock: l, asked: p, period: p}
	for _, d := range l.Declared {
		// An older release has written the declarations of different locks to those that are counted together. One that comes up in the
		// future is of a host with a wrong clock, and would be the one in use last until then.
		if l.Name != ledger.Others && d.First <= driver.DayOf(p.To)+1 {
			s.all = append(s.all, d)
		}
	}
	if len(s.all) > 0 {
		s.declared = &s.all[0]
	}
	from, known := driver.DayOf(p.From), driver.DayOf(p.To)
	for i := range s.all {
		known = min(known, s.all[i].First)
	}
	for day, u := range l.Days {
		if p.holds(day, u) {
			s.Merge(u)
			from = min(from, day)
			known = min(known, day+driver.Day(max(u.Covers, 1)-1))
		}
	}
	s.period.From = max(from, known).Start()
	return s
}

// Judge returns the findings on one lock, the most severe first.
func Judge(l *ledger.Lock, p Period) (found []Finding) {
	s := subjectOf(l, p)
	rules := rules
	switch {
	case l.Name == ledger.Others:
		rules = rulesOfOthers
	case s.inShadow():
		rules = rulesInShadow
	}
	for _, rule := range rules {
		for _, f := range rule(s) {
			f.Lock = l.Name
			found = append(found, f)
		}
	}
	slices.SortStableFunc(found, func(a, b Finding) int { return cmp.Compare(b.Severity, a.Severity) })
	return found
}

// JudgeAll returns the findings on all locks, the most severe first.
func JudgeAll(locks []*ledger.Lock, p Period) (found []Finding) {
	for _, l := range locks {
		found = append(found, Judge(l, p)...)
	}
	slices.SortStableFunc(found, func(a, b Finding) int { return cmp.Compare(b.Severity, a.Severity) })
	return found
}
