package fence

import (
	"errors"
	"fmt"

	"github.com/holdlock/holdlock"
)

var (
	// ErrStale says that a later holder has been here. Nothing was written. The lease is lost, or will be found to be: stop.
	ErrStale = errors.New("overtaken by a later holder")
	// ErrNoClaim says that there is no claim to check, or it has no token.
	ErrNoClaim = errors.New("no claim")
)

// StaleError is the ErrStale of a resource.
type StaleError struct {
	Lock  string         // LOCK or LOCK/KEY
	Token holdlock.Token // what was shown
	Seen  holdlock.Token // what the resource has seen; 0 if it did not say
}

// Error names the lock and both tokens.
func (e *StaleError) Error() string {
	if e.Seen == 0 {
		return fmt.Sprintf("write under lock %s refused: %s (token %d); stop this work", e.Lock, ErrStale, e.Token)
	}
	return fmt.Sprintf("write under lock %s refused: %s (token %d, the resource has seen %d); stop this work", e.Lock, ErrStale, e.Token, e.Seen)
}

// Is makes errors.Is(err, ErrStale) true.
func (e *StaleError) Is(target error) bool { return target == ErrStale }
