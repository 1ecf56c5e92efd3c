package gocronlock

import (
	"context"
	"fmt"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/holdlock/holdlock"
)

// Options are for New; nil means all defaults.
type Options struct {
	// Name of the lock; its keys are the names of the jobs. Default "gocron".
	Name string
	// Lock are the settings of the lock. MinHold is 5 s by default. Wait is not used: a replica that waits would run the job
	// again.
	Lock holdlock.LockOptions
}

// A Locker is a gocron.Locker, for a scheduler or for one job. It is safe for concurrent use.
type Locker struct{ lock *holdlock.Lock }

var _ gocron.Locker = (*Locker)(nil)

// New returns a locker on a client, which stays yours: shut it down after the scheduler.
func New(client *holdlock.Client, opts *Options) (*Locker, error) {
	if opts == nil {
		opts = &Options{}
	}
	name, o := opts.Name, opts.Lock
	if name == "" {
		name = "gocron"
	}
	if o.MinHold == 0 {
		o.MinHold = 5 * time.Second
	}
	if o.Wait != 0 {
		return nil, fmt.Errorf("gocronlock: lock %s: Wait is %s; a tick is run by one replica, and the others do not wait for it", name, o.Wait)
	}
	lock, err := client.NewLock(name, &o)
	if err != nil {
		return nil, fmt.Errorf("gocronlock: %w", err)
	}
	return &Locker{lock}, nil
}

// Lock implements gocron.Locker: one attempt. With an error gocron skips this tick, and tells listeners of
// gocron.AfterLockError; the error is a *holdlock.HeldError if another replica runs it.
func (l *Locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	lease, err := l.lock.For(job).TryAcquire(ctx)
	if err != nil {
		return nil, err
	}
	return held{lease}, nil
}

type held struct{ lease *holdlock.Lease }

// Unlock implements gocron.Lock. gocron drops its error; a lease that was lost meanwhile is told to the client's observer and log.
func (h held) Unlock(ctx context.Context) error { return h.lease.Release(ctx) }
