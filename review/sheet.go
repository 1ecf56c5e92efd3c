package review

import (
	"fmt"
	"slices"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/review/ledger"
)

// Answer is the answer to one question about a lock.
type Answer struct {
	Question string `json:"question"`
	Verdict  string `json:"verdict"` // "yes", "no", "unknown", or in a word what it is
	Why      string `json:"why"`
}

// Unknown is the verdict where nothing is known.
const Unknown = "unknown"

// Sheet answers the questions that every lock has to answer, from what was declared and seen. t are the traits of the store
// that it is kept in. What only the code can tell is unknown here; holdlock audit reads code.
func Sheet(l *ledger.Lock, p Period, t driver.Traits) []Answer {
	s := subjectOf(l, p)
	answers := []Answer{longEnough(s), ownership(t), neverReleased(s, t), doubleRunCheap(s, t), stillNeeded(s)}
	inTransactions(s, t, answers)
	if l.Partial {
		notAll(answers)
	}
	return answers
}

// notAll takes back what only follows from records that there are not, if some could not be read.
func notAll(answers []Answer) {
	const but = "; some of its records could not be read, so that more may have happened"
	for _, i := range []int{0, 2, 3, 4} { // that a release checks ownership does not depend on them
		answers[i].Why += but
	}
	for i, taken := range map[int][]string{0: {"yes"}, 4: {"not used", "perhaps not"}} {
		if slices.Contains(taken, answers[i].Verdict) {
			answers[i].Verdict = Unknown
		}
	}
}

func longEnough(s *subject) Answer {
	a := Answer{Question: "Is the expiry long enough for the slowest run seen?", Verdict: Unknown}
	seen := s.asDeclared(sameTimes)
	n, longest, expired := seen.Hold.Count(), seen.Hold.Max(), seen.Get(ledger.LostExpired)
	switch {
	case s.declared == nil:
		a.Why = "no program has said what the lock is declared as"
	case n == 0 && expired == 0:
		a.Why = "no run has ended in this period"
		if seen.from.After(s.period.From) {
			a.Why = fmt.Sprintf("no run has ended since its settings were changed; the days to %s, on which others were in use, do not count", date(seen.from.Add(-day)))
		}
	case s.declared.RenewOff:
		limit := s.declared.TTL - holdlock.Margin(s.declared.TTL)
		a.Verdict = "yes"
		if longest >= limit || expired > 0 {
			a.Verdict = "no"
		}
		a.Why = fmt.Sprintf("renewal is off; of the TTL of %s a run can use %s, and the slowest of %d took %s", span(s.declared.TTL), span(limit), n, span(longest))
		if expired > 0 {
			a.Why += fmt.Sprintf("; %s, and it is not known how much longer the work would take", times(expired, "run was overtaken by it", "runs were overtaken by it"))
		}
	default:
		a.Verdict = "yes"
		renewals := seen.Get(ledger.LostPaused) + seen.Get(ledger.LostUnreachable)
		if seen.Get(ledger.LostMaxHold)+renewals > 0 {
			a.Verdict = "no"
		}
		a.Why = fmt.Sprintf("the lease is renewed, up to MaxHold (%s); the slowest of %s took %s; %d were cut off there, and %d lost because no renewal "+
			"came through within the TTL of %s", span(s.declared.MaxHold), times(uint64(n), "run", "runs"), span(longest), seen.Get(ledger.LostMaxHold),
			renewals, span(s.declared.TTL))
	}
	return a
}

func ownership(t driver.Traits) Answer {
	return Answer{
		Question: "Does the release check ownership?", Verdict: "yes",
		Why: fmt.Sprintf("holdlock releases a term by its nonce, in one step in the store (%s); whether other code touches the same key is for holdlock audit", t.Name),
	}
}

func neverReleased(s *subject, t driver.Traits) Answer {
	a := Answer{Question: "What happens if it is never released?", Verdict: Unknown, Why: "no program has said what the lock is declared as"}
	d := s.declared
	if d == nil {
		return a
	}
	a.Verdict = fmt.Sprintf("free after %s if its holder dies", span(max(d.TTL, d.MinHold)))
	a.Why = fmt.Sprintf("a holder that dies blocks it for %s", span(max(d.TTL, d.MinHold)))
	switch {
	case d.Shadow:
		a.Verdict, a.Why = "nothing", "it is in shadow mode: nobody waits for it"
		return a
	case d.RenewOff:
		a.Verdict = fmt.Sprintf("free after %s", span(max(d.TTL, d.MinHold)))
		if t.FrozenBlocks {
			a.Verdict += " if its holder dies or its work hangs, not while its process stands still"
			a.Why += "; work that hangs does not block it longer, and runs on beside its successor"
			break
		}
		a.Why += "; one that hangs does not block it longer, and runs on beside its successor"
	case d.MaxHold == holdlock.Forever:
		a.Verdict += ", never if it hangs"
		a.Why += "; one that hangs and lives blocks it for ever, as MaxHold is off"
	default:
		a.Verdict += fmt.Sprintf(", after %s if it hangs", span(d.MaxHold))
		a.Why += fmt.Sprintf("; one that hangs and lives blocks it for %s (MaxHold)", span(d.MaxHold))
	}
	if t.FrozenBlocks {
		a.Why += fmt.Sprintf("; in this store (%s) a process that stands still keeps it for as long as its connection lives, whatever its TTL is", t.Name)
	}
	l := s.lapses()
	a.Why += fmt.Sprintf("; seen in this period: %s", times(l.all, "lapse", "lapses"))
	if l.over > 0 {
		a.Why += fmt.Sprintf(", of which %d with the work over, as only the release did not come through", l.over)
	}
	var longest time.Duration
	var skips uint64
	for _, b := range s.Blocks {
		if took := s.lasted(b); took > longest && b.Token != 0 { // terms without tokens are many
			longest, skips = took, b.Skips
		}
	}
	if skips > 1 {
		a.Why += fmt.Sprintf(", and %d attempts skipped behind one term over %s", skips, span(longest))
	}
	if s.starved() {
		a.Why += "; nobody has got it " + since(s.LastGrant)
	}
	return a
}

func doubleRunCheap(s *subject, t driver.Traits) Answer {
	a := Answer{Question: "Is a double run cheap, or does it need the database?", Verdict: Unknown}
	double := s.doubleRun()
	seen := "; seen in this period: " + s.mayHaveRunTwice()
	switch double {
	case holdlock.Undeclared:
		a.Why = "nobody has declared what it costs" + seen
	case holdlock.Harmless:
		a.Verdict, a.Why = "cheap", "declared harmless: the work may run twice"+seen
	case holdlock.Costly:
		a.Verdict, a.Why = "cheap enough", "declared costly: it can be put right"+seen
	case holdlock.Harmful:
		a.Verdict = "needs the database"
		a.Why = fmt.Sprintf("declared harmful, and no lease excludes effects: take it inside the transaction of its writes; guard: %s; this store forgets %s",
			s.declared.Guard, t.Forgets)
		if s.declared.AcceptRisk != "" {
			a.Why += fmt.Sprintf("; the risk is accepted: %q", s.declared.AcceptRisk)
		}
		a.Why += seen
	}
	return a
}

// mayHaveRunTwice counts the terms whose work may have run beside a successor. The holder of one tells of its loss, and its successor of
// its lapse, so that they may be the same; which are is not known.
func (s *subject) mayHaveRunTwice() string {
	found, told := s.lapses().open(), s.Lost()
	if found == 0 || told == 0 {
		return times(found+told, "loss", "losses") + " that may have been one"
	}
	return fmt.Sprintf("%d to %d losses that may have been one: %d that successors have found and %d that holders have told of, and a term may be in both",
		max(found, told), found+told, found, told)
}

func stillNeeded(s *subject) Answer {
	a := Answer{Question: "Is it still needed?", Verdict: Unknown}
	n, met := s.answered(), s.Get(ledger.Contended)
	unclear := s.Get(ledger.Unclear)
	failed := s.Get(ledger.Attempts) - min(s.Get(ledger.Attempts), n+unclear)
	if s.inShadow() && n > 0 {
		f := inShadow(s)[0]
		a.Verdict, a.Why = "being tried", f.Evidence
		return a
	}
	switch {
	case n == 0 && s.LastHeld.After(s.period.From):
		a.Verdict = "held"
		a.Why = fmt.Sprintf("no attempt has ended in %s, and a term stood on %s, the last day on which that was seen; who waits is counted when the wait ends",
			wholeDays(s.period.Days()), date(s.LastHeld))
	case met == 0 && unclear > 0:
		a.Why = fmt.Sprintf("none of %s is known to have met another holder", times(n, "attempt", "attempts")) + s.unclear()
	case n == 0 && failed > 0:
		a.Why = fmt.Sprintf("the store has answered none of %s in %s", times(failed, "attempt", "attempts"), wholeDays(s.period.Days()))
	case n == 0 && s.Get(ledger.Refused) > 0:
		a.Why = fmt.Sprintf("%s refused, and the store was not asked", times(s.Get(ledger.Refused), "attempt was", "attempts were"))
		if s.declared != nil {
			a.Why += ": " + s.refusedFor()
		}
	case n == 0:
		a.Verdict, a.Why = "not used", "no attempt in "+wholeDays(s.period.Days())
	case met > 0:
		a.Verdict, a.Why = "yes", fmt.Sprintf("%d of %s met another holder", met, times(n, "attempt", "attempts"))+s.unclear()
	case n < enough || s.period.Days() < enoughDays:
		a.Why = fmt.Sprintf("none of %d attempts met another holder in %s, which is too little to tell", n, wholeDays(s.period.Days()))
		if n == 1 {
			a.Why = fmt.Sprintf("the only attempt in %s met no other holder, which is too little to tell", wholeDays(s.period.Days()))
		}
	default:
		a.Verdict, a.Why = "perhaps not", fmt.Sprintf("none of %d attempts met another holder: with 95%% confidence under %s do", n, percent(ruleOfThree(n)))
	}
	if n > 0 && failed > 0 {
		a.Why += fmt.Sprintf("; besides, the store failed %s", times(failed, "attempt", "attempts"))
	}
	return a
}
