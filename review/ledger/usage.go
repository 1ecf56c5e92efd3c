package ledger

import (
	"hash/fnv"
	"slices"
	"time"

	"github.com/holdlock/holdlock"
)

// Counter is one of the things that are counted. The numbers are part of the stored format: never reuse one.
type Counter uint8

// The counters.
const (
	Attempts         Counter = iota + 1 // Do, Acquire and TryAcquire that asked the store
	Granted                             // of these, the ones that got the lock
	Skipped                             // did not, because somebody else had it
	Failed                              // did not, because of the store
	Contended                           // met somebody else's term, whether they got the lock in the end or not
	Waited                              // waited, whether they got the lock in the end or not
	GaveUp                              // waited and did not get it
	Released                            // leases that were given back
	LostPaused                          // leases that were lost, by reason
	LostUnreachable                     //
	LostGone                            //
	LostBroken                          //
	LostMaxHold                         //
	LostExpired                         //
	LostShutdown                        //
	Lapsed                              // grants whose predecessor had ended without release
	Broken                              // grants whose predecessor an operator had ended
	RenewFailed                         // renewals that failed and were tried again
	Unreleased                          // releases that the store did not confirm
	TokenRead                           // leases whose token the work has asked for
	Duplicates                          // run-once jobs that were skipped because they were done
	Reruns                              // run-once jobs that ran again after a lapse
	Overlaps                            // shadow mode: runs that the lock would have prevented
	Keyed                               // attempts for a key of the lock
	LostDisconnected                    // leases that were lost with their connection
	Unseen                              // shadow mode: runs of which the store could not say whether they overlapped
	ShadowRuns                          // attempts that were made in shadow mode
	InTx                                // attempts in the caller's own transaction
	Unclear                             // of these, the ones of which nobody can tell whether they met somebody else
	Abandoned                           // terms that were left to end by themselves when their work was over, as the store did not confirm their release
	Refused                             // uses that were not allowed, as the lock is declared Harmful and the store cannot protect it; not among Attempts
	counters
)

// Usage is what happened to one lock in one day, or in several that were merged.
type Usage struct {
	Counts    [counters]uint64
	Hold      Histogram // of leases that ended; of those that expired, until their work was over
	Wait      Histogram // of attempts that were granted and had to wait
	LastTry   time.Time // the last attempt, also if it was refused, to the second
	LastGrant time.Time
	LastHeld  time.Time // when a term was renewed, by the first renewal of each program on the day: a leader attempts nothing for months
	Blocks    []Block
	// The terms of which Lapsed and Abandoned count, as far as they are known. One that is in both was only not released.
	LapsedTerms, AbandonedTerms []TermMark
	// Used has a bit for each day on which the lock was attempted or stood: bit i is day i of the ten of a sum, which begin with a
	// day that ten divides. What is merged of different tens has none that mean anything.
	Used   uint16
	Covers int // days, if Load has made it: 1, or those of a sum
}

// Block is one term that attempts were skipped behind.
type Block struct {
	Token       holdlock.Token
	Skips       uint64
	First, Last time.Time // of these attempts, to the second
}

// maxBlocks bounds the blocks of a record: those with the most skips, and the latest, which may still grow.
const maxBlocks = 3

// TermMark tells a term from others of its lock: it is a hash of its nonce.
type TermMark uint32

// maxTerms bounds the marks of each kind in a record.
const maxTerms = 100

// markOf returns the mark of a term.
func markOf(nonce string) TermMark {
	h := fnv.New32a()
	_, _ = h.Write([]byte(nonce)) // cannot fail
	return TermMark(h.Sum32())
}

// lastTerms returns as many as a record keeps, in an order that does not depend on who was first. The latest stay.
func lastTerms(list []TermMark) []TermMark {
	list = slices.Clone(list[max(0, len(list)-maxTerms):])
	slices.Sort(list)
	return list
}

// LastUse returns when the lock was attempted or stood last.
func (u *Usage) LastUse() time.Time { return later(u.LastTry, u.LastHeld) }

// Get returns a counter.
func (u *Usage) Get(c Counter) uint64 { return u.Counts[c] }

// Lost returns the number of leases that were lost while their work ran, by the fault of nobody in the program: not by MaxHold,
// plain expiry, an operator, or shutdown.
func (u *Usage) Lost() uint64 {
	return u.Counts[LostPaused] + u.Counts[LostUnreachable] + u.Counts[LostGone] + u.Counts[LostDisconnected]
}

// Merge adds what another one has.
func (u *Usage) Merge(o *Usage) {
	for i, n := range o.Counts {
		u.Counts[i] += n
	}
	u.Hold.Merge(&o.Hold)
	u.Wait.Merge(&o.Wait)
	u.LastTry = later(u.LastTry, o.LastTry)
	u.LastGrant = later(u.LastGrant, o.LastGrant)
	u.LastHeld = later(u.LastHeld, o.LastHeld)
	u.Used |= o.Used
	u.LapsedTerms = append(u.LapsedTerms, o.LapsedTerms...)
	u.AbandonedTerms = append(u.AbandonedTerms, o.AbandonedTerms...)
	for _, b := range o.Blocks {
		u.block(b)
	}
}

// block adds skips behind a term.
func (u *Usage) block(b Block) {
	for i := range u.Blocks {
		if have := &u.Blocks[i]; have.Token == b.Token {
			have.Skips += b.Skips
			have.Last = later(have.Last, b.Last)
			if b.First.Before(have.First) {
				have.First = b.First
			}
			return
		}
	}
	if len(u.Blocks) < maxBlocks {
		u.Blocks = append(u.Blocks, b)
		return
	}
	// One goes: the one with the fewest skips, but not the latest.
	slices.SortFunc(u.Blocks, func(a, b Block) int { return a.Last.Compare(b.Last) })
	least := 0
	for i := range u.Blocks[:maxBlocks-1] {
		if u.Blocks[i].Skips < u.Blocks[least].Skips {
			least = i
		}
	}
	u.Blocks[least] = b
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// reset empties it and keeps its memory.
func (u *Usage) reset() {
	hold, wait, blocks := u.Hold, u.Wait, u.Blocks[:0]
	hold.reset()
	wait.reset()
	*u = Usage{Hold: hold, Wait: wait, Blocks: blocks}
}
