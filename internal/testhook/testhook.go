// Package testhook is how package holdtest ends leases of a client. It is internal so that programs cannot: a lease that
// can be ended from outside for no reason would be one more thing that can go wrong in production.
package testhook

import "github.com/holdlock/holdlock/driver"

// A Driver is a driver that holdlock.NewClient gives a hold on the client it makes.
type Driver interface {
	driver.Driver
	Hook(c Client)
}

// A Client is what a test can do to a *holdlock.Client. Its methods are safe for concurrent use.
type Client interface {
	// Held returns the Ref of the client's lease of a lock and key. ok is false if it has none that has not ended.
	Held(name, key string) (ref driver.Ref, ok bool)
	// Lose ends that lease with a LostError of this reason and this cause, which may be nil. Where the reason is that trust
	// ran out, trust has run out. A lease that has already ended is left as it is.
	Lose(ref driver.Ref, reason string, cause error)
}
