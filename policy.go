package holdlock

import (
	"errors"

	"github.com/holdlock/holdlock/driver"
)

// DoubleRun declares what happens if the job runs twice at the same time. It is the first question of every review.
type DoubleRun uint8

// The answers.
const (
	Undeclared DoubleRun = iota // nobody has said; reviews report it
	Harmless                    // idempotent: the lock saves work, nothing more
	Costly                      // wasteful or annoying, and can be put right
	Harmful                     // money, mail, data: must not happen
)

// String returns the answer in lower case.
func (d DoubleRun) String() string {
	return [...]string{"undeclared", "harmless", "costly", "harmful"}[d]
}

// Guard declares how the resource that the job changes protects itself. It is a declaration: nothing can verify it.
type Guard uint8

// The guards.
const (
	Unguarded      Guard = iota
	Fenced               // the resource refuses a token smaller than one it has seen, atomically with the change
	IdempotencyKey       // the resource does nothing the second time it sees the same key
)

// String returns the guard in lower case.
func (g Guard) String() string {
	return [...]string{"unguarded", "fenced", "idempotency key"}[g]
}

// entry is a way of using a lock. A Harmful lock may be fit for one and not for another.
type entry uint8

const (
	entryLease       entry = iota // Do, Acquire, TryAcquire
	entryTransaction              // in the transaction of the job's own writes
	entryHold                     // package once, where a run that lapsed is not followed by another one
)

// permit is the truth table of Harmful. It returns what is missing, or "".
//
//	declared     entry          guard       tokens     records    permitted
//	not harmful  any            any         any        any        yes
//	harmful      transaction    any         any        any        yes: lock and writes commit or vanish together
//	harmful      hold           any         any        durable    yes: after a lapse an operator decides
//	harmful      hold           as lease                otherwise  as lease: what was begun can be forgotten, and run again
//	harmful      lease          none        any        any        no: no lease excludes effects (a pause outlives every check)
//	harmful      lease          some        durable    any        yes: the resource refuses the latecomer
//	harmful      lease          some        otherwise  any        no: a repeated token would pass the resource's check
//	harmful      any            any         any        any        yes, if the risk is accepted in writing
//
// Package once with OnLapse: Rerun is a lease.
func permit(e entry, d DoubleRun, g Guard, f driver.Fencing, k driver.Keeping, acceptRisk string) (missing string) {
	switch {
	case d != Harmful, e == entryTransaction, acceptRisk != "", e == entryHold && k == driver.SyncedRecords:
		return ""
	case g == Unguarded && e == entryHold:
		return "the records of this store are not durable (" + k.String() + "), and no Guard is declared"
	case g == Unguarded:
		return "no Guard is declared"
	case f != driver.Durable:
		return "a Guard is declared, but this store's tokens are not durable: " + f.String()
	}
	return ""
}

// refused tells of a use that permit has refused. Usable and Claimable ask without an attempt, and tell nothing.
func (l *Lock) refused(err error) error {
	if errors.Is(err, ErrRefused) {
		l.c.emit(Event{Kind: Refused, Name: l.name, Key: l.key, Err: err})
	}
	return err
}

// permit checks the lock's declarations for one way of using it.
func (l *Lock) permit(e entry) error {
	missing := permit(e, l.opts.DoubleRun, l.opts.Guard, l.c.traits.Fencing, l.c.traits.Records, l.opts.AcceptRisk)
	if missing == "" {
		return nil
	}
	return &RefusedError{Name: l.name, Store: l.c.traits.Location, Missing: missing}
}
