package holdlock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// Forever is a duration without end, for MaxHold and Wait.
const Forever time.Duration = math.MaxInt64

// RenewMode says whether a lease is kept alive while its work runs.
type RenewMode uint8

// The modes.
const (
	RenewOn  RenewMode = iota // renewed about every TTL/3: TTL says how soon a dead holder is noticed
	RenewOff                  // the plain expiry: TTL must cover the slowest run, and reviews check that it does
)

// LockOptions declare a lock. The zero value, and nil, are usable; reviews ask for Purpose and DoubleRun.
type LockOptions struct {
	// TTL is how soon the key of a dead holder becomes free, at least 100 ms and at most a year. Default 30 s.
	TTL time.Duration
	// MaxHold is how long one lease may be held in all, so that a stuck or forgotten holder does not renew for ever: when it
	// is reached, the lease is lost with LossMaxHold and renewed no more. Default 24 h or TTL, whichever is longer;
	// Forever is no limit.
	MaxHold time.Duration
	// MinHold is how long the key stays taken from the grant on, however short the work, so that a schedule that fires on
	// several machines with slightly different clocks, or a little late, runs once. Default 0; in a quorum at most its MaxTTL.
	MinHold time.Duration
	// Wait is how long Do waits for the lock. Default 0: one attempt. Forever waits until its context ends.
	Wait time.Duration
	// Renew is RenewOn by default.
	Renew RenewMode
	// Mode is Enforce by default. Shadow lets everybody run and counts what the lock would have prevented.
	Mode Mode
	// Purpose says what the lock protects, for people.
	Purpose string
	// DoubleRun declares what a double run costs. A Harmful lock is refused where this store cannot protect it.
	DoubleRun DoubleRun
	// Guard declares how the resource protects itself against a stale holder.
	Guard Guard
	// AcceptRisk is the reason for using a Harmful lock on a store that cannot protect it. Reviews show it.
	AcceptRisk string
}

// A Lock is a declared name with its settings, or, from For, one key of it. It holds no state: any number of goroutines
// may use one Lock, and every grant is a Lease of its own.
type Lock struct {
	c         *Client
	name, key string
	keyErr    error // what is wrong with the key; reported by every use
	opts      LockOptions
}

// NewLock declares a lock. It checks names and settings and does not talk to the store. A name holds no slash; names are
// case sensitive and up to 512 bytes of UTF-8. Declare a lock once per program; what is the same name is the same lock,
// in any program that opens the same store. The error is an *InvalidError.
func (c *Client) NewLock(name string, opts *LockOptions) (*Lock, error) {
	if err := checkName("lock name", name); err != nil {
		return nil, err
	}
	if n, _ := splitStoreKey(name); n != name {
		return nil, &InvalidError{"lock name", fmt.Sprintf("%.60q", name), "it contains a slash; put what varies into a key with For"}
	}
	var o LockOptions
	if opts != nil {
		o = *opts
	}
	if o.TTL == 0 {
		o.TTL = 30 * time.Second
	}
	if o.MaxHold == 0 {
		o.MaxHold = max(24*time.Hour, o.TTL)
	}
	if err := o.check(&c.traits); err != nil {
		return nil, err
	}
	if c.recorder != nil {
		c.recorder.Declare(name, o)
	}
	return &Lock{c: c, name: name, opts: o}, nil
}

// For returns the lock of one key, for example a job's id: different keys do not exclude each other, nor the lock
// without a key. A key is 1 to 512 bytes of UTF-8 and may hold slashes. A bad key is reported by every use of the result.
func (l *Lock) For(key string) *Lock {
	k := *l
	k.key, k.keyErr = key, checkName("key of lock "+l.name, key)
	return &k
}

// Name returns the lock's name.
func (l *Lock) Name() string { return l.name }

// Key returns the key, or "" for a lock without one.
func (l *Lock) Key() string { return l.key }

// MinHold returns the MinHold that the lock was declared with, for packages that depend on one.
func (l *Lock) MinHold() time.Duration { return l.opts.MinHold }

// Wait returns the Wait that the lock was declared with, for packages that cannot wait.
func (l *Lock) Wait() time.Duration { return l.opts.Wait }

// Usable says, without asking the store, whether an attempt to get the lock is allowed at all. If not it returns what each attempt would:
// ErrInvalid, ErrRefused or ErrShutdown. Whoever runs work at set times asks when that is set up, and not at the first tick.
func (l *Lock) Usable() error {
	if l.keyErr != nil {
		return l.keyErr
	}
	if err := l.permit(entryLease); err != nil {
		return err
	}
	return l.c.running()
}

// Do runs fn while holding the lock: one attempt to get it, or LockOptions.Wait. fn runs on the caller's goroutine; its
// context ends when ctx ends, and, with a *LostError as its cause, when the lease is lost, which is before the key can
// pass to anyone else. Do waits for fn to return, always, and releases the lock after that, also if fn panics or calls
// runtime.Goexit, and also if ctx has ended.
//
// Errors: ErrHeld, ErrUnreachable, ErrUnknown, ErrRefused, ErrInvalid and ErrShutdown mean that fn was not called. After
// fn was called the error is fn's own, joined with an ErrLost if the lease was lost before fn returned: what fn did after
// that may have overlapped with another run. A release that fails afterwards is not an error of Do, because the work is
// done and must not be repeated: it is logged, observed as Unreleased, and tried again until the TTL has passed.
func (l *Lock) Do(ctx context.Context, fn func(ctx context.Context, lease *Lease) error) (err error) {
	if err := l.c.begin(); err != nil {
		return err
	}
	defer l.c.end()
	lease, err := l.acquireFor(ctx, l.opts.Wait)
	if err != nil {
		return err
	}
	work, cancel := lease.WithContext(ctx)
	defer cancel()
	defer func() { // also on panic and Goexit
		if lost := lease.Release(ctx); errors.Is(lost, ErrLost) && !errors.Is(err, ErrLost) {
			err = errors.Join(err, lost)
		}
	}()
	return fn(work, lease)
}

// TryAcquire makes one attempt to get the lock. On success the caller must Release the lease; until then it is renewed,
// at most for MaxHold. ctx bounds the attempt only, not the lease. Errors are those of Do before its work.
func (l *Lock) TryAcquire(ctx context.Context) (*Lease, error) {
	return l.acquireFor(ctx, 0)
}

// Acquire waits for the lock until ctx ends. ctx bounds the wait only, not the lease. When the wait ends without a grant
// the error is the *HeldError of the last attempt, which wraps the context's error. If the very first attempt fails
// because of the store, its error is returned at once; later failures are waited out. Otherwise it is like TryAcquire.
func (l *Lock) Acquire(ctx context.Context) (*Lease, error) {
	return l.acquireFor(ctx, Forever)
}

// acquireFor is the common way in: it checks everything that needs no store, then asks it.
func (l *Lock) acquireFor(ctx context.Context, wait time.Duration) (*Lease, error) {
	if l.keyErr != nil {
		return nil, l.keyErr
	}
	if err := l.permit(entryLease); err != nil {
		return nil, l.refused(err)
	}
	if l.opts.Mode == Shadow {
		return l.shadow(ctx)
	}
	return l.acquireAs(ctx, wait, nil)
}

// acquireAs asks the store, for a run of a job if claim is not nil.
func (l *Lock) acquireAs(ctx context.Context, wait time.Duration, claim *driver.Claim) (*Lease, error) {
	if ctx.Err() != nil { // nothing is sent for a caller that is gone
		return nil, fmt.Errorf("acquire of lock %s: store %s was not asked: %w", describe(l.name, l.key), l.c.traits.Location, l.c.gone(ctx))
	}
	a := attempt{lock: l, claim: claim, start: time.Now()}
	if wait == 0 {
		return a.once(ctx)
	}
	if wait != Forever {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait)
		defer cancel()
	}
	if l.c.line != nil && claim == nil { // a hand-over in line does not look at the record of a job
		return a.stand(ctx)
	}
	return a.poll(ctx)
}
