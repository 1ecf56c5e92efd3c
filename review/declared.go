package review

import (
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/review/ledger"
)

// What is held against a setting must have happened under it. A TTL that was raised because runs outlived it would be blamed for
// them for a month.

// stretch is what happened in a part of the period.
type stretch struct {
	*ledger.Usage
	from time.Time
}

// sameTimes says that two declarations agree in what bounds a run.
func sameTimes(a, b *ledger.Declaration) bool {
	return a.TTL == b.TTL && a.MaxHold == b.MaxHold && a.RenewOff == b.RenewOff
}

// asDeclared returns what happened since the lock is declared alike as it is now. The last day on which another declaration was in
// use is not part of it, because nobody knows which of them its counts belong to; nor is a sum of days that begins before. If
// programs go on to declare it differently (drifted), it is what happened since both do.
func (s *subject) asDeclared(alike func(a, b *ledger.Declaration) bool) stretch {
	from := driver.DayOf(s.period.From)
	changed := from
	for i := range s.all {
		d, now := &s.all[i], s.declared
		if alike(d, now) {
			continue
		}
		if d.Last >= now.Last && drift(d, now) {
			since, _, _ := together(d, now)
			changed = max(changed, since)
			continue
		}
		changed = max(changed, d.Last+1)
	}
	if changed == from {
		return stretch{s.Usage, s.period.From}
	}
	seen := stretch{&ledger.Usage{}, changed.Start()}
	for day, u := range s.lock.Days {
		if day >= changed && s.asked.holds(day, u) {
			seen.Merge(u)
		}
	}
	return seen
}

// together returns the first and the last of the days on which both declarations were in use, and how many these are.
func together(a, b *ledger.Declaration) (first, last driver.Day, n int) {
	for d := max(a.First, b.First); d <= min(a.Last, b.Last); d++ {
		if !a.UsedOn(d) || !b.UsedOn(d) {
			continue
		}
		if n++; n == 1 {
			first = d
		}
		last = d
	}
	return first, last, n
}

// drift says whether two declarations were both in use for longer than a change takes. A roll-out that is taken back has two days in a
// row on which both were, and an experiment one at each end, and neither happens often; nor do days say anything that are few among those of either.
func drift(a, b *ledger.Declaration) bool {
	const inRow, often = 3, 4
	first, last, n := together(a, b)
	ofA, ofB, row, longest, rows := 0, 0, 0, 0, 0
	for d := first; n > 0 && d <= last; d++ {
		usedA, usedB := a.UsedOn(d), b.UsedOn(d)
		if usedA {
			ofA++
		}
		if usedB {
			ofB++
		}
		switch {
		case usedA && usedB:
			if row++; row == 1 {
				rows++
			}
			longest = max(longest, row)
		case usedA || usedB: // else nobody used the lock on that day
			row = 0
		}
	}
	return (longest >= inRow || rows >= often) && 3*n >= 2*min(ofA, ofB)
}
