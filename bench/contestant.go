package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"time"

	"github.com/redis/go-redis/v9"
)

// A contestant is one way to take a lock and to give it back.
type contestant struct {
	name  string
	note  string                                               // how it is set up, if it is not as its README shows
	sends []string                                             // the commands that it sends to the server, other than in scripts
	bare  bool                                                 // a floor: it has neither waiting nor renewal
	waits bool                                                 // for the key
	key   func(ctx context.Context, admin *redis.Client) error // makes the contended key, if that is not done by lock
	open  func(addr string, o setup) (locker, error)
}

// setup is how a scenario wants it.
type setup struct {
	ttl     time.Duration
	waiters int  // how many goroutines may wait at a time, for those that need a connection each
	renew   bool // locks are held for longer than their TTL
}

// locker is a contestant on a server. Its methods are safe for concurrent use.
type locker interface {
	// lock returns when key is ours, and how to give it back.
	lock(ctx context.Context, key string) (unlock func() error, err error)
	close()
}

// funcs makes a locker of two functions.
type funcs struct {
	take func(ctx context.Context, key string) (unlock func() error, err error)
	end  func()
}

func (f funcs) lock(ctx context.Context, key string) (func() error, error) { return f.take(ctx, key) }
func (f funcs) close()                                                     { f.end() }

// newToken is what the floors prove their ownership with.
func newToken() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// contestants are measured in this order, and backwards in every other round.
func contestants() []contestant {
	return append(floors(), append(peers(), ours()...)...)
}

func named(name string) (contestant, bool) {
	for _, c := range append(contestants(), waitingFloors()...) {
		if c.name == name {
			return c, true
		}
	}
	return contestant{}, false
}
