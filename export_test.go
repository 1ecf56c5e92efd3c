package holdlock

import "time"

// SetBootClock replaces the clock that counts suspend. Call it before the first lease.
func SetBootClock(c *Client, now func() time.Duration) { c.clock.boot = now }

// SetMaxUndos replaces maxUndos.
func SetMaxUndos(c *Client, n int) { c.undoer.most = int64(n) }
