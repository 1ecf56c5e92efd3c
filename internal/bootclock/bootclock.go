// Package bootclock reads the clock that goes on while the machine is suspended.
//
// Go's own monotonic clock is CLOCK_MONOTONIC on Linux, which stands still during suspend: a lease of a laptop that
// slept for an hour looks fresh to it. On Linux Now is CLOCK_BOOTTIME, which counts suspend, is the same for all
// processes of the machine, and is not moved by steps of the wall clock. Elsewhere it is the wall clock, which also
// goes on during suspend but can be stepped.
package bootclock
