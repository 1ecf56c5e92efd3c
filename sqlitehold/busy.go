package sqlitehold

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/holdlock/holdlock/driver"
)

// The first and the longest sleep between two tries at a locked file. A transaction of another process takes tens of
// microseconds, so it is nearly always over after the first.
const (
	firstSleep = 100 * time.Microsecond
	lastSleep  = 5 * time.Millisecond
)

// A gate lets one goroutine at a time use the connection, and waits with it while the file is locked by another process.
// It is the engine's busy handler turned inside out: that one sleeps where no context can reach it.
type gate struct {
	path   string
	slot   chan struct{} // holds one value while the connection is in use
	closed chan struct{}
	locked atomic.Int64 // since when the file is locked, in ns since 1970; 0 if it is not
}

func newGate(path string) *gate {
	return &gate{path: path, slot: make(chan struct{}, 1), closed: make(chan struct{})}
}

// do runs f when the connection is free, and again for as long as f reports that the file is locked. It ends soon after
// ctx does, unless f itself hangs. Errors name the call by verb and key.
//
// f must have changed nothing when it fails because the file is locked, which is so if only its last step can do that.
func (g *gate) do(ctx context.Context, verb, key string, f func() error) error {
	if err := ctx.Err(); err != nil {
		return g.unapplied(verb, key, "it was not tried", err)
	}
	if err := g.enter(ctx); err != nil {
		switch {
		case errors.Is(err, driver.ErrClosed):
			return g.unapplied(verb, key, "", err)
		case g.locked.Load() != 0:
			return g.lockedError(verb, key, &g.locked, err)
		}
		return g.unapplied(verb, key, "other calls of this process were before it", err)
	}
	defer g.leave()
	return g.retry(ctx, verb, key, &g.locked, f)
}

// retry runs f until it fails for another reason than that the file is locked, or not at all. Since when it is locked is
// noted in since.
func (g *gate) retry(ctx context.Context, verb, key string, since *atomic.Int64, f func() error) error {
	for sleep := firstSleep; ; sleep = min(2*sleep, lastSleep) {
		err := f()
		if !isLocked(err) {
			if since.Load() != 0 {
				since.Store(0)
			}
			return g.explain(verb, key, err)
		}
		since.CompareAndSwap(0, time.Now().UnixNano())
		timer := time.NewTimer(sleep/2 + rand.N(sleep))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return g.lockedError(verb, key, since, ctx.Err())
		case <-g.closed:
			timer.Stop()
			return g.unapplied(verb, key, "", driver.ErrClosed)
		}
	}
}

// enter waits until the connection is free.
func (g *gate) enter(ctx context.Context) error {
	select {
	case g.slot <- struct{}{}:
	default:
		select {
		case g.slot <- struct{}{}:
		case <-g.closed:
			return driver.ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if g.isShut() {
		g.leave()
		return driver.ErrClosed
	}
	return nil
}

func (g *gate) leave() { <-g.slot }

func (g *gate) isShut() bool {
	select {
	case <-g.closed:
		return true
	default:
		return false
	}
}

// shut makes all further calls fail with ErrClosed, and returns when the last one is out.
func (g *gate) shut() {
	close(g.closed)
	g.slot <- struct{}{}
}

func isLocked(err error) bool {
	switch primaryCode(err) {
	// PROTOCOL is a race for the locks of the log that the engine gave up on.
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL:
		return true
	}
	return false
}

// primaryCode returns the engine's result code without its details, and 0 for other errors.
func primaryCode(err error) int {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return 0
	}
	return e.Code() & 0xff
}

func (g *gate) lockedError(verb, key string, since *atomic.Int64, ended error) error {
	locked := time.Since(time.Unix(0, since.Load()))
	return g.unapplied(verb, key, fmt.Sprintf("the file is locked by a transaction of another process, for at least %v; "+
		"a process that is stopped or hangs in one must be continued or killed: find it with: fuser -v %s",
		locked.Round(time.Millisecond), g.path), ended)
}

// unapplied is for a call that has certainly changed nothing.
func (g *gate) unapplied(verb, key, why string, err error) error {
	if why != "" {
		why += ": "
	}
	return fmt.Errorf("sqlitehold: %s in %s: %s%w (%w)", called(verb, key), g.path, why, err, driver.ErrNotApplied)
}
