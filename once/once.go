package once

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

// The errors about jobs, for errors.Is. The details are in *holdlock.JobError.
var (
	// ErrSuspended: the job does not run until an operator settles it. A queue that sees it should put the message aside.
	ErrSuspended = driver.ErrSuspended
	// ErrOtherInput: the key was used with another input before. Nothing was run.
	ErrOtherInput = driver.ErrOtherInput
	// ErrResultTooLarge: the job is done and recorded as done, but without its result, which has more than 64 KiB. Store such
	// a result elsewhere and return where it is.
	ErrResultTooLarge = errors.New("the result is too large to be kept")
	// ErrNoResult: the job is done and there is no stored result of it. Only JSON returns it.
	ErrNoResult = errors.New("there is no stored result")
)

// Run is one run of a job, as its function sees it.
type Run struct {
	Lease *holdlock.Lease // of the job's lock: Token, Check
	Key   string          // idempotency key of the job; see Key and KeyFrom
	// Number counts the runs of the job, this one included, since an operator last let it run again. Lapses says how many of
	// those before lapsed, so that their work may have been done.
	Number, Lapses int
	// LastError is how the last run failed that said so.
	LastError string
}

// Status says what became of a delivery.
type Status uint8

// The outcomes.
const (
	NotRun           Status = iota // the error says why: the store, the options, the input
	Ran                            // this delivery did the job
	AlreadyDone                    // an earlier one had
	RunningElsewhere               // another run is at work; it may yet fail
	Suspended                      // the job waits for an operator
	Failed                         // the function returned an error
)

// String returns the status in lower case.
func (s Status) String() string {
	return [...]string{"not run", "ran", "already done", "running elsewhere", "suspended", "failed"}[s]
}

// Outcome is what became of a delivery.
type Outcome struct {
	Status Status
	// Result is that of this run, or the stored one of the run that did the job. NoResult says that it was too large to be
	// stored.
	Result   []byte
	NoResult bool
	// Runs is how many runs of the job were begun, as far as this delivery has seen.
	Runs int
	// Recorded says that the store has confirmed how the run ended. If it is false after Ran, the job is done, and a
	// duplicate may still run it again: after a lapse, which is told, or untold if somebody has removed the record meanwhile.
	Recorded bool
	// Holder has the job if it is RunningElsewhere, for ExpiresIn more unless its lease is renewed.
	Holder    holdlock.Holder
	ExpiresIn time.Duration
}

// Do runs fn if the job that lock names, by its name and key, is not done yet. fn runs as in Lock.Do: on the caller's
// goroutine, under a context that ends when the lease is lost, and Do waits for it.
//
// The error is nil if and only if the job is done, by this run or an earlier one (or RunningElsewhere, if OnRunning is Skip).
// Only then may a message be acknowledged. Otherwise:
//
//   - ErrHeld: another run is at work. Deliver again later.
//   - ErrSuspended: an operator has to settle the job; see holdlock jobs.
//   - ErrOtherInput: the key was used for something else.
//   - fn's own error. The job runs again on the next delivery; if it is joined with ErrSuspended, it does not.
//   - ErrLost: the lease had ended before the record was written, which was refused. If Status is Ran, fn had returned nil:
//     the next delivery runs the job again, or suspends it (OnLapse).
//   - ErrResultTooLarge: the exception. The job is done; further deliveries are AlreadyDone, without a result.
//   - What Lock.Do returns before its work, and ErrUnsupported on a store that keeps no records.
//
// If the store does not answer when the work is done, the error is nil and Outcome.Recorded false: the work must not be
// repeated because of that. The record is sent again until the TTL has passed.
//
// If fn panics, or calls runtime.Goexit, its run has failed, and that goes on.
func Do(ctx context.Context, lock *holdlock.Lock, opts *Options, fn func(ctx context.Context, run *Run) ([]byte, error)) (out Outcome, err error) {
	o, err := opts.fill()
	if err != nil {
		return Outcome{}, err
	}
	var wait time.Duration
	if o.OnRunning == Wait {
		wait = holdlock.Forever
	}
	lease, err := lock.Claim(ctx, o.Claim(), wait)
	if err != nil {
		return notRun(err, o.OnRunning)
	}
	job := lease.Job()
	run := &Run{Lease: lease, Key: Key(lock), Number: job.Runs, Lapses: job.Lapses, LastError: job.Error}
	work, cancel := lease.WithContext(context.WithValue(ctx, contextKey{}, run.Key))
	defer cancel()
	rec := o.Failed(job.Runs, "it panicked, or called runtime.Goexit")
	defer func() { // also on panic and Goexit
		err = ended(&out, err, rec, lease.Finish(ctx, rec), lock)
	}()
	result, err := fn(work, run)
	out.Runs = job.Runs
	if err != nil {
		out.Status = Failed
		rec = o.Failed(job.Runs, err.Error())
		return out, err
	}
	out.Status, out.Result = Ran, result
	rec = driver.Record{State: driver.JobDone, Result: result, Keep: o.Keep}
	if len(result) > driver.MaxResult {
		rec.Result, rec.NoResult = nil, true
	}
	return out, nil
}

// Usable says, without asking the store, whether jobs of a lock can be run with these options at all. If not it returns what Do would before its
// work: ErrInvalid, ErrRefused, ErrShutdown, or ErrUnsupported on a store that keeps no records. Whoever handles messages asks when that is set up.
func Usable(lock *holdlock.Lock, opts *Options) error {
	o, err := opts.fill()
	if err != nil {
		return err
	}
	return lock.Claimable(o.Claim())
}

// notRun is the outcome of a delivery that got no lease.
func notRun(err error, onRunning OnRunning) (Outcome, error) {
	var about *holdlock.JobError
	var held *holdlock.HeldError
	switch {
	case errors.As(err, &about):
		out := Outcome{Runs: about.Job.Runs}
		switch {
		case errors.Is(err, driver.ErrDone):
			out.Status, out.Result, out.NoResult, out.Recorded = AlreadyDone, about.Job.Result, about.Job.NoResult, true
			return out, nil
		case errors.Is(err, ErrSuspended):
			out.Status = Suspended
		}
		return out, err
	case errors.As(err, &held):
		out := Outcome{Status: RunningElsewhere, Holder: held.Holder, ExpiresIn: held.FreeIn}
		if onRunning == Skip {
			err = nil
		}
		return out, err
	}
	return Outcome{}, err
}

// ended completes the outcome of a run by what came of its record. err is that of the function.
func ended(out *Outcome, err error, rec driver.Record, recorded error, lock *holdlock.Lock) error {
	out.Recorded = recorded == nil
	switch {
	case recorded == nil && rec.State == driver.JobSuspended:
		return errors.Join(err, fmt.Errorf("job %s: %w, because %s", jobName(lock), ErrSuspended, rec.Why))
	case recorded == nil && rec.NoResult:
		out.NoResult = true
		return fmt.Errorf("job %s is done, but its result of %d bytes was not kept: %w (at most %d bytes)",
			jobName(lock), len(out.Result), ErrResultTooLarge, driver.MaxResult)
	case recorded == nil || !errors.Is(recorded, holdlock.ErrLost):
		return err // an answer that did not come is not the work's fault, and is waited for in the background
	case errors.Is(err, holdlock.ErrLost):
		return err
	case err != nil:
		return errors.Join(err, recorded)
	}
	return fmt.Errorf("the run of job %s came to its end, but it was not recorded as done: %w", jobName(lock), recorded)
}
