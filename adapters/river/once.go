package riverlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/once"
)

// A KeyFunc names the job of a River job: two that have one key are one job. It must not depend on when or how often the job
// is delivered, so neither on ID, Attempt nor ScheduledAt.
type KeyFunc func(job *rivertype.JobRow) (string, error)

const (
	defaultAgain     = time.Second
	minAgain         = 500 * time.Millisecond // a duplicate comes back at most twice a second
	defaultSuspended = 5 * time.Minute
)

// OnceOptions are for Once; nil means all defaults.
type OnceOptions struct {
	// Again is how soon a duplicate comes back whose twin is at work. Default 1 s, at least 500 ms.
	Again time.Duration
	// Suspended is how soon a job comes back that waits for an operator, to see whether it was settled, or whose record is of a newer
	// release. Default 5 minutes,
	// at least 500 ms.
	Suspended time.Duration
	// Once says what is remembered for how long, and what follows a lapse or an error. OnRunning is not used. The Input is made of
	// the arguments of the River job if CompareArgs is set.
	Once once.Options
	// CompareArgs makes a second River job under the same key with other arguments an error, which cancels it.
	CompareArgs bool
}

type onceMiddleware struct {
	river.MiddlewareDefaults

	lock *holdlock.Lock
	key  KeyFunc
	opts OnceOptions
}

// Once returns a middleware under which each job of a key runs once, under a lease of the lock and with a record beside it. The
// store of the lock has to keep records; the error is holdlock.ErrUnsupported otherwise. It is for all workers of a client
// (river.Config.Middleware) or for one (Middleware of the worker). The context of the work ends when the lease is lost; work that
// returns nil after that is done only if the record was still accepted. Work that snoozes or cancels itself has not done the job: for
// the record that is a run that failed.
//
// The client of the lock has to be shut down after River has stopped. With Harmful locks OnLapse must be Hold, and the records durable: the error is
// holdlock.ErrRefused otherwise, and ErrInvalid for options that are not allowed. The store is not asked.
func Once(lock *holdlock.Lock, key KeyFunc, opts *OnceOptions) (rivertype.WorkerMiddleware, error) {
	m := &onceMiddleware{lock: lock, key: key}
	if opts != nil {
		m.opts = *opts
	}
	if lock == nil || key == nil {
		return nil, errors.New("riverlock: Once needs a lock and a function that names jobs")
	}
	var err error
	if m.opts.Again, err = pause("Again", m.opts.Again, defaultAgain); err != nil {
		return nil, fmt.Errorf("riverlock: lock %s: %w", lock.Name(), err)
	}
	if m.opts.Suspended, err = pause("Suspended", m.opts.Suspended, defaultSuspended); err != nil {
		return nil, fmt.Errorf("riverlock: lock %s: %w", lock.Name(), err)
	}
	switch o := m.opts.Once; {
	case o.OnRunning != once.Fail:
		return nil, fmt.Errorf("riverlock: lock %s: OnRunning is %d; a duplicate whose twin is at work is snoozed", lock.Name(), o.OnRunning)
	case o.Input != nil:
		return nil, fmt.Errorf("riverlock: lock %s: Input is the same for all jobs; use CompareArgs", lock.Name())
	}
	if err := once.Usable(lock, &m.opts.Once); err != nil {
		return nil, fmt.Errorf("riverlock: lock %s: %w", lock.Name(), err)
	}
	return m, nil
}

// pause checks how soon a job is to come back.
func pause(what string, d, byDefault time.Duration) (time.Duration, error) {
	if d = cmp.Or(d, byDefault); d < minAgain {
		return 0, fmt.Errorf("%s is %s; at least %s", what, d, minAgain)
	}
	return d, nil
}

// name returns the lock of a River job.
func name(lock *holdlock.Lock, key KeyFunc, job *rivertype.JobRow) (*holdlock.Lock, error) {
	k, err := key(job)
	if err != nil {
		return nil, fmt.Errorf("riverlock: lock %s: no key for River job %d (%s): %w", lock.Name(), job.ID, job.Kind, err)
	}
	if k == "" {
		return nil, fmt.Errorf("riverlock: lock %s: the key for River job %d (%s) is empty: all of them would be one job", lock.Name(), job.ID, job.Kind)
	}
	if _, _, err := holdlock.ParseName(lock.Name() + "/" + k); err != nil {
		return nil, fmt.Errorf("riverlock: River job %d (%s): %w; let the function that names jobs make one of it that is, a hash for example", job.ID, job.Kind, err)
	}
	return lock.For(k), nil
}

// Work implements rivertype.WorkerMiddleware.
func (m *onceMiddleware) Work(ctx context.Context, job *rivertype.JobRow, doInner func(context.Context) error) error {
	lock, err := name(m.lock, m.key, job)
	if err != nil {
		return err
	}
	opts := m.opts.Once
	if m.opts.CompareArgs {
		opts.Input = append([]byte{}, job.EncodedArgs...) // not nil
	}
	var failed *words
	out, err := once.Do(ctx, lock, &opts, func(ctx context.Context, _ *once.Run) ([]byte, error) {
		err := doInner(ctx)
		if err != nil {
			failed = &words{err}
			return nil, failed
		}
		return nil, nil
	})
	switch {
	case failed != nil && err == error(failed):
		return failed.of
	case failed != nil:
		return &failure{failed.of, m.ofThisJob(&out, err)}
	}
	return m.ofThisJob(&out, err)
}

// ofThisJob says an error of package once in River's words.
func (m *onceMiddleware) ofThisJob(out *once.Outcome, err error) error {
	switch {
	case err == nil:
		return nil
	case out.Status == once.RunningElsewhere:
		return errors.Join(err, river.JobSnooze(m.opts.Again))
	case errors.Is(err, once.ErrSuspended):
		return errors.Join(err, river.JobSnooze(m.opts.Suspended))
	case out.Status == once.NotRun && errors.Is(err, driver.ErrNewer): // another worker may be of that release
		return errors.Join(err, river.JobSnooze(m.opts.Suspended))
	case out.Status == once.NotRun && (errors.Is(err, once.ErrOtherInput) || driver.Damaged(err)):
		return river.JobCancel(err)
	}
	return err
}

// What the work returns may be about another job, in which it has found itself. It says nothing of its own, and must not be taken for it.

// words are the words of the work's error and nothing else of it: what package once makes of them tells errors.Is of this job only.
type words struct{ of error }

func (w *words) Error() string { return w.of.Error() }

// A failure is the error of work that has failed and has done something to its job by that.
type failure struct {
	works error
	ours  error // for example that the job is suspended by it; it quotes the work's
}

func (f *failure) Error() string { return f.ours.Error() }

func (f *failure) Unwrap() []error { return []error{f.works, f.ours} }
