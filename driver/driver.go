// Package driver is the contract between holdlock and a store.
//
// Users of locks do not need this package: they open a store (memhold, sqlitehold, …) and get a *holdlock.Client.
// It is for people who write a store. A store is right when it passes drivertest.Run.
//
// # Who does what
//
// Everything that all stores share lives above the driver, once: waiting and back-off, renewal, trust, the undoing of
// unclear acquires, time budgets, validation of names and durations. A driver therefore does one atomic step per call,
// does not retry, does not sleep, does not log, and keeps no opinion of its own about who holds what: the store is the
// truth. The caller guarantees that every request is well formed: Key is 1 to 1,025 bytes of UTF-8 without NUL; Nonce is
// 32 hexadecimal digits from crypto/rand and names one term only; TTL is at least Traits.MinTTL; durations are not
// negative.
//
// # The rules
//
// They are numbered as in docs/design.md; drivertest names the rule in every failure.
//
//   - R1 Exclusion. By the store's clock there is at most one unexpired term per key.
//   - R3 Tokens strictly rise from one term of a key to the next, over release, expiry and restart, as far as
//     Traits.Fencing claims. A token never changes within a term, except that Renew may raise it to an exact Floor. A term
//     that is given to the store by Seed has one that is past those before as well, and is shown with that of other stores.
//   - R4 Renew, Release and Break act on the term (Key, Nonce) and never on another one. Renew never creates a term.
//   - R5 Acquire is idempotent per nonce: while the term stands, the same Ref gets the same token again and its full
//     TTL is re-armed in the same step, because the caller counts its trust from the sending of the last try.
//   - R8 Nothing is left after a term has ended but token counters, and these no longer than CounterTTL and an hour
//     after last use, who broke a term, until it would have ended, and the records of jobs (R11), as long as they are to be kept.
//   - R9 A call returns soon after ctx ends. One that is made with an ended ctx changes nothing and wraps ctx's error.
//   - R12 A Ledger changes each record in one atomic step.
//   - R10 "taken", "gone" and "the store failed" are three different answers. A store that cannot answer must never
//     answer *HeldError.
//   - R11 The record of a job changes only in the step in which its term starts or ends, or by an operator: journal.go.
package driver

import (
	"context"
	"time"
)

// A Driver is a store of terms. All methods are safe for concurrent use.
type Driver interface {
	// Traits reports facts about the store that do not change while it is open.
	Traits() Traits

	// Acquire makes one attempt to start a term, in one atomic step:
	//
	//   - If Ref is the current term, its expiry is re-armed as if granted now and the same Grant is returned; but a term
	//     that an operator has broken is not granted again.
	//   - If another term, or the cooling of one, stands, the result is a *HeldError that describes it.
	//   - Otherwise the term starts. It lasts max(TTL, MinHold) by the store's clock, not a moment less and at most
	//     Traits.TTLStep more. The token is TokenAfter(last, now, req.Floor), but see Seed.
	//
	// Any other error leaves the outcome unclear, and the caller undoes it by Release, unless the error wraps
	// ErrNotApplied, which promises that the store has not changed and will not.
	Acquire(ctx context.Context, req *AcquireRequest) (Grant, error)

	// Renew sets the expiry of the term Ref to TTL from now by the store's clock, or leaves it where it is if that is
	// later (a renewal never shortens). The error wraps ErrGone unless Ref is the current, unexpired term, and ErrBroken
	// if an operator has ended it, which is remembered at least as long as Grant.Prior of a successor tells it. If Floor is not zero the token of the term becomes exactly Floor in the same step, or
	// the call fails with ErrTokenPassed and changes nothing.
	Renew(ctx context.Context, req *RenewRequest) (Grant, error)

	// Release ends the term Ref. With KeepFor the key stays taken ("cooling") that much longer, by nobody. The error
	// wraps ErrGone if Ref is not the current, unexpired term; a second Release of the same term gives ErrGone too. A term
	// that an operator has broken can be released as long as it stands. In a Queue it also takes Ref out of the line.
	Release(ctx context.Context, req *ReleaseRequest) error

	// Close frees what the driver itself opened. Terms are not touched. Calls after Close fail with ErrClosed.
	Close() error
}

// Ref names one term. The nonce is the proof of ownership: it is never shown to people and never logged.
type Ref struct {
	Key   string
	Nonce string
}

// AcquireRequest is the input of Driver.Acquire. New fields may be added; a driver that does not know a field must be
// correct when it is zero.
type AcquireRequest struct {
	Ref     Ref
	TTL     time.Duration // how long the term lasts unless renewed
	MinHold time.Duration // how long the key is to stay taken even if the holder dies at once; may exceed TTL, but not Traits.MaxTTL
	Floor   Token         // a hint, normally the caller's clock in µs; see TokenAfter
	Holder  Holder        // for people: who to ask

	// Seed is 0, or the token of the term at other stores, where it stands: it is given to this one as well. Then its token here is
	// exactly Seed if that is past the last one of the key, or is the last one and was of this term, which has run out here. Otherwise an attempt that failed elsewhere has used up a later one here, and
	// the token is what it would be without Seed, with a Floor of that. Whatever the Grant says, Term.Token, Grant.Prior and *HeldError
	// show Seed, so that all stores tell the same of the term. Only quorumhold sets it, at stores whose Traits have Seeds.
	Seed Token
	// Since is when the term began at the other stores, with Seed. Term.Acquired shows it. It is for people.
	Since time.Time

	// BackStop says that the caller has a Watch on the key and asks only because hints can get lost. Then a refusal that the
	// driver has had for this key during the last two seconds will do as the answer, if the term in it has not run out since.
	BackStop bool
	// First says that nothing was asked with this Ref before, so that an Enqueue need not look through the line for its place.
	First bool
	Once  *Claim // nil, or what makes the term a run of a job; only for a driver that is a Journal
}

// RenewRequest is the input of Driver.Renew.
type RenewRequest struct {
	Ref   Ref
	TTL   time.Duration
	Floor Token // 0, or exactly the token that the term is to have from now on
}

// ReleaseRequest is the input of Driver.Release.
type ReleaseRequest struct {
	Ref     Ref
	KeepFor time.Duration // 0, or how much longer the key stays taken, counted from now by the store's clock

	// Undo says that the Acquire of this term was given up without an answer and may still be on its way. A store in which
	// one request can overtake another has to refuse that nonce from now on, for at least some minutes and whatever the
	// answer to this call is: an Acquire of it that arrives later starts no term and fails with an error that wraps
	// ErrNotApplied, or is a *HeldError if another term stands. Without that the term would last its TTL for nobody. A
	// store whose calls do not return while their request can still take effect has nothing to refuse, and may grant such
	// an Acquire like any other. In both an undo concerns its own nonce alone.
	// What it claimed of a job is as it was before, in the same step, also if the term has run out meanwhile. The term that
	// follows one that was undone while it stood is told how the one before that ended, since nothing was done in between.
	Undo bool
	// Answered, with Undo, says that the Acquire was answered: it cannot arrive any more, so the store need not remember the
	// nonce, and may take this for any other undo.
	Answered bool

	// Record is nil, or how the run of the job ended. Without it, and without Undo, a term that has a claim leaves the job
	// unfinished. Only for a driver that is a Journal.
	Record *Record
}

// Grant is the answer to a successful Acquire or Renew.
type Grant struct {
	Token Token
	// Previous says how the term before this one ended, as far as the store still knows. Renew leaves it zero. A successor
	// learns here that its predecessor lapsed: a holder that was killed or paused can never report that itself.
	Previous Ending
	// Prior describes that term if Previous is Lapsed or Broken and the store still knows it; otherwise nil.
	Prior *Term
	// PriorToken is the token of that term if Previous is Released and the store still knows it; otherwise 0. A store that is made
	// of several needs it to find out which of them tells of the latest term.
	PriorToken Token
	// Job is the record of the job if the request had Once.
	Job *Job
}

// Ending says how a term ended.
type Ending uint8

// The ways a term can end.
const (
	None     Ending = iota // the store knows of no earlier term
	Released               // given back by its holder
	Lapsed                 // its time ran out: the holder died, was paused, or could not reach the store
	Broken                 // ended by an operator
)

// String returns the ending in lower case.
func (e Ending) String() string {
	switch e {
	case Released:
		return "released"
	case Lapsed:
		return "lapsed"
	case Broken:
		return "broken"
	default:
		return "none"
	}
}

// Holder says who holds a term. It is for people only: nothing is ever decided by it.
type Holder struct {
	Host    string `json:"host,omitempty"`
	PID     int    `json:"pid,omitempty"`
	Label   string `json:"label,omitempty"`   // what the program calls itself
	Purpose string `json:"purpose,omitempty"` // what the lock was declared to protect
}

// Term describes the present state of a key, as List and Inspect and *HeldError report it.
type Term struct {
	Key       string
	Nonce     string // of the current term; a secret: needed by Break, never shown
	Token     Token
	Holder    Holder
	Acquired  time.Time     // when the term started, by the store's wall clock; for people
	Remaining time.Duration // until the key is free unless renewed, by the store's clock, at the time of the answer
	Cooling   bool          // released; the key is kept by MinHold and has no holder
	Overdue   bool          // of HeldError: its time is over, and a session that stands still keeps the key; Remaining is when to ask again
	Broken    string        // not empty once an operator has broken the term: who and why
	Damaged   error         // of List: an ErrDamaged; nothing but Key is known then
}

// A BatchRenewer renews many terms for the price of one. Results are in the order of the requests, each as Renew would
// have answered; an error of the whole batch is given for each. One bad request must not spoil the others.
type BatchRenewer interface {
	RenewBatch(ctx context.Context, reqs []*RenewRequest) []RenewResult
}

// RenewResult is one answer of RenewBatch.
type RenewResult struct {
	Grant Grant
	Err   error
}

// A Waiter can tell a waiting process that a key may have become free.
//
// Watch registers interest and returns at once. From then until stop, one value arrives on hints some time after each
// release of the key by anyone that does not hand it over (see Queue); hints may be spurious, coalesce, and get lost, so the caller tries again after Watch
// returns and keeps a slow poll behind it. A store with several watchers of a key wakes one of them, in the order they
// registered; a watcher that died delays the others for a bounded time only. stop may be called more than once, does not
// wait for a hung store longer than a second, and leaves nothing behind. The caller never closes hints, and neither does
// the driver.
type Waiter interface {
	Watch(ctx context.Context, key string) (hints <-chan struct{}, stop func(), err error)
}

// A LossNotifier learns by itself that a term is lost, without being asked, because its terms live on something that it
// sees end: a connection, a session. Without it a holder learns of a loss at its next Renew.
//
// NotifyLoss has lost called once, with the reason, as soon as the driver knows that the term Ref is not to be relied on
// any more: at once if it is not one that the driver holds now. lost must return soon and not call the driver; it may be called before NotifyLoss
// returns. It is not called for a term that ends by Release or Break, by its time, or by Close. The store itself still
// keeps the key from others until the holder's trust has ended in any case, for the notice may come late or never.
type LossNotifier interface {
	NotifyLoss(ref Ref, lost func(error))
}

// A Lister shows what is held, for operators and reviews. Both methods report terms that are current or cooling and
// never change anything.
type Lister interface {
	// List returns at most limit terms whose key has the prefix, in ascending byte order of key, starting after the key
	// after. It must not block other callers for more than a moment, however many keys there are. A walk through the pages
	// is not a snapshot: a term that stands all the while is shown once, one that has ended before the call for its page is
	// not shown, and one that starts during the walk may be missed. An empty after begins a new walk, which misses nothing
	// that stands by then. What cannot be read at one key is shown as Damaged and does not hide the others.
	List(ctx context.Context, prefix, after string, limit int) ([]Term, error)
	// Inspect returns the term of one key. ok is false if the key is free.
	Inspect(ctx context.Context, key string) (term Term, ok bool, err error)
}

// A Breaker can end a term against its holder's will. A Breaker is a Lister too: one has to look before one breaks.
type Breaker interface {
	// Break marks the term Ref: its holder's next Renew fails with ErrBroken, so that the key passes on when the present
	// expiry is reached and nobody overlaps. With Now the term ends at once, although its holder may still be at work.
	// The error wraps ErrGone if Ref is not the current term.
	Break(ctx context.Context, req *BreakRequest) error
}

// BreakRequest is the input of Breaker.Break.
type BreakRequest struct {
	Ref Ref
	By  string // who and why; kept with the term and shown to its holder and its successor
	Now bool
}
