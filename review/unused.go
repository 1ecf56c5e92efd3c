package review

import (
	"fmt"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// How often a lock is used nothing declares. What is held against it is its own habit, where that is known; docs/review.md says why.
const (
	habit    = 5        // days of use from which on it is known
	rarest   = 62 * day // idle for longer than this is idle for a monthly job
	idleDays = 14
)

func unused(s *subject) []Finding {
	used, since := s.LastUse(), s.period.To.Add(-idleDays*day)
	known := s.knownOn()
	if s.lock.Partial || known < driver.DayOf(s.period.From) || s.period.Days() < idleDays ||
		s.LastTry.After(since) || s.LastHeld.After(since.Add(-day)) { // that a term stands is told once a day
		return nil
	}
	is := fmt.Sprintf("a program has it (known last of %s), and it", date(known.Start()))
	if used.IsZero() {
		advice := "look at why its job does not run, or take it out of the code"
		if s.period.To.Sub(s.period.From) < rarest {
			advice = "if its job runs more rarely than that, look back for longer (--since 100d); else look at why it does not run, or take it out of the code"
		}
		return one("unused", Note, fmt.Sprintf("%s was not attempted in this period, of %s", is, wholeDays(s.period.Days())), advice)
	}
	idle := s.period.To.Sub(used)
	n, longest := s.habit()
	if n < habit && idle <= rarest || idle <= 2*longest {
		return nil
	}
	often := ""
	if n > 1 {
		often = fmt.Sprintf(", on %d days in all with %s between two of them at most", n, span(longest))
	}
	return one("unused", Note, fmt.Sprintf("%s was attempted or held last on %s%s", is, date(used), often),
		"look at why its job does not run any more; take it out of the code only if it is not to")
}

// knownOn is the last day on which a program is known to have the lock, and zero if nothing is known. A day to come is that of a wrong clock.
func (s *subject) knownOn() (last driver.Day) {
	for i := range s.all {
		for _, d := range []driver.Day{s.all[i].Last, s.all[i].KnownOn()} {
			if d <= driver.DayOf(s.period.To)+1 {
				last = max(last, d)
			}
		}
	}
	return last
}

// habit is on how many days of the period the lock was used, and the longest time between two of them.
func (s *subject) habit() (n int, longest time.Duration) {
	var before driver.Day
	for _, d := range s.lock.DaysOfUse() {
		if d < driver.DayOf(s.period.From) || d > driver.DayOf(s.period.To)+1 {
			continue
		}
		if n++; n > 1 {
			longest = max(longest, d.Start().Sub(before.Start()))
		}
		before = d
	}
	return n, longest
}
