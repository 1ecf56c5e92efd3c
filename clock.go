package holdlock

import (
	"time"

	"github.com/holdlock/holdlock/internal/bootclock"
)

// An instant is one moment on both clocks that trust is measured by.
type instant struct {
	mono time.Time     // carries Go's monotonic reading
	boot time.Duration // counts suspend as well
}

// clock reads both clocks. boot is a field so that tests can suspend a machine.
type clock struct {
	boot func() time.Duration
}

func realClock() clock { return clock{boot: bootclock.Now} }

func (c clock) now() instant {
	return instant{mono: time.Now(), boot: c.boot()}
}

// sub returns the time from start to i on the clock that shows more of it. A clock that was stepped back shows less, and
// is outvoted; one that was stepped forward ends trust early, which is safe.
func (i instant) sub(start instant) time.Duration {
	return max(i.mono.Sub(start.mono), i.boot-start.boot)
}

// drift is how much further the boot clock is ahead of the monotonic one at i than at start: the time spent suspended.
func (i instant) drift(start instant) time.Duration {
	return (i.boot - start.boot) - i.mono.Sub(start.mono)
}

// Margin returns how much earlier than the store a holder lets go of a lease with this TTL: a tenth of it, and at least 10 ms.
// What is left of the TTL is what its work can count on without a renewal.
func Margin(ttl time.Duration) time.Duration { return margin(ttl) }

// margin is how much earlier than the store the holder lets go: room for clocks that run at different rates, and for the
// work to stop.
func margin(ttl time.Duration) time.Duration {
	return max(ttl/10, 10*time.Millisecond)
}
