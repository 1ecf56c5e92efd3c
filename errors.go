package holdlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// The answers that are not success. They are tested with errors.Is and never overlap; the details are in the types below,
// reached with errors.As.
var (
	// ErrHeld: someone else holds the lock. Nothing was run. Details: *HeldError.
	ErrHeld = errors.New("lock is held")
	// ErrLost: a lease of ours ended before it was released; work under it may have overlapped with its successor's.
	// Details: *LostError.
	ErrLost = errors.New("lock was lost")
	// ErrUnreachable: the store failed and certainly granted nothing. Nothing was run. Details: *StoreError.
	ErrUnreachable = errors.New("store is unreachable")
	// ErrUnknown: the store may have done what was asked and did not say so. After an acquire nothing was run, and what may
	// have been granted is being given back in the background. Details: *StoreError.
	ErrUnknown = errors.New("outcome is unknown")
	// ErrShort: the lease is ours, but for less time than asked of Lease.Check.
	ErrShort = errors.New("lease ends too soon")
	// ErrReleased: the lease was already given back.
	ErrReleased = errors.New("lease was released")
	// ErrInvalid: a name or an option is not allowed. Nothing was done. Details: *InvalidError.
	ErrInvalid = errors.New("invalid")
	// ErrRefused: the lock is declared Harmful and this store cannot protect it. Details: *RefusedError.
	ErrRefused = errors.New("refused")
	// ErrShutdown: the client is shut down.
	ErrShutdown = errors.New("client is shut down")
	// ErrUnsupported: the store has no such ability.
	ErrUnsupported = errors.New("not supported by this store")
	// ErrDamaged: what stands at the lock's key is not of holdlock, or of a newer one. It is left alone; somebody has to look at it.
	ErrDamaged = driver.ErrDamaged
)

// HeldError says who has the lock. It is ErrHeld.
type HeldError struct {
	Name, Key string
	Store     string // where: driver.Traits.Location
	Holder    Holder
	Token     Token
	Since     time.Time     // by the store's wall clock
	FreeIn    time.Duration // until the key is free unless its holder renews, as of the answer
	Cooling   bool          // the job is over; MinHold keeps the key
	Overdue   bool          // its time is over, and its holder stands still or is cut off, which keeps the key until Break with Now; see Traits.FrozenBlocks
	Broken    string        // not empty if an operator has broken the term
	Err       error         // why waiting ended, nil if it was a single attempt; wraps the context's error
}

// Error names the lock, the holder, since when, until when, and where.
func (e *HeldError) Error() string {
	s := fmt.Sprintf("lock %s is %s; store %s", describe(e.Name, e.Key), e.state(), e.Store)
	if e.Err != nil {
		s += fmt.Sprintf("; gave up waiting: %v", e.Err)
	}
	return s
}

// state says who has the lock, since when, and until when.
func (e *HeldError) state() string {
	s := fmt.Sprintf("cooling after its last run: free in %s", round(e.FreeIn))
	switch {
	case e.Cooling:
	case e.Overdue:
		s = fmt.Sprintf("held by %s since %s (token %d): its time is over, and its session keeps it, since its process stands still "+
			"or is cut off; Break with Now ends that", describeHolder(e.Holder), e.Since.Format(time.DateTime), e.Token)
	default:
		s = fmt.Sprintf("held by %s since %s (token %d): free in %s unless renewed",
			describeHolder(e.Holder), e.Since.Format(time.DateTime), e.Token, round(e.FreeIn))
	}
	if e.Broken != "" {
		s += ", broken by " + e.Broken
	}
	return s
}

// Is reports whether target is ErrHeld.
func (e *HeldError) Is(target error) bool { return target == ErrHeld }

// Unwrap returns why waiting ended.
func (e *HeldError) Unwrap() error { return e.Err }

// LossReason says why a lease ended before its release.
type LossReason string

// The reasons.
const (
	LossUnreachable  LossReason = "unreachable"  // renewals failed until trust ran out; Err is the last failure
	LossPaused       LossReason = "paused"       // this process or machine stood still past the end of trust
	LossExpired      LossReason = "expired"      // Renew is Off and the work outlasted TTL − margin
	LossDisconnected LossReason = "disconnected" // the connection that the lock lived on has ended; Err says how
	LossGone         LossReason = "gone"         // the store no longer knows the term: it forgot, or was told to
	LossBroken       LossReason = "broken"       // an operator broke it
	LossMaxHold      LossReason = "max hold"     // MaxHold was reached
	LossShutdown     LossReason = "shutdown"     // Client.Shutdown ran out of patience
)

// Explain says in words what happened, to follow "the lock was lost: ".
func (r LossReason) Explain() string { return lossText[r] }

var lossText = map[LossReason]string{
	LossUnreachable:  "the store could not be reached in time to renew it",
	LossPaused:       "this process or machine was paused past the end of its trust",
	LossExpired:      "the work took longer than its TTL and renewal is off",
	LossDisconnected: "the connection that it lived on has ended",
	LossGone:         "the store no longer knows it",
	LossBroken:       "an operator broke it",
	LossMaxHold:      "it reached MaxHold",
	LossShutdown:     "the client was shut down",
}

// LostError says why a lease ended early. It is ErrLost, and the cause of the context that Do gives to the work.
type LostError struct {
	Name, Key string
	Token     Token
	Reason    LossReason
	Err       error // the last failure of the store, nil if there was none
}

// Error names the lock, the reason, and what it means.
func (e *LostError) Error() string {
	s := fmt.Sprintf("lock %s (token %d) was lost: %s; work done since may overlap with its successor's",
		describe(e.Name, e.Key), e.Token, e.Reason.Explain())
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Is reports whether target is ErrLost.
func (e *LostError) Is(target error) bool { return target == ErrLost }

// Unwrap returns the last failure of the store.
func (e *LostError) Unwrap() error { return e.Err }

// StoreError is a failure of the store, never an answer about the lock. It is ErrUnknown if Unclear, else ErrUnreachable.
type StoreError struct {
	Op        string // acquire, release, list, …
	Name, Key string
	Store     string
	Unclear   bool // the store may have done what was asked
	Err       error
}

// Error names the operation, the lock, the store and the store's own words.
func (e *StoreError) Error() string {
	what, said := "failed, nothing was changed", fmt.Sprint(e.Err)
	for _, again := range []string{" (" + driver.ErrNotApplied.Error() + ")", "\n" + driver.ErrNotApplied.Error(), ": " + driver.ErrNotApplied.Error()} {
		said = strings.ReplaceAll(said, again, "")
	}
	if e.Unclear {
		what = "failed with unknown outcome"
		if e.Op == "acquire" {
			what += " (what may have been granted is being given back)"
		}
	}
	return fmt.Sprintf("%s of lock %s %s; store %s: %s", e.Op, describe(e.Name, e.Key), what, e.Store, said)
}

// Is reports whether target is the answer this error stands for.
func (e *StoreError) Is(target error) bool {
	if e.Unclear {
		return target == ErrUnknown
	}
	return target == ErrUnreachable
}

// Unwrap returns the driver's error.
func (e *StoreError) Unwrap() error { return e.Err }

// InvalidError names the value that is not allowed. It is ErrInvalid.
type InvalidError struct {
	What  string // which name or option
	Value string // quoted
	Why   string // what is wrong and what is allowed
}

// Error names the value and says what is allowed.
func (e *InvalidError) Error() string {
	return fmt.Sprintf("%s %s is not allowed: %s", e.What, e.Value, e.Why)
}

// Is reports whether target is ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// RefusedError says why a Harmful lock may not be used this way and what would do. It is ErrRefused.
type RefusedError struct {
	Name, Store string
	Missing     string // what this store and declaration lack
}

// Error names the lock, what is missing, and what would do.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("lock %q refused: its double run is declared harmful, and a lease on %s cannot prevent one (%s). "+
		"Put the lock into the transaction of the job's own writes; or run it by package once with OnLapse: Hold on a store "+
		"whose records are durable; or declare Guard (a fence or an idempotency key checked "+
		"by the resource) on a store with durable tokens; or accept the risk by setting AcceptRisk to the reason",
		e.Name, e.Store, e.Missing)
}

// Is reports whether target is ErrRefused.
func (e *RefusedError) Is(target error) bool { return target == ErrRefused }

// storeError wraps what a driver returned that is not one of its answers.
func (l *Lock) storeError(op string, err error) *StoreError {
	unclear := !errors.Is(err, driver.ErrNotApplied) && !errors.Is(err, driver.ErrClosed)
	return &StoreError{Op: op, Name: l.name, Key: l.key, Store: l.c.traits.Location, Unclear: unclear, Err: err}
}

func (l *Lock) heldError(t *driver.Term, why error) *HeldError {
	return &HeldError{
		Name: l.name, Key: l.key, Store: l.c.traits.Location, Holder: t.Holder, Token: t.Token,
		Since: t.Acquired, FreeIn: t.Remaining, Cooling: t.Cooling, Overdue: t.Overdue, Broken: t.Broken, Err: why,
	}
}

// waitError is why a wait ended: the context's cause, with the context's own error kept for errors.Is.
func waitError(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

func describe(name, key string) string {
	if key == "" {
		return fmt.Sprintf("%q", name)
	}
	return fmt.Sprintf("%q key %q", name, key)
}

func describeHolder(h Holder) string {
	s := fmt.Sprintf("pid %d on %s", h.PID, h.Host)
	if h.Label != "" {
		s = h.Label + ", " + s
	}
	return s
}

// round makes a duration fit for people.
func round(d time.Duration) time.Duration {
	if d > 10*time.Second {
		return d.Round(time.Second)
	}
	return d.Round(time.Millisecond)
}
