package cronlock

import (
	"context"
	"errors"
	"fmt"

	"github.com/robfig/cron/v3"

	"github.com/holdlock/holdlock"
)

// ErrMinHold says that a lock cannot keep one tick from running twice.
var ErrMinHold = errors.New("the lock has no MinHold, so a tick can run again on a replica whose clock is behind, or that is late; " +
	"declare one that is longer than clocks differ and replicas can be late, and shorter than the time between ticks")

// ErrWait says that a lock is declared to wait: each replica would run each tick, one after the other.
var ErrWait = errors.New("a tick is run by one replica, and the others do not wait for it: each that waits would run it again")

// check says whether a lock keeps a tick from running twice, and lets one run at all.
func check(lock *holdlock.Lock) error {
	switch {
	case lock == nil:
		return fmt.Errorf("cronlock: %w", &holdlock.InvalidError{What: "lock", Value: "nil", Why: "declare one with Client.NewLock"})
	case lock.MinHold() == 0:
		return fmt.Errorf("cronlock: lock %s: %w", lock.Name(), ErrMinHold)
	case lock.Wait() != 0:
		return fmt.Errorf("cronlock: lock %s: Wait is %s; %w", lock.Name(), lock.Wait(), ErrWait)
	}
	if err := lock.Usable(); err != nil {
		return fmt.Errorf("cronlock: lock %s: %w", lock.Name(), err)
	}
	return nil
}

// Options are for Job and Wrapper; nil means all defaults.
type Options struct {
	// Context is the parent of the work's context. Default: context.Background().
	Context context.Context
	// Error is called with why a tick was not run here, or with what the work has returned: errors.Is(err, holdlock.ErrHeld) is a
	// tick that another replica runs. nil drops it; cron itself has nowhere to put errors.
	Error func(error)
}

func (o *Options) context() context.Context {
	if o == nil || o.Context == nil {
		return context.Background()
	}
	return o.Context
}

func (o *Options) tell(err error) {
	if err != nil && o != nil && o.Error != nil {
		o.Error(err)
	}
}

// Job returns a job that runs work under the lock, as Lock.Do does: one attempt per tick. The error says why no tick could run, or one could run
// twice: ErrMinHold if the lock has no MinHold, ErrWait if it is declared to wait, holdlock.ErrRefused for a Harmful lock that its store does not
// protect, ErrShutdown for one of a client that has ended, ErrInvalid without a lock or work. The store is not asked.
func Job(lock *holdlock.Lock, work func(ctx context.Context, lease *holdlock.Lease) error, opts *Options) (cron.Job, error) {
	if err := check(lock); err != nil {
		return nil, err
	}
	if work == nil {
		return nil, fmt.Errorf("cronlock: lock %s: %w", lock.Name(), &holdlock.InvalidError{What: "work", Value: "nil", Why: "it is what runs at each tick"})
	}
	return cron.FuncJob(func() { opts.tell(lock.Do(opts.context(), work)) }), nil
}

// Wrapper returns a wrapper for cron.NewChain or cron.WithChain. All jobs that it wraps are one lock: use it for one job, or for
// those that must not run together. Put it inside cron.Recover. A job cannot be told that its lease is lost; see Job, also for the errors.
func Wrapper(lock *holdlock.Lock, opts *Options) (cron.JobWrapper, error) {
	if err := check(lock); err != nil {
		return nil, err
	}
	return func(j cron.Job) cron.Job {
		return cron.FuncJob(func() {
			opts.tell(lock.Do(opts.context(), func(context.Context, *holdlock.Lease) error {
				j.Run()
				return nil
			}))
		})
	}, nil
}
