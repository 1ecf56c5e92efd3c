package holdlock

import (
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testhook"
)

// hookTests gives package holdtest, if the driver is one of its own, the means to end leases of this client.
func (c *Client) hookTests() {
	if d, ok := c.drv.(testhook.Driver); ok {
		d.Hook(hooked{c.keeper})
	}
}

// hooked implements testhook.Client. It looks for leases under the keeper's eye: these have not ended.
type hooked struct{ keeper *keeper }

// find returns a lease that has not ended, or nil.
func (h hooked) find(match func(*Lease) bool) *Lease {
	h.keeper.mu.Lock()
	defer h.keeper.mu.Unlock()
	for _, l := range h.keeper.heap {
		if match(l) {
			return l
		}
	}
	return nil
}

func (h hooked) Held(name, key string) (driver.Ref, bool) {
	l := h.find(func(l *Lease) bool { return l.lock.name == name && l.lock.key == key })
	if l == nil {
		return driver.Ref{}, false
	}
	return l.ref, true
}

func (h hooked) Lose(ref driver.Ref, reason string, cause error) {
	l := h.find(func(l *Lease) bool { return l.ref == ref })
	if l == nil {
		return
	}
	switch LossReason(reason) {
	case LossUnreachable, LossPaused, LossExpired:
		l.mu.Lock()
		now := h.keeper.c.clock.now()
		l.confirmed = instant{mono: now.mono.Add(-l.trust), boot: now.boot - l.trust}
		l.renewal.lastErr = cause // the keeper may be faster than the next lines, and gives the same reason
		l.mu.Unlock()
	}
	l.lose(l.lostError(LossReason(reason), cause))
}
