package review

import (
	"fmt"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/review/ledger"
)

// inShadow says that the lock was declared last to be in shadow mode.
func (s *subject) inShadow() bool { return s.declared != nil && s.declared.Shadow }

// experiment returns what happened in the present stretch of shadow mode: from the first day on which it was declared after the last
// day, or on the last day, on which the lock was enforced. If programs go on to differ (drifted), it is from when both did on.
func (s *subject) experiment() (seen stretch) {
	var enforced driver.Day
	for i := range s.all {
		d := &s.all[i]
		switch {
		case d.Shadow:
		case d.Last >= s.declared.Last && drift(d, s.declared):
			both, _, _ := together(d, s.declared)
			enforced = max(enforced, both)
		default:
			enforced = max(enforced, d.Last)
		}
	}
	from := s.declared.Last
	for i := range s.all {
		d := &s.all[i]
		if !d.Shadow || d.Last < enforced {
			continue
		}
		begun := max(d.First, enforced)
		for begun > d.First && begun < d.Last && !d.UsedOn(begun) {
			begun++
		}
		from = min(from, begun)
	}
	from = max(from, driver.DayOf(s.period.From))
	seen = stretch{&ledger.Usage{}, from.Start()}
	for day, u := range s.lock.Days {
		if s.asked.holds(day, u) && day+driver.Day(max(u.Covers, 1)) > from && !s.triedBetween(day, from) {
			seen.Merge(u)
		}
	}
	return seen
}

// triedBetween says whether the lock was in shadow mode in the days before another: then a sum of them has runs of an earlier stretch.
func (s *subject) triedBetween(from, before driver.Day) bool {
	for i := range s.all {
		for d := from; d < before; d++ {
			if s.all[i].Shadow && s.all[i].UsedOn(d) {
				return true
			}
		}
	}
	return false
}

// inShadow tells how the experiment goes.
func inShadow(s *subject) []Finding {
	seen := s.experiment()
	from, overlaps, days := seen.from, seen.Get(ledger.Overlaps), s.period.To.Sub(seen.from).Hours()/24
	n := max(seen.Get(ledger.ShadowRuns), overlaps+seen.Get(ledger.Unseen)) // an older release counts only those
	evidence := fmt.Sprintf("it is in shadow mode since %s and excludes nobody: of %s %d overlapped with another",
		date(from), times(n, "run", "runs"), overlaps)
	if u := seen.Get(ledger.Unseen); u > 0 {
		evidence += fmt.Sprintf(", and of %d nobody knows, because the store failed", u)
		n -= min(n, u)
	}
	switch {
	case overlaps > 0:
		severity := Warning
		if s.doubleRun() == holdlock.Harmless {
			severity = Note
		}
		return one("shadow", severity, evidence, "if that did any harm, enforce the lock again; if it did none, take the lock out")
	case s.lock.Partial:
		return one("shadow", Note, evidence+"; some of its records could not be read", "see to these records: what is known is not all")
	case n >= enough && days >= enoughDays:
		return one("shadow", Note, fmt.Sprintf("%s: with 95%% confidence under %s do", evidence, percent(ruleOfThree(n))),
			"the lock prevents nothing: take it out")
	}
	return one("shadow", Note, evidence, fmt.Sprintf("that is too little to tell: wait for %d runs in %d days", enough, enoughDays))
}
