package holdtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/faultdriver"
)

// HoldByAnother lets another program take the lock, and keep it until Release is called on the result or the test ends.
// key is "" for a lock without keys. The test fails at once if the lock is held.
func (c *Client) HoldByAnother(name, key string) *holdlock.Lease {
	c.tb.Helper()
	l, err := c.another.NewLock(name, &holdlock.LockOptions{MaxHold: holdlock.Forever, Purpose: "holdtest"})
	if err != nil {
		c.tb.Fatalf("holdtest: %v", err)
	}
	if key != "" {
		l = l.For(key)
	}
	lease, err := l.TryAcquire(context.Background())
	if err != nil {
		c.tb.Fatalf("holdtest: another program cannot take lock %s: %v", describe(name, key), err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.theirs = append(c.theirs, lease)
	return lease
}

// Lose ends the client's lease of the lock with a *holdlock.LostError of this reason, as soon as there is one, and
// returns when the contexts of its work have ended. key is "" for a lock without keys. The store sees what it would see:
// the key is free at once for LossGone, otherwise it stays taken until the work has stopped. The test fails if there is
// no lease for ten seconds.
func (c *Client) Lose(name, key string, reason holdlock.LossReason) {
	c.tb.Helper()
	ref := c.await(name, key)
	var cause, told error
	switch reason {
	case holdlock.LossUnreachable:
		cause = errors.New("holdtest: the store does not answer")
	case holdlock.LossGone:
		cause = fmt.Errorf("holdtest: %w", driver.ErrGone)
		told = c.store.Release(context.Background(), &driver.ReleaseRequest{Ref: ref})
	case holdlock.LossBroken:
		cause = fmt.Errorf("holdtest: %w", driver.ErrBroken)
		told = c.store.Break(context.Background(), &driver.BreakRequest{Ref: ref, By: "holdtest"})
	}
	if told != nil && !errors.Is(told, driver.ErrGone) {
		c.tb.Errorf("holdtest: losing lock %s: %v", describe(name, key), told)
	}
	c.hook.Lose(ref, string(reason), cause)
}

// Expire lets the process look paused for longer than its lease lasts, as soon as the client holds the lock: the lease
// ends with LossPaused, and the key is free at once, while the work may still run. Whoever takes it next, for example with
// HoldByAnother, overlaps with that work, has a larger token, and is told of the lapse. It is the case that only a
// resource which compares tokens survives. The test fails if there is no lease for ten seconds.
func (c *Client) Expire(name, key string) {
	c.tb.Helper()
	ref := c.await(name, key)
	c.lapsed.Store(ref.Nonce, true)
	c.hook.Lose(ref, string(holdlock.LossPaused), nil)
	err := c.store.Break(context.Background(), &driver.BreakRequest{Ref: ref, By: "holdtest", Now: true})
	if err != nil {
		c.tb.Errorf("holdtest: expiring lock %s: %v", describe(name, key), err)
	}
}

// await returns the Ref of the client's lease of a lock as soon as there is one.
func (c *Client) await(name, key string) driver.Ref {
	c.tb.Helper()
	for start := time.Now(); time.Since(start) < patience; time.Sleep(time.Millisecond) {
		if ref, ok := c.hook.Held(name, key); ok {
			return ref
		}
	}
	c.tb.Fatalf("holdtest: nobody has taken lock %s for %s, so it cannot be lost", describe(name, key), patience)
	return driver.Ref{}
}

// Store is the state of the store as the client sees it.
type Store uint8

// The states.
const (
	Up   Store = iota // it works
	Down              // every call fails and changes nothing: ErrUnreachable
	Mute              // it does what it is asked, and its answers get lost: ErrUnknown
)

// SetStore lets the store fail, or work again, from the next call on. Leases are kept as long as trust in them lasts, so
// to see them lost, wait in virtual time or use Lose. The other program of HoldByAnother is not affected.
func (c *Client) SetStore(s Store) {
	var fault faultdriver.Fault
	switch s {
	case Down:
		fault = faultdriver.Fault{Drop: true, Err: fmt.Errorf("holdtest: the store is down: %w", driver.ErrNotApplied)}
	case Mute:
		fault = faultdriver.Fault{Lose: true, Err: errors.New("holdtest: the answer was lost")}
	}
	c.faults.SetScript(func(faultdriver.Call) faultdriver.Fault { return fault })
}
