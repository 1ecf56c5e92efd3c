package ledger

import (
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

// losses are the counters of the reasons.
var losses = map[holdlock.LossReason]Counter{
	holdlock.LossPaused: LostPaused, holdlock.LossUnreachable: LostUnreachable, holdlock.LossGone: LostGone,
	holdlock.LossBroken: LostBroken, holdlock.LossMaxHold: LostMaxHold, holdlock.LossExpired: LostExpired,
	holdlock.LossShutdown: LostShutdown, holdlock.LossDisconnected: LostDisconnected,
}

// count adds one event. It reports whether there was anything to count.
func (u *Usage) count(e *holdlock.Event, now time.Time) bool {
	switch e.Kind {
	case holdlock.Granted:
		u.attempt(e, now)
		u.Counts[Granted]++
		if e.Shadow {
			u.Counts[ShadowRuns]++
		}
		u.LastGrant = now.Truncate(time.Second)
		if e.Contended {
			u.Counts[Waited]++
			u.Wait.Record(e.Waited)
		}
	case holdlock.Skipped:
		u.attempt(e, now)
		u.Counts[Skipped]++
		if e.GaveUp {
			u.Counts[Waited]++
			u.Counts[GaveUp]++
		}
		second := now.Truncate(time.Second)
		u.block(Block{Token: e.Token, Skips: 1, First: second, Last: second})
	case holdlock.Failed:
		u.attempt(e, now)
		u.Counts[Failed]++
	case holdlock.Refused:
		u.Counts[Refused]++
		u.LastTry = now.Truncate(time.Second)
	case holdlock.Overlapped:
		u.attempt(e, now)
		u.Counts[Overlaps]++
		u.Counts[ShadowRuns]++
	case holdlock.Unseen:
		u.attempt(e, now)
		u.Counts[Unseen]++
		u.Counts[ShadowRuns]++
	case holdlock.Lapsed:
		if e.Ending == driver.Broken {
			u.Counts[Broken]++
		} else {
			u.Counts[Lapsed]++
			if e.Prior != nil && e.Prior.Nonce != "" && len(u.LapsedTerms) < maxTerms {
				u.LapsedTerms = append(u.LapsedTerms, markOf(e.Prior.Nonce))
			}
		}
	case holdlock.Released:
		u.Counts[Released]++
		u.end(e)
	case holdlock.Lost:
		u.Counts[losses[e.Reason]]++
		if e.Reason != holdlock.LossExpired { // how long that work takes is known when it is over
			u.end(e)
		}
	case holdlock.Outlived:
		if e.Reason != holdlock.LossExpired {
			return false
		}
		u.end(e)
	case holdlock.Rerun:
		u.Counts[Reruns]++
	case holdlock.Duplicate:
		u.attempt(e, now)
		u.Counts[Duplicates]++
	case holdlock.RenewFailed:
		u.Counts[RenewFailed]++
	case holdlock.Unreleased:
		if e.Abandoned {
			u.Counts[Abandoned]++
			if e.Left != nil && len(u.AbandonedTerms) < maxTerms {
				u.AbandonedTerms = append(u.AbandonedTerms, markOf(e.Left.Nonce))
			}
			return true
		}
		u.Counts[Unreleased]++
		if e.Held > 0 {
			u.end(e)
		}
	default:
		return false
	}
	return true
}

func (u *Usage) attempt(e *holdlock.Event, now time.Time) {
	u.Counts[Attempts]++
	u.LastTry = now.Truncate(time.Second)
	if e.Contended {
		u.Counts[Contended]++
	}
	if e.Key != "" {
		u.Counts[Keyed]++
	}
	if e.InTx {
		u.Counts[InTx]++
	}
	if e.Unclear {
		u.Counts[Unclear]++
	}
}

func (u *Usage) end(e *holdlock.Event) {
	u.Hold.Record(e.Held)
	if e.TokenRead {
		u.Counts[TokenRead]++
	}
}
