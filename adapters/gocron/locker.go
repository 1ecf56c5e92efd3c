package gocronlock

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/holdlock/holdlock"
)

// ErrMinHold says that a lock cannot keep one tick from running twice.
var ErrMinHold = errors.New("the lock has no MinHold, so a tick can run again on a replica whose clock is behind, or that is late; " +
	"set one that is longer than clocks differ and replicas can be late, and shorter than the time between ticks")

// ErrTooOften says that a tick was dropped because MinHold is longer than the time between ticks.
var ErrTooOften = errors.New("ticks are dropped: MinHold is longer than the time between them; give the job a Locker of its own, with a shorter one")

// Options are for New. Lock.MinHold has no default.
type Options struct {
	// Name of the lock; its keys are the names of the jobs. Default "gocron".
	Name string
	// Lock are the settings of the lock. MinHold is required: see the package comment. Wait is refused: each replica that waits would
	// run the tick again.
	Lock holdlock.LockOptions
}

// A Locker is a gocron.Locker, for a scheduler or for one job. It is safe for concurrent use.
type Locker struct {
	lock *holdlock.Lock

	mu    sync.Mutex
	asked map[string]time.Time // when each job was last asked for here: gocron does not tell how often it runs
	full  int                  // at so many jobs those are forgotten that were asked for longer ago than MinHold
}

var _ gocron.Locker = (*Locker)(nil)

// New returns a locker on a client, which stays yours: shut it down after the scheduler. The error says why no tick could run, or one could run
// twice: ErrMinHold if there is none, holdlock.ErrRefused for a Harmful lock that the store does not protect, ErrShutdown for a client that has
// ended, ErrInvalid without one. The store is not asked.
func New(client *holdlock.Client, opts *Options) (*Locker, error) {
	if opts == nil {
		opts = &Options{}
	}
	name, o := opts.Name, opts.Lock
	if name == "" {
		name = "gocron"
	}
	if client == nil {
		return nil, fmt.Errorf("gocronlock: lock %s: %w", name, &holdlock.InvalidError{What: "client", Value: "nil", Why: "open one on the store of your choice"})
	}
	if o.MinHold == 0 {
		return nil, fmt.Errorf("gocronlock: lock %s: Options.Lock: %w", name, ErrMinHold)
	}
	if o.Wait != 0 {
		return nil, fmt.Errorf("gocronlock: lock %s: Wait is %s; a tick is run by one replica, and the others do not wait for it", name, o.Wait)
	}
	lock, err := client.NewLock(name, &o)
	if err != nil {
		return nil, fmt.Errorf("gocronlock: %w", err)
	}
	if err := lock.Usable(); err != nil {
		return nil, fmt.Errorf("gocronlock: lock %s: %w", name, err)
	}
	return &Locker{lock: lock, asked: map[string]time.Time{}}, nil
}

// Lock implements gocron.Locker: one attempt. With an error gocron skips this tick, and tells listeners of
// gocron.AfterLockError; the error is a *holdlock.HeldError if another replica runs it, and ErrTooOften as well if it runs on none,
// because a tick before it is within MinHold.
func (l *Locker) Lock(ctx context.Context, job string) (gocron.Lock, error) {
	since, again := l.ask(job)
	lease, err := l.lock.For(job).TryAcquire(ctx)
	if err == nil {
		return held{lease}, nil
	}
	var taken *holdlock.HeldError
	if again && since < l.lock.MinHold() && errors.As(err, &taken) && taken.Cooling {
		err = fmt.Errorf("gocronlock: job %s came %s after the tick before, and MinHold is %s: %w: %w", job, since.Round(time.Millisecond), l.lock.MinHold(),
			ErrTooOften, err)
	}
	return nil, err
}

// ask notes that a job is asked for, and returns how long after the last time; again is false if it is the first, or the last one was
// longer ago than MinHold and is forgotten.
func (l *Locker) ask(job string) (since time.Duration, again bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if len(l.asked) >= l.full { // jobs that run once have names of their own
		maps.DeleteFunc(l.asked, func(_ string, last time.Time) bool { return now.Sub(last) >= l.lock.MinHold() })
		l.full = 100 + 2*len(l.asked)
	}
	last, again := l.asked[job]
	l.asked[job] = now
	return now.Sub(last), again
}

type held struct{ lease *holdlock.Lease }

// Unlock implements gocron.Lock. gocron drops its error; a lease that was lost meanwhile is told to the client's observer and log.
func (h held) Unlock(ctx context.Context) error { return h.lease.Release(ctx) }
