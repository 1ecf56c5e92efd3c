//go:build !linux

package bootclock

import "time"

// Now returns the wall clock as a duration since 1970.
func Now() time.Duration { return time.Duration(time.Now().UnixNano()) }

// ID is empty: the system does not tell one boot from the next.
func ID() string { return "" }
