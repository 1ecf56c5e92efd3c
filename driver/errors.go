package driver

import (
	"errors"
	"fmt"
)

// The errors a driver answers with. Anything else it returns means that the store failed.
var (
	// ErrGone: the Ref is not the current term; it expired, was released, or never was.
	ErrGone = errors.New("term is gone")
	// ErrBroken is the ErrGone of a term that an operator has ended.
	ErrBroken = fmt.Errorf("%w: broken by an operator", ErrGone)
	// ErrNotApplied marks a failure that certainly changed nothing: the request never reached the store, or the store
	// refused it as a whole. Only a driver can know; without it the caller must assume that an acquire may have won.
	ErrNotApplied = errors.New("nothing was changed")
	// ErrTokenPassed: a Renew asked for a Floor below the token that the key already has.
	ErrTokenPassed = errors.New("the key's token is already past the floor")
	// ErrAbstains: the store has lost its data, or may have, and grants nothing until every term that it may have forgotten
	// is over. Nothing was changed. A caller that waits goes on waiting.
	ErrAbstains error = &unapplied{"it abstains"}
	// ErrDamaged: what stands at the key is not of this store's making, or of a newer version, so nothing can be said of the
	// lock until somebody has looked at it. Nothing was changed, and waiting changes nothing.
	ErrDamaged error = &unapplied{"what stands there cannot be read"}
	// ErrDenied: the store has answered, and does not let us: a wrong password, or a right that is missing. Waiting changes nothing
	// until somebody has changed something there.
	ErrDenied = errors.New("the store does not let us")
	// ErrNewer stands beside ErrDamaged or ErrBadRecord if what cannot be read is of a newer version of holdlock: a newer
	// program can read it, and this one once it is upgraded.
	ErrNewer = errors.New("it is of a newer version")
	// ErrClosed: the driver is closed.
	ErrClosed = errors.New("store is closed")
)

// unapplied is an ErrNotApplied that says why, and leaves it to others to say what that means.
type unapplied struct{ text string }

func (e *unapplied) Error() string        { return e.text }
func (e *unapplied) Is(target error) bool { return target == ErrNotApplied }

// Damaged says whether an error means that what stands at a key is damaged, or not of holdlock: ErrDamaged or ErrBadRecord without
// ErrNewer. No program can read it, now or later, until somebody has looked at it.
func Damaged(err error) bool {
	return (errors.Is(err, ErrDamaged) || errors.Is(err, ErrBadRecord)) && !errors.Is(err, ErrNewer)
}

// HeldError is the answer to an Acquire or Enqueue of a key that is taken.
type HeldError struct {
	Term  Term
	Place int // of Enqueue: where Ref stands in line, 1 is next
}

// Error names the key and the holder.
func (e *HeldError) Error() string {
	return fmt.Sprintf("key %q is held by pid %d on %s", e.Term.Key, e.Term.Holder.PID, e.Term.Holder.Host)
}
