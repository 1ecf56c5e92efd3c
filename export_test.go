package holdlock

import "time"

// SetBootClock replaces the clock that counts suspend. Call it before the first lease.
func SetBootClock(c *Client, now func() time.Duration) { c.clock.boot = now }

// ForgetRetired makes a client forget which requests for places it has given back.
func ForgetRetired(c *Client) {
	c.undoer.mu.Lock()
	defer c.undoer.mu.Unlock()
	c.undoer.retired = retired{}
}

// SetMaxUndos replaces maxUndos.
func SetMaxUndos(c *Client, n int) { c.undoer.most = int64(n) }
