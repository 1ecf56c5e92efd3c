package driver

import (
	"errors"
	"fmt"
	"time"
)

// Token is the fencing token of a term: a number that strictly rises from one term of a key to the next. Tokens of
// different keys cannot be compared. On the wire and in JSON it is a decimal string, because many readers of JSON hold
// numbers in 53 bits.
type Token uint64

// MaxToken is the largest token: the largest integer that a Lua script or a JSON reader holds exactly.
const MaxToken Token = 1<<53 - 1

// CounterTTL is how long a store keeps the last token of a key after its last use. TokenAfter makes a later start from
// nothing safe; a day covers a clock that was set wrong by any time zone.
const CounterTTL = 24 * time.Hour

// floorLead is how far ahead of the store's own clock a caller's floor may be: a caller with a wrong clock must not be
// able to use up the numbers.
const floorLead = time.Second

// ErrTokensExhausted is returned when the next token would not fit in 53 bits: a clock is set after the year 2255.
var ErrTokensExhausted = errors.New("no fencing tokens left: a clock is far in the future")

// TokenAfter returns the token of a new term:
//
//	max(last + 1, now, min(floor, now + 1 s))
//
// with now and floor in µs since 1970. Losing the counter (last = 0) or a clock that steps back does not break the order
// alone; it takes both. last is 0 if the store knows of no earlier term.
func TokenAfter(last Token, now time.Time, floor Token) (Token, error) {
	next := max(last+1, TokenAt(now), min(floor, TokenAt(now.Add(floorLead))))
	if next > MaxToken {
		return 0, fmt.Errorf("%w: %w", ErrTokensExhausted, ErrNotApplied)
	}
	return next, nil
}

// TokenAt returns the floor that a clock proposes: µs since 1970, and 0 for earlier times.
func TokenAt(t time.Time) Token {
	return Token(max(0, t.UnixMicro()))
}
