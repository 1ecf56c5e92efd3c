package review

import (
	"fmt"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/review/ledger"
)

// inShadow says that the lock was declared last to be in shadow mode.
func (s *subject) inShadow() bool { return s.declared != nil && s.declared.Shadow }

// inShadow tells how the experiment goes. It counts from the day on which the mode was declared first.
func inShadow(s *subject) []Finding {
	var seen ledger.Usage
	from := max(s.declared.First, driver.DayOf(s.period.From))
	for day, u := range s.lock.Days {
		if (Period{from.Start(), s.period.To}).holds(day, u) {
			seen.Merge(u)
		}
	}
	n, overlaps, days := seen.Get(ledger.Attempts), seen.Get(ledger.Overlaps), s.period.To.Sub(from.Start()).Hours()/24
	evidence := fmt.Sprintf("it is in shadow mode since %s and excludes nobody: of %s %d overlapped with another",
		date(from.Start()), times(n, "run", "runs"), overlaps)
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
	case n >= enough && days >= enoughDays:
		return one("shadow", Note, fmt.Sprintf("%s: with 95%% confidence under %s do", evidence, percent(ruleOfThree(n))),
			"the lock prevents nothing: take it out")
	}
	return one("shadow", Note, evidence, fmt.Sprintf("that is too little to tell: wait for %d runs in %d days", enough, enoughDays))
}
