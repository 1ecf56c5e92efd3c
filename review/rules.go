package review

import (
	"fmt"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/review/ledger"
)

// rule looks at one thing. docs/review.md has the thresholds of all in this order.
type rule func(*subject) []Finding

var rules = []rule{
	lapsed, overrunning, lost, blocking, notRun, refused, starving, ttlTooLong, ttlTooTight, drifted,
	undeclared, guardUnseen, riskAccepted, uncontended, declaredIdempotent, unused,
}

const day = 24 * time.Hour

// rulesInShadow are for a lock in shadow mode: what the others look at does not hurt it.
var rulesInShadow = []rule{drifted, inShadow, unused}

// rulesOfOthers are for the locks that are counted together because they are too many: what the others look at would be put together of
// different locks.
var rulesOfOthers = []rule{lapsed, lost, notRun}

func one(kind string, s Severity, evidence, advice string) []Finding {
	return []Finding{{Kind: kind, Severity: s, Evidence: evidence, Advice: advice}}
}

// doubleRun returns what a double run is declared to cost.
func (s *subject) doubleRun() holdlock.DoubleRun {
	if s.declared == nil {
		return holdlock.Undeclared
	}
	return s.declared.DoubleRun
}

func overrunning(s *subject) []Finding {
	if s.declared == nil {
		return nil
	}
	if s.declared.RenewOff {
		return overrunningExpiry(s.declared, s.asDeclared(sameTimes))
	}
	return overrunningMaxHold(s.declared, s.asDeclared(sameTimes))
}

func overrunningExpiry(d *ledger.Declaration, seen stretch) []Finding {
	limit, longest, n := d.TTL-holdlock.Margin(d.TTL), seen.Hold.Max(), uint64(seen.Hold.Count())
	took := fmt.Sprintf("the longest of %s took %s", times(n, "run", "runs"), span(longest))
	raise := fmt.Sprintf("raise TTL to %s or more, or turn renewal on", span(2*longest))
	switch expired := seen.Get(ledger.LostExpired); {
	case expired > 0:
		if n == 0 || longest <= cutAt(limit) { // nobody has seen such a run to its end
			took = fmt.Sprintf("how long the work takes is not known, as it was cut off: %s at least", span(max(limit, longest)))
			raise = "turn renewal on; or raise TTL by far, and look again when the work was seen to its end"
		} else {
			took += " or longer"
		}
		return one("overrunning", Error, fmt.Sprintf("the expiry of %s does not cover the work: %s, and %s",
			span(d.TTL), times(expired, "run was overtaken by it", "runs were overtaken by it"), took), raise)
	case n > 0 && longest >= limit:
		return one("overrunning", Error, fmt.Sprintf("the expiry of %s does not cover the work: %s, of %s that it allows", span(d.TTL), took, span(limit)), raise)
	case n >= 20 && longest >= limit*8/10:
		return one("overrunning", Warning, fmt.Sprintf("%s, of %s that the expiry allows", took, span(limit)), raise)
	}
	return nil
}

// cutAt is up to when a run that was told at the limit to stop has stopped.
func cutAt(limit time.Duration) time.Duration { return limit*5/4 + 100*time.Millisecond }

func overrunningMaxHold(d *ledger.Declaration, seen stretch) []Finding {
	if d.MaxHold == holdlock.Forever {
		return nil
	}
	longest, n := seen.Hold.Max(), seen.Hold.Count()
	raise := "find out why it takes so long, or raise MaxHold"
	switch cut := seen.Get(ledger.LostMaxHold); {
	case cut > 0:
		return one("overrunning", Error, fmt.Sprintf("%s cut off at MaxHold, %s", times(cut, "run was", "runs were"), span(d.MaxHold)), raise)
	case n >= 20 && longest >= d.MaxHold*8/10:
		return one("overrunning", Warning, fmt.Sprintf("the longest of %d runs took %s, of %s that MaxHold allows",
			n, span(longest), span(d.MaxHold)), raise)
	}
	return nil
}

func lost(s *subject) []Finding {
	n, grants := s.Lost(), s.Get(ledger.Granted)
	if n == 0 {
		return nil
	}
	severity := Warning
	if s.doubleRun() == holdlock.Harmful || atLeast(n, grants) > 0.01 {
		severity = Error
	}
	return one("lost", severity,
		fmt.Sprintf("%s lost while the work ran, of %d (%s)", times(n, "lease was", "leases were"), grants, reasons(s)),
		"paused: the machine is overloaded or suspended; unreachable: look at the store and the network; gone: the store has forgotten it; disconnected: the connection that it lived on has ended")
}

// reasons lists why leases were lost.
func reasons(s *subject) (text string) {
	for _, r := range []struct {
		c    ledger.Counter
		name string
	}{{ledger.LostPaused, "paused"}, {ledger.LostUnreachable, "unreachable"}, {ledger.LostGone, "gone"}, {ledger.LostDisconnected, "disconnected"}} {
		if n := s.Get(r.c); n > 0 {
			if text != "" {
				text += ", "
			}
			text += fmt.Sprintf("%d %s", n, r.name)
		}
	}
	return text
}

// lasted is how long attempts were skipped behind a term. Hosts whose clocks differ by a day would make a day of it; but if all
// terms have told their end, none was longer than the longest. No more than that day is put down to the clocks.
func (s *subject) lasted(b ledger.Block) time.Duration {
	took, ended := b.Last.Sub(b.First), uint64(s.Hold.Count())
	if ended == 0 || ended < s.Get(ledger.Granted) || s.declared == nil {
		return took
	}
	longest := max(s.Hold.Max(), s.declared.MinHold) + time.Second // the times of attempts are in seconds
	return min(took, max(longest, took-24*time.Hour))
}

// usual is what runs take usually, as far as so many tell it.
func (s *subject) usual() (d time.Duration, says string) {
	switch n := s.Hold.Count(); {
	case n >= 20:
		return s.Hold.Median(), fmt.Sprintf("when half of all runs take %s or less", span(s.Hold.Median()))
	case n == 0 && s.Get(ledger.InTx) > 0:
		return 0, "and how long transactions take is not seen"
	case n > 0:
		return s.Hold.Max(), fmt.Sprintf("when the longest of %s took %s", times(uint64(n), "run", "runs"), span(s.Hold.Max()))
	}
	return 0, "and no run has ended in this period"
}

// starved says that nobody has got the lock in the last three days, though it was attempted.
func (s *subject) starved() bool {
	before := s.period.To.Add(-3 * day)
	return !s.lock.Partial && s.period.Days() >= 3 && s.LastGrant.Before(before) && s.LastTry.After(before)
}

func blocking(s *subject) []Finding {
	usual, says := s.usual()
	var worst *Finding
	var longest time.Duration
	for _, b := range s.Blocks {
		took := s.lasted(b)
		still := s.starved() && b.Last.After(s.period.To.Add(-3*day))
		evidence := fmt.Sprintf("%d attempts were skipped behind one term, over %s, %s", b.Skips, span(took), says)
		if b.Token == 0 { // terms without tokens are many: only what came after the last grant was behind one, or behind some that are not counted
			if !still {
				continue
			}
			took = b.Last.Sub(later(b.First, s.LastGrant))
			evidence = fmt.Sprintf("%d attempts were skipped, and for the last %s of that nobody got it, %s", b.Skips, span(took), says)
		}
		few := s.Hold.Count() < 20 // then only what has lasted for days says anything
		if b.Skips < 10 || took <= 10*usual || few && (!still || took < 3*day) || took <= longest {
			continue
		}
		f := Finding{
			Kind: "blocking", Severity: Warning, Advice: "look at the holder with holdlock inspect; a MaxHold would have ended a stuck one",
			Evidence: evidence,
		}
		if still {
			f.Severity = Error
			f.Evidence += ", and nobody has got it " + since(s.LastGrant)
		}
		if few && s.declared != nil && s.declared.MaxHold == holdlock.Forever {
			f.Severity = Warning
			f.Advice += "; if it is held for days on purpose, by a leader, let the others wait for it"
		}
		worst, longest = &f, took
	}
	if worst == nil {
		return nil
	}
	return []Finding{*worst}
}

func notRun(s *subject) []Finding {
	n, all := s.Get(ledger.Failed), s.Get(ledger.Attempts)
	low := atLeast(n, all)
	if low <= 0.001 {
		return nil
	}
	severity := Warning
	if low > 0.05 {
		severity = Error
	}
	return one("not run", severity, fmt.Sprintf("%s because the store failed, of %d", times(n, "attempt did not run", "attempts did not run"), all),
		"look at the store; if the work may run without the lock, say so in the code, where the error is handled")
}

// refused is about a job that never runs, because its lock may not be used as it is declared. Nobody waits for it and nothing fails in the
// store, so that it would look like one that is not used.
func refused(s *subject) []Finding {
	if s.declared == nil {
		return nil
	}
	seen := s.asDeclared(func(a, b *ledger.Declaration) bool { return a.DoubleRun == b.DoubleRun && a.Guard == b.Guard })
	n, grants := seen.Get(ledger.Refused), seen.Get(ledger.Granted)
	if n == 0 {
		return nil
	}
	severity, others := Error, "and none was granted: the job does not run"
	if grants > 0 {
		severity, others = Warning, fmt.Sprintf("and %s granted, to other uses or since the risk is accepted", times(grants, "attempt was", "attempts were"))
	}
	return one("refused", severity, fmt.Sprintf("%s refused, %s; %s", times(n, "attempt was", "attempts were"), others, s.refusedFor()),
		"take the lock inside the transaction of its writes; or declare a Guard, on a store with durable tokens; or accept the risk in writing (AcceptRisk); if a double run is not that bad, declare so")
}

// refusedFor says what is missing, as far as the declaration shows it.
func (s *subject) refusedFor() string {
	if s.declared.Guard == holdlock.Unguarded {
		return "a double run is declared harmful and no Guard is declared"
	}
	return fmt.Sprintf("a double run is declared harmful, and the tokens of the store are not durable enough for the Guard that is declared (%s)", s.declared.Guard)
}

func starving(s *subject) []Finding {
	waited, gaveUp := s.Get(ledger.Waited), s.Get(ledger.GaveUp)
	if waited < 20 || atLeast(gaveUp, waited) <= 0.10 {
		return nil
	}
	return one("starving", Warning,
		fmt.Sprintf("%d of %d attempts that waited gave up", gaveUp, waited),
		"the lock is busier than its waiters are patient: split it by key, shorten what is done under it, or let them wait longer")
}

func ttlTooLong(s *subject) []Finding {
	if s.declared == nil || s.lock.Partial { // what is not known may have been longer
		return nil
	}
	d, seen := s.declared, s.asDeclared(sameTimes)
	// Work takes what it takes under any setting: nobody is told to lower a TTL below what has been seen, or when that is not known.
	longest, n, grants := s.Hold.Max(), seen.Hold.Count(), seen.Get(ledger.Granted)
	if s.onlyInTx() { // it has no expiry there
		return nil
	}
	if d.RenewOff && d.TTL > time.Minute && n >= 100 && d.TTL > 20*longest && s.Get(ledger.LostExpired) == 0 {
		return one("TTL too long", Warning,
			fmt.Sprintf("the expiry is %s, and the longest of %d runs took %s: when a worker dies, nobody runs for the rest of it",
				span(d.TTL), n, span(longest)),
			fmt.Sprintf("lower TTL to about %s, or turn renewal on", span(max(5*longest, time.Second))))
	}
	if grants < 20 || d.TTL <= 5*time.Minute || s.Get(ledger.Keyed) > 0 { // of a key we do not know how often it is taken
		return nil
	}
	interval := s.period.To.Sub(seen.from) / time.Duration(grants)
	if d.TTL <= 2*interval {
		return nil
	}
	return one("TTL too long", Warning,
		fmt.Sprintf("it is taken every %s or so, and a dead holder would block it for %s", span(interval), span(d.TTL)),
		"with renewal on a TTL of 30 s is enough, however long the work takes")
}

func ttlTooTight(s *subject) []Finding {
	if s.declared == nil || s.declared.RenewOff {
		return nil
	}
	seen := s.asDeclared(sameTimes)
	n, grants := seen.Get(ledger.LostPaused)+seen.Get(ledger.LostUnreachable), seen.Get(ledger.Granted)
	if n < 3 || atLeast(n, grants) <= 0.001 {
		return nil
	}
	evidence := fmt.Sprintf("%d of %d leases were lost because no renewal came through in time, with a TTL of %s", n, grants, span(s.declared.TTL))
	advice := fmt.Sprintf("raise TTL to %s; it is only how soon a dead holder is noticed", span(3*s.declared.TTL))
	if when, all := s.unreachableOn(seen); all && n == seen.Get(ledger.LostUnreachable) {
		evidence += fmt.Sprintf(", all of them on %s, when the store could not be reached", date(when.Start()))
		advice = "if it was away for longer than any TTL that you would set, no TTL would have helped, and none need be changed; else " + advice
	}
	return one("TTL too tight", Warning, evidence, advice)
}

// unreachableOn returns the one day on which leases were lost because the store could not be reached, if it was one only: many holders lose
// theirs in one outage.
func (s *subject) unreachableOn(seen stretch) (when driver.Day, one bool) {
	days := 0
	for d, u := range s.lock.Days {
		if d >= driver.DayOf(seen.from) && s.asked.holds(d, u) && u.Get(ledger.LostUnreachable) > 0 {
			when, days = d, days+max(u.Covers, 1)
		}
	}
	return when, days == 1
}

func drifted(s *subject) []Finding {
	for i := range s.all {
		for j := range s.all[:i] {
			a, b := &s.all[i], &s.all[j]
			first, last, n := together(a, b)
			if !drift(a, b) || last < driver.DayOf(s.period.From) || a.Same(b) {
				continue
			}
			return one("drifted", Warning,
				fmt.Sprintf("two programs declare it differently, both on %d days from %s to %s: %s (on %s, on %s)",
					n, date(first.Start()), date(last.Start()), difference(b, a), b.Host, a.Host),
				"declare the lock in one place that all programs share")
		}
	}
	return nil
}

// difference names the first settings in which two declarations differ.
func difference(a, b *ledger.Declaration) string {
	for _, d := range []struct{ what, a, b string }{
		{"TTL", span(a.TTL), span(b.TTL)},
		{"MaxHold", span(a.MaxHold), span(b.MaxHold)},
		{"MinHold", span(a.MinHold), span(b.MinHold)},
		{"renewal off", fmt.Sprint(a.RenewOff), fmt.Sprint(b.RenewOff)},
		{"double run", a.DoubleRun.String(), b.DoubleRun.String()},
		{"guard", a.Guard.String(), b.Guard.String()},
		{"shadow mode", fmt.Sprint(a.Shadow), fmt.Sprint(b.Shadow)},
	} {
		if d.a != d.b {
			return fmt.Sprintf("%s is %s and %s", d.what, d.a, d.b)
		}
	}
	return "by less than can be shown"
}

func undeclared(s *subject) []Finding {
	if s.declared == nil || s.declared.DoubleRun != holdlock.Undeclared {
		return nil
	}
	return one("undeclared", Warning, "nobody has said what a double run costs",
		"declare DoubleRun: harmless, costly or harmful; it decides which store will do")
}

func guardUnseen(s *subject) []Finding {
	if s.declared == nil || s.lock.Partial || s.declared.Guard != holdlock.Fenced {
		return nil
	}
	seen := s.asDeclared(func(a, b *ledger.Declaration) bool { return a.Guard == b.Guard })
	if seen.Hold.Count() < 20 || seen.Get(ledger.TokenRead) > 0 {
		return nil
	}
	return one("guard unseen", Warning,
		fmt.Sprintf("it is declared as fenced, and of %d leases no work has asked for its token", seen.Hold.Count()),
		"pass Lease.Token to the resource (package fence), or take the declaration back")
}

func riskAccepted(s *subject) []Finding {
	if s.declared == nil || s.declared.AcceptRisk == "" {
		return nil
	}
	return one("risk accepted", Note, fmt.Sprintf("a harmful double run is accepted: %q", s.declared.AcceptRisk),
		"ask whether that still holds")
}

// That nobody was met says something from so many attempts in so many days on.
const enough, enoughDays = 300, 14

// answered is the number of attempts of which the store has said whether they met somebody. It has not if it failed, and not if it made
// them wait by itself, in a transaction.
func (s *subject) answered() uint64 {
	all := s.Get(ledger.Attempts)
	return all - min(all, s.Get(ledger.Failed)+s.Get(ledger.Unseen)+s.Get(ledger.Unclear))
}

func uncontended(s *subject) []Finding {
	n := s.answered()
	if s.lock.Partial || n < enough || s.period.Days() < enoughDays || s.Get(ledger.Contended) > 0 || s.Get(ledger.Unclear) > 0 {
		return nil
	}
	return one("uncontended", Note,
		fmt.Sprintf("none of %d attempts in %s met another holder: with 95%% confidence under %s do", n, wholeDays(s.period.Days()), percent(ruleOfThree(n))),
		s.without())
}

// without advises how to find out whether a lock can go. Shadow mode is refused for some.
func (s *subject) without() string {
	switch {
	case s.doubleRun() == holdlock.Harmful && s.Get(ledger.InTx) > 0:
		return "keep it: a double run is declared harmful; only if that is no longer so, it can go; a lock in a transaction has no shadow mode to try that"
	case s.doubleRun() == holdlock.Harmful:
		return "keep it: a double run is declared harmful; only if that is no longer so, declare what it costs now and try shadow mode then"
	case s.Get(ledger.InTx) > 0:
		return "if the work is safe to run twice, the lock can go; a lock in a transaction has no shadow mode to try that"
	case s.doubleRun() == holdlock.Undeclared:
		return "declare what a double run costs; if the work is safe to run twice, the lock can go, and shadow mode tells before"
	case s.declared.Guard == holdlock.Fenced:
		return "if the work is safe to run twice, the lock can go, but not while a fence relies on its tokens"
	}
	return "if the work is safe to run twice, the lock can go; try shadow mode first"
}

func declaredIdempotent(s *subject) []Finding {
	n := s.answered()
	if s.doubleRun() != holdlock.Harmless || n+s.Get(ledger.Unclear) == 0 {
		return nil
	}
	return one("declared idempotent", Note,
		fmt.Sprintf("a double run is declared harmless, so the lock saves work and nothing else: %d of %s met another holder%s",
			s.Get(ledger.Contended), times(n, "attempt", "attempts"), s.unclear()),
		"if that is not worth what the lock costs, take it out: "+s.without())
}
