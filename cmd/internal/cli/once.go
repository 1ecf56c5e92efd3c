package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/cmd/internal/guard"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/once"
)

// onceFlags are the flags of run that make it the run of a job which is to be done once.
type onceFlags struct {
	Once    bool           `help:"Run a job once: skip it with 0 if it is done, however long ago."`
	Keep    *time.Duration `help:"With --once: how long it is remembered that the job is done. Default: 168h." placeholder:"DURATION"`
	OnLapse *string        `help:"With --once: what follows a run that never said how it ended, or was asked to stop before it ended: rerun, or hold for an operator. Default: rerun." placeholder:"POLICY"`
	OnError *string        `help:"With --once: what follows an exit code other than 0: rerun or hold. Default: rerun; --on-lapse, if it was asked to stop." placeholder:"POLICY"`
	MaxRuns *int           `help:"With --once: hold the job when so many runs were begun." placeholder:"N"`
	Input   *string        `help:"With --once: what the job works on; another input under the same key is an error." placeholder:"TEXT"`
}

const defaultKeep = 168 * time.Hour

// options reads the flags; nil means that --once is not given.
func (o *onceFlags) options() (*once.Options, error) {
	if !o.Once {
		for name, given := range map[string]bool{
			"--keep": o.Keep != nil, "--on-lapse": o.OnLapse != nil, "--on-error": o.OnError != nil, "--max-runs": o.MaxRuns != nil,
			"--input": o.Input != nil,
		} {
			if given {
				return nil, usage(name + " needs --once")
			}
		}
		return nil, nil
	}
	opts := &once.Options{Keep: defaultKeep}
	if o.Keep != nil {
		if *o.Keep <= 0 {
			return nil, usage(fmt.Sprintf("--keep %s is not allowed: it must be positive", *o.Keep))
		}
		opts.Keep = *o.Keep
	}
	for name, flag := range map[string]struct {
		given *string
		to    *once.Policy
	}{"--on-lapse": {o.OnLapse, &opts.OnLapse}, "--on-error": {o.OnError, &opts.OnError}} {
		switch {
		case flag.given == nil || *flag.given == "rerun":
		case *flag.given == "hold":
			*flag.to = once.Hold
		default:
			return nil, usage(fmt.Sprintf("%s %.60q is not allowed: rerun or hold", name, *flag.given))
		}
	}
	if o.MaxRuns != nil {
		if *o.MaxRuns < 1 {
			return nil, usage(fmt.Sprintf("--max-runs %d is not allowed: at least 1", *o.MaxRuns))
		}
		opts.MaxRuns = *o.MaxRuns
	}
	if o.Input != nil {
		opts.Input = []byte(*o.Input)
	}
	return opts, nil
}

// get asks for the lock, or for a run of the job.
func (s *session) get(ctx context.Context, wait time.Duration) (*holdlock.Lease, error) {
	switch {
	case s.job != nil:
		return s.lock.Claim(ctx, s.job.Claim(), wait)
	case wait == 0:
		return s.lock.TryAcquire(ctx)
	default:
		return s.lock.Acquire(ctx)
	}
}

// finish gives the lease back, and if it is a run of a job, records how that ended as far as the command has said so: by an
// exit code of its own. A command that was ended by a signal, by us or by others, has not: it may have done its work or not. Nor
// has one that ends because it was asked to stop: 0 says then that it has stopped in order, and 143 or 1 that it has stopped. Only where --on-error
// is given is it known what is to follow a code other than 0, whatever it has come from.
func (s *session) finish(lease *holdlock.Lease, res guard.Result) error {
	ctx := context.Background()
	if s.job == nil {
		return lease.Release(ctx)
	}
	var notStarted *guard.StartError
	switch status := res.Status; {
	case errors.As(res.Err, &notStarted):
		return s.record(lease, driver.Record{State: driver.JobOpen, Error: "the command could not be started", Keep: s.job.Keep})
	case res.Err != nil, res.Ended != "" && res.Ended != guard.Leftovers, !status.Known, status.Signal != 0:
		s.g.say("unfinished", fmt.Sprintf("job %s is left unfinished: its command was ended before it could say how far it had come; %s",
			s.name(), s.follows(lease)), nil)
		return lease.Release(ctx)
	case status.Code == 0 && s.stop != nil:
		s.g.say("unfinished", fmt.Sprintf("job %s is not recorded as done, although its command ended with 0: it was asked to stop (signal %s), and "+
			"may not have done its work; %s", s.name(), s.stop, s.follows(lease)), nil)
		return lease.Release(ctx)
	case s.stop != nil && s.r.OnError == nil:
		s.g.say("unfinished", fmt.Sprintf("job %s is left unfinished: its command ended with code %d after it was asked to stop (signal %s), and may "+
			"have done its work or not; %s", s.name(), status.Code, s.stop, s.follows(lease)), nil)
		return lease.Release(ctx)
	case status.Code != 0:
		return s.record(lease, s.job.Failed(lease.Job().Runs, fmt.Sprintf("exit code %d", status.Code)))
	default:
		return s.record(lease, driver.Record{State: driver.JobDone, Keep: s.job.Keep})
	}
}

// record ends a run. What the store does not confirm is told here; what it refuses is the caller's to tell.
func (s *session) record(lease *holdlock.Lease, rec driver.Record) error {
	err := lease.Finish(context.Background(), rec)
	switch {
	case errors.Is(err, holdlock.ErrLost):
		s.g.say("unrecorded", fmt.Sprintf("how job %s has ended was not recorded, because its lock was lost; %s", s.name(), s.follows(lease)), nil)
	case errors.Is(err, driver.ErrUnclaimed), errors.Is(err, driver.ErrBadRecord): // nothing would be gained by telling it again
		s.g.say("unrecorded", fmt.Sprintf("%v; %s", err, s.spoilt()), nil)
		return nil
	case err != nil:
		s.g.say("recording", fmt.Sprintf("the store has not confirmed how job %s has ended, so it is told again for up to %s: %v",
			s.name(), s.r.TTL, err), nil)
		if !s.confirmed(lease, rec.State) {
			s.g.say("unrecorded", fmt.Sprintf("the store has not confirmed how job %s has ended; if it has not recorded it, %s",
				s.name(), after(s.job.OnLapse)), nil)
		}
		return nil
	}
	return err
}

// confirmed waits until the record stands, which the lease goes on to send in the background, or until its term has passed or a
// signal comes. The term is as old as its last renewal, so it has passed after a TTL at the latest.
func (s *session) confirmed(lease *holdlock.Lease, state driver.JobState) bool {
	ctx, cancel := context.WithTimeout(context.Background(), s.r.TTL)
	defer cancel()
	again := time.NewTicker(min(s.r.TTL/10, 500*time.Millisecond))
	defer again.Stop()
	for {
		info, known, err := s.client.Job(ctx, s.lock.Name(), s.lock.Key())
		switch {
		case errors.Is(err, driver.ErrBadRecord):
			return false
		case err != nil:
		case !known || info.Job.Token != lease.Token():
			return false
		case info.Job.State == state:
			return true
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return false
		case <-s.signals:
			return false
		}
	}
}

// follows says what follows this run, which did not say how it ended: an operator, or a later run, may have decided meanwhile.
func (s *session) follows(lease *holdlock.Lease) string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	info, known, err := s.client.Job(ctx, s.lock.Name(), s.lock.Key())
	j := &info.Job
	switch {
	case err != nil || !known:
	case j.Token != lease.Token() && j.State == driver.JobDone:
		return "a later run has done it, so it does not run again"
	case j.Token != lease.Token() && j.State == driver.JobRunning:
		return "it runs again already: " + jobHolder(info)
	case j.State == driver.JobDone && j.Judged:
		return fmt.Sprintf("it was marked done meanwhile, by %s, and does not run again", readable(j.Settled))
	case j.State == driver.JobDone:
		return "it is recorded as done, and does not run again"
	case j.State == driver.JobOpen && j.Judged:
		return fmt.Sprintf("the next delivery runs it again, as %s has decided", readable(j.Settled))
	case j.State == driver.JobSuspended:
		return after(once.Hold)
	}
	return after(s.job.OnLapse)
}

// spoilt says what follows a run whose record was removed or changed by hand.
func (s *session) spoilt() string {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, known, err := s.client.Job(ctx, s.lock.Name(), s.lock.Key())
	if err == nil && !known {
		return "nothing is known of it any more, so the next delivery runs it as if for the first time"
	}
	return "look at it before it is delivered again: holdlock jobs inspect " + s.name()
}

// after says what follows a run that did not say how it ended.
func after(p once.Policy) string {
	if p == once.Hold {
		return "it will not run again until it is settled: holdlock jobs settle"
	}
	return "the next delivery runs it again"
}

func (s *session) name() string { return lockName(s.lock.Name(), s.lock.Key()) }

// answered turns an answer about a job into the end of holdlock. Other errors pass.
func (s *session) answered(err error) error {
	if !errors.Is(err, driver.ErrDone) {
		return err
	}
	if !s.r.Quiet {
		s.g.say("done", "skipped: "+err.Error(), jobFieldsOf(err))
	}
	return nil
}

// observeJob tells what happens to jobs.
func (s *session) observeJob(e holdlock.Event) {
	name := lockName(e.Name, e.Key)
	switch {
	case e.Kind == holdlock.Rerun:
		s.g.say("rerun", fmt.Sprintf("job %s runs again, for the %s time: the run before never said whether it had finished, so its work "+
			"may be done twice", name, ordinal(e.Job.Runs)), nil)
	case e.Kind == holdlock.Suspended && e.Err == nil: // by this run; else it is the answer that ends this command
		s.g.say("suspended", fmt.Sprintf("job %s is suspended, because %s; it will not run again until it is settled: holdlock jobs settle",
			name, e.Job.Why), nil)
	}
}

func ordinal(n int) string {
	suffix := "th"
	if n%100 < 11 || n%100 > 13 {
		switch n % 10 {
		case 1:
			suffix = "st"
		case 2:
			suffix = "nd"
		case 3:
			suffix = "rd"
		}
	}
	return fmt.Sprintf("%d%s", n, suffix)
}
