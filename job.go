package holdlock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/holdlock/holdlock/driver"
)

// What package once is made of: leases that are runs of a job, and their records. Programs call that package.

// JobError says why a job was not run: because of its record. Err is driver.ErrDone, driver.ErrSuspended or
// driver.ErrOtherInput, for errors.Is; package once has them too.
type JobError struct {
	Name, Key string
	Store     string
	Job       driver.Job
	Fresh     bool // this very attempt has found the run before lapsed, and suspended the job
	Err       error
}

// Error names the job, what is known of it, and what to do.
func (e *JobError) Error() string {
	job, at := describe(e.Name, e.Key), e.Job.Changed.Format(time.DateTime)
	var s string
	switch {
	case errors.Is(e.Err, driver.ErrDone) && e.Job.Judged:
		s = fmt.Sprintf("job %s was marked done at %s by %s", job, at, e.Job.Settled)
	case errors.Is(e.Err, driver.ErrDone):
		s = fmt.Sprintf("job %s was done at %s by %s (token %d)", job, at, describeHolder(e.Job.Holder), e.Job.Token)
	case errors.Is(e.Err, driver.ErrSuspended):
		s = fmt.Sprintf("job %s is suspended since %s, because %s; its last run was number %d, by %s (token %d)",
			job, at, e.Job.Why, e.Job.Runs, describeHolder(e.Job.Holder), e.Job.Token)
		if e.Job.Error != "" {
			s += ", its last error: " + e.Job.Error
		}
		s += "; settle it with Client.Settle or holdlock jobs settle"
	default:
		s = fmt.Sprintf("job %s was begun with another input (fingerprint %q): two different jobs must not share a key", job, e.Job.Input)
	}
	return s + "; store " + e.Store
}

// Unwrap returns which of the answers it is.
func (e *JobError) Unwrap() error { return e.Err }

func (l *Lock) jobError(e *driver.JobError) *JobError {
	return &JobError{Name: l.name, Key: l.key, Store: l.c.traits.Location, Job: e.Job, Fresh: e.Fresh, Err: e.Err}
}

// Claim is the start of one run of the job that the lock and its key name: it acquires the lock, in the same step in which
// the store looks at the job's record. wait is as in LockOptions.Wait. The lease ends with Finish, which says how the run
// ended; one that ends in any other way leaves the job unfinished, and claim.OnLapse says what follows. claim.Keep is
// counted from the last moment at which the run can end.
//
// Errors are those of Do before its work, and *JobError. ErrUnsupported: the store keeps no records.
func (l *Lock) Claim(ctx context.Context, claim driver.Claim, wait time.Duration) (*Lease, error) {
	c := l.c
	if err := l.claimable(&claim); err != nil {
		return nil, l.refused(err)
	}
	if err := c.begin(); err != nil { // ended by Finish or Release, so that Shutdown does not close the store before
		return nil, err
	}
	claim.Keep = add(claim.Keep, add(l.opts.MaxHold, max(l.opts.TTL, l.opts.MinHold)))
	lease, err := l.acquireAs(ctx, wait, &claim)
	if err != nil {
		c.end()
		var about *JobError
		if errors.As(err, &about) {
			kind := Duplicate
			if about.Fresh {
				kind = Suspended
			}
			c.emit(Event{Kind: kind, Name: l.name, Key: l.key, Token: about.Job.Token, Job: &about.Job, Err: about})
		}
		return nil, err
	}
	if lease.job == nil { // a wrapper that has dropped the claim on its way
		c.end()
		return nil, errors.Join(fmt.Errorf("job %s: store %s has granted its lock without its record", describe(l.name, l.key),
			c.traits.Location), lease.Release(ctx))
	}
	if lease.job.Before == driver.JobLapsed {
		c.emit(Event{Kind: Rerun, Name: l.name, Key: l.key, Token: lease.token, Job: lease.job})
	}
	return lease, nil
}

// Claimable is Usable for Claim: it says, without asking the store, whether such a claim is allowed at all.
func (l *Lock) Claimable(claim driver.Claim) error {
	if err := l.claimable(&claim); err != nil {
		return err
	}
	return l.c.running()
}

func (l *Lock) claimable(claim *driver.Claim) error {
	if l.keyErr != nil {
		return l.keyErr
	}
	if err := l.notInShadow("a job that runs once has no shadow mode: its record skips the second run",
		"use Do for the experiment"); err != nil {
		return err
	}
	if err := checkClaim(claim); err != nil {
		return err
	}
	if l.c.journal == nil {
		return fmt.Errorf("job %s cannot be run once: store %s keeps no records of jobs: %w; use one that does, such as "+
			"redishold on one server, or sqlitehold (docs/promises.md, column \"records\")", describe(l.name, l.key), l.c.traits.Location, ErrUnsupported)
	}
	if claim.OnLapse == driver.Hold {
		return l.permit(entryHold)
	}
	return l.permit(entryLease)
}

func checkClaim(c *driver.Claim) error {
	switch {
	case badText(c.Input):
		return invalidText("Input", c.Input)
	case c.MaxRuns < 0:
		return &InvalidError{"MaxRuns", fmt.Sprint(c.MaxRuns), "0 for no limit, or a positive number"}
	case c.Keep <= 0:
		return &InvalidError{"Keep", c.Keep.String(), "it must be positive"}
	case c.OnLapse > driver.Hold:
		return &InvalidError{"OnLapse", fmt.Sprint(uint8(c.OnLapse)), "Rerun or Hold"}
	}
	return nil
}

// badText says whether a record cannot keep a text. No store gets one that another could not keep: PostgreSQL takes no NUL.
func badText(s string) bool {
	return len(s) > driver.MaxJobText || !utf8.ValidString(s) || strings.ContainsRune(s, 0)
}

func invalidText(what, s string) error {
	return &InvalidError{what, fmt.Sprintf("%.60q", s), fmt.Sprintf("at most %d bytes of UTF-8 without NUL", driver.MaxJobText)}
}

// add returns a + b, or Forever if that is longer. Neither is negative.
func add(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return Forever
	}
	return a + b
}

// Job returns the record of the job as the lease began, or nil if the lease is not a run of a job.
func (l *Lease) Job() *driver.Job { return l.job }

// Finish gives back a lease that Claim has returned, and records in the same step how the run has ended. Call it when the
// work has stopped, never before. It works after ctx has ended, as Release does, and also after the lease was lost: as long
// as the store has given the key to nobody else and the term stands, what was done is recorded.
//
// nil: recorded. ErrLost: the term had ended, so the record was refused, and the job is unfinished or somebody else's.
// ErrUnknown or ErrUnreachable: the store did not confirm it; it is tried again in the background until the TTL has passed.
// driver.ErrUnclaimed or driver.ErrBadRecord: somebody has removed or spoilt the record while the run was under way. Nothing is
// recorded, and the lock is given back.
func (l *Lease) Finish(ctx context.Context, rec driver.Record) error {
	c, name, key := l.lock.c, l.lock.name, l.lock.key
	if err := checkRecord(&rec); err != nil {
		return err
	}
	if l.job == nil {
		return fmt.Errorf("lock %s: %w", describe(name, key), driver.ErrUnclaimed)
	}
	l.mu.Lock()
	if l.released {
		defer l.mu.Unlock()
		return l.err
	}
	l.released = true
	lost, now := l.err, c.clock.now()
	if lost == nil && l.left(now) <= 0 {
		lost = l.lossOf(now)
	}
	l.mu.Unlock()
	defer c.end() // what Claim began
	why := lost
	if why == nil {
		why = ErrReleased
	}
	first := l.finish(why) // else it was lost before
	if first {
		defer c.end()
	}
	l.outlived(lost, now)

	keepUntil := l.began.mono.Add(l.lock.opts.MinHold)
	_, err := call(context.WithoutCancel(ctx), c, c.timeout, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, c.drv.Release(ctx, &driver.ReleaseRequest{Ref: l.ref, KeepFor: max(0, time.Until(keepUntil)), Record: &rec})
	}, discard)
	e := Event{Name: name, Key: key, Token: l.token, TTL: l.lock.opts.TTL, Held: c.clock.now().sub(l.began)}
	switch {
	case err == nil:
		if first && lost == nil {
			e.Kind = Released
			c.emit(e)
		}
		if rec.State == driver.JobSuspended {
			j := *l.job
			j.State, j.Why, j.Error = rec.State, rec.Why, rec.Error
			c.emit(Event{Kind: Suspended, Name: name, Key: key, Token: l.token, Job: &j})
		}
		return nil
	case errors.Is(err, driver.ErrGone):
		var loss *LostError
		if !errors.As(l.Err(), &loss) { // by our own clocks it was ours to the end
			loss = l.goneError(err)
			e.Kind, e.Reason, e.Err = Lost, loss.Reason, loss
			c.emit(e)
		}
		c.emit(Event{Kind: Unrecorded, Name: name, Key: key, Token: l.token, Job: l.job, Err: loss})
		return loss
	case unrecordable(err): // and that would be the answer again
		gone, _ := l.giveBack(ctx, now)
		if first && lost == nil || gone.Kind == Unreleased {
			c.emit(gone)
		}
		failed := fmt.Errorf("recording in %s how job %s has ended: its record was removed or changed meanwhile: %w", c.traits.Location,
			describe(name, key), err)
		c.emit(Event{Kind: Unrecorded, Name: name, Key: key, Token: l.token, Job: l.job, Err: failed})
		return failed
	default:
		c.undoer.addRecord(l, keepUntil, now, &rec)
		failed := l.lock.storeError("record", err)
		e.Kind, e.Err = Unreleased, failed
		if !first || lost != nil { // its end has been told
			e.Held, e.TTL = 0, 0
		}
		c.emit(e)
		c.emit(Event{Kind: Unrecorded, Name: name, Key: key, Token: l.token, Job: l.job, Err: failed})
		return failed
	}
}

// unrecordable says whether the store has answered that there is no record to be changed, or none that can be read.
func unrecordable(err error) bool {
	return errors.Is(err, driver.ErrUnclaimed) || errors.Is(err, driver.ErrBadRecord)
}

func checkRecord(r *driver.Record) error {
	switch {
	case r.State != driver.JobDone && r.State != driver.JobOpen && r.State != driver.JobSuspended:
		return &InvalidError{"State", fmt.Sprint(r.State), "done, open or suspended"}
	case len(r.Result) > driver.MaxResult:
		return &InvalidError{"Result", fmt.Sprintf("of %d bytes", len(r.Result)), fmt.Sprintf("at most %d bytes are kept", driver.MaxResult)}
	case badText(r.Error):
		return invalidText("Error", r.Error)
	case r.Keep <= 0:
		return &InvalidError{"Keep", r.Keep.String(), "it must be positive"}
	}
	return nil
}
