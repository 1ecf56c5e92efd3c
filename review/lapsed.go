package review

import (
	"fmt"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/review/ledger"
)

// A term that ended by its TTL had a holder that was killed, or one whose work was over and whose release did not come through. A successor
// cannot tell them apart; but who gives up a release marks the term that it leaves, and a successor marks the one that it found lapsed.

// lapses is how terms ended that lapsed. An abandoned term that nobody takes again never lapses, so the two sums say nothing of each other.
type lapses struct {
	all  uint64
	over uint64 // the work of these was over: their own holders have told
	may  uint64 // of these it may have been, at most: it is not known which terms they were, or which ones were left
}

// open is how many may have run beside their successors.
func (l lapses) open() uint64 { return l.all - l.over }

func (s *subject) lapses() lapses {
	l := lapses{all: s.Get(ledger.Lapsed)}
	left := map[ledger.TermMark]int{}
	for _, m := range s.AbandonedTerms {
		left[m]++
	}
	var others uint64 // lapses of known terms whose holders have told nothing
	for _, m := range s.LapsedTerms {
		if left[m] == 0 {
			others++
			continue
		}
		left[m]--
		l.over++
	}
	known := uint64(len(s.LapsedTerms))
	nameless := l.all - min(l.all, known)                                                             // lapses of terms that are not known
	unmatched := uint64(len(s.AbandonedTerms)) - l.over                                               // known terms that were left, of which no known one lapsed
	unmarked := s.Get(ledger.Abandoned) - min(s.Get(ledger.Abandoned), uint64(len(s.AbandonedTerms))) // terms that were left and are not known
	first := min(nameless, unmatched)
	l.may = first + min(unmarked, others+nameless-first)
	return l
}

func lapsed(s *subject) []Finding {
	l, expired, cut := s.lapses(), s.Get(ledger.LostExpired), s.Get(ledger.LostMaxHold)
	if l.all == 0 {
		return nil
	}
	n := l.open()
	away := fmt.Sprintf("%s over when the work had ended already, because the store did not answer when %s to be released", times(l.over, "lease was", "leases were"), its(l.over, "it was", "they were"))
	if n == 0 {
		return one("lapsed", Note, away+": nobody ran beside "+its(l.over, "it", "them")+", and others had to wait",
			"look at the store; a successor has to wait for the TTL where a release does not come through")
	}
	severity := Error
	if s.doubleRun() == holdlock.Harmless {
		severity = Warning
	}
	evidence := fmt.Sprintf("%s not released by %s, which %s killed, paused or cut off: each may have run beside its successor",
		times(n, "lease was", "leases were"), its(n, "its holder", "their holders"), its(n, "was", "were"))
	advice := "find out why workers die or stall; if a double run does damage, give the resource a fence or take the lock inside its transaction"
	switch {
	case expired >= n: // nobody need have been killed
		evidence = fmt.Sprintf("%s over before %s released: each may have run beside its successor; %s in this period, with renewal off",
			times(n, "lease was", "leases were"), its(n, "it was", "they were"), times(expired, "run outlived its expiry", "runs outlived their expiry"))
		advice = "turn renewal on, or raise TTL; if a double run does damage, give the resource a fence or take the lock inside its transaction"
		if now := s.asDeclared(sameTimes); now.Get(ledger.LostExpired) == 0 {
			advice = fmt.Sprintf("none of that is from after the change of its settings (%s): see whether it happens again", date(now.from))
		}
	case cut >= n: // they may be leases that nobody has released; that MaxHold cut one off that was released then is no explanation, and not told apart
		evidence = fmt.Sprintf("%s over before %s released: each may have run beside its successor; %s in this period, and a lease that is not released then ends like that; "+
			"any others had holders that were killed, paused or cut off",
			times(n, "lease was", "leases were"), its(n, "it was", "they were"), times(cut, "run was cut off at MaxHold", "runs were cut off at MaxHold"))
		advice = "see first that each lease is released in the end, also after an error (Do does that), and how long work goes on after MaxHold; else find out why workers die or stall; " +
			"if a double run does damage, give the resource a fence or take the lock inside its transaction"
	case l.may > 0:
		evidence = fmt.Sprintf("%s over before %s released: %s killed, paused or cut off, so that each may have run beside its successor; or the work was over and only the release did not come through, "+
			"which %d of them may be at most",
			times(n, "lease was", "leases were"), its(n, "it was", "they were"), its(n, "its holder was", "their holders were"), l.may)
		advice = "look at the store, and find out whether workers die or stall; if a double run does damage, give the resource a fence or take the lock inside its transaction"
	case expired > 0:
		evidence += fmt.Sprintf("; up to %d of them because the work outlived its expiry", expired)
	}
	if l.over > 0 {
		evidence += "; besides, " + away
	}
	return one("lapsed", severity, evidence, advice)
}
