package holdlock

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// JobInfo describes a job, for operators.
type JobInfo struct {
	Name, Key string
	Store     string
	Job       driver.Job // its Key is that of the store
}

func (c *Client) jobInfo(j *driver.Job) JobInfo {
	name, key := splitStoreKey(j.Key)
	return JobInfo{Name: name, Key: key, Store: c.traits.Location, Job: *j}
}

func (c *Client) noJournal(what string) error {
	return fmt.Errorf("%s: store %s keeps no records of jobs: %w", what, c.traits.Location, ErrUnsupported)
}

// Jobs yields the jobs of which the store has a record, of all locks whose name starts with prefix, in order of name and
// key; with undone only those that are not done. It reads in pages, so it is not a snapshot. Results are left out; see Job.
// The last value carries the error if the store fails. A value in between with an error, which is ErrBadRecord, is a record
// that cannot be read; its Name and Key are set, and others follow.
func (c *Client) Jobs(ctx context.Context, prefix string, undone bool) iter.Seq2[JobInfo, error] {
	return func(yield func(JobInfo, error) bool) {
		if c.journal == nil {
			yield(JobInfo{}, c.noJournal("listing jobs"))
			return
		}
		err := pages(ctx, c, prefix, func(ctx context.Context, after string) ([]driver.Job, error) {
			return c.journal.Jobs(ctx, &driver.JobQuery{Prefix: prefix, After: after, Limit: listPage, Undone: undone})
		}, func(j *driver.Job) string { return j.Key }, func(j *driver.Job) bool {
			if j.Damaged != nil {
				i := c.jobInfo(j)
				return yield(i, fmt.Errorf("job %s in %s: %w", describe(i.Name, i.Key), c.traits.Location, j.Damaged))
			}
			return yield(c.jobInfo(j), nil)
		})
		if err != nil {
			yield(JobInfo{}, fmt.Errorf("listing jobs of %s: %w", c.traits.Location, unread(err)))
		}
	}
}

// Job returns what is known of one job, with its result. key is "" for a lock without keys. ok is false if there is no
// record.
func (c *Client) Job(ctx context.Context, name, key string) (info JobInfo, ok bool, err error) {
	if c.journal == nil {
		return JobInfo{}, false, c.noJournal("inspecting job " + describe(name, key))
	}
	if _, _, err := ParseName(storeKey(name, key)); err != nil {
		return JobInfo{}, false, err
	}
	type found struct {
		job driver.Job
		ok  bool
	}
	f, err := call(ctx, c, c.timeout, func(ctx context.Context) (found, error) {
		j, ok, err := c.journal.Job(ctx, storeKey(name, key))
		return found{j, ok}, err
	}, discard)
	if err != nil {
		return JobInfo{}, false, fmt.Errorf("inspecting job %s in %s: %w", describe(name, key), c.traits.Location, unread(err))
	}
	if !f.ok {
		return JobInfo{}, false, nil
	}
	return c.jobInfo(&f.job), true, nil
}

// SettleOptions say how a job is settled.
type SettleOptions struct {
	// By says who settles it and why. It is kept with the record. Required; at most driver.MaxJobText bytes of UTF-8 without NUL.
	By string
	// Done marks the job done, with Result. Otherwise the job is let run again: the next delivery does.
	Done   bool
	Result []byte
	// Keep is how long the record is kept from now on. Required.
	Keep time.Duration
	// Again overrules a settlement. Without it the decision of another operator about the same run stands.
	Again bool
}

// ErrJobChanged is returned by Settle if the job is not, or no longer, as it was seen, and *HeldError if it is running.
var ErrJobChanged = driver.ErrJobChanged

// Settle decides about a job whose last run has the given token and is not running: one that is suspended, that lapsed or
// failed, or that is done and is to be run again. Read the token from Job or Jobs: it makes sure that the run that was
// looked at is the one that is judged. One that somebody has settled already is not settled again unless told so, also
// if both decide in the same moment: one decision stands, and the other is ErrJobChanged.
func (c *Client) Settle(ctx context.Context, name, key string, token Token, opts SettleOptions) error {
	what := fmt.Sprintf("settling job %s, token %d", describe(name, key), token)
	switch {
	case c.journal == nil:
		return c.noJournal(what)
	case opts.By == "":
		return &InvalidError{"By", `""`, "say who settles the job and why"}
	case badText(opts.By):
		return invalidText("By", opts.By)
	case len(opts.Result) > driver.MaxResult:
		return &InvalidError{"Result", fmt.Sprintf("of %d bytes", len(opts.Result)), fmt.Sprintf("at most %d bytes are kept", driver.MaxResult)}
	case opts.Keep <= 0:
		return &InvalidError{"Keep", opts.Keep.String(), "it must be positive"}
	}
	if _, _, err := ParseName(storeKey(name, key)); err != nil {
		return err
	}
	var seen time.Time // two decisions at the same time must not both stand
	if !opts.Again {
		var err error
		if seen, err = c.unsettled(ctx, name, key, token, what); err != nil {
			return err
		}
	}
	_, err := call(ctx, c, c.timeout, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, c.journal.Settle(ctx, &driver.SettleRequest{
			Key: storeKey(name, key), Token: token, By: opts.By, Done: opts.Done, Result: opts.Result, Keep: opts.Keep, Seen: seen,
		})
	}, discard)
	var held *driver.HeldError
	switch {
	case err == nil:
		c.emit(Event{Kind: Settled, Name: name, Key: key, Token: token})
		return nil
	case errors.As(err, &held):
		l := &Lock{c: c, name: name, key: key}
		return fmt.Errorf("%s: it is running: %w", what, l.heldError(&held.Term, nil))
	case errors.Is(err, driver.ErrJobChanged):
		return fmt.Errorf("%s: %w; look again before you settle it", what, err)
	case errors.Is(err, driver.ErrNotApplied):
		return fmt.Errorf("%s in %s: %w: %w", what, c.traits.Location, ErrUnreachable, err)
	}
	return fmt.Errorf("%s in %s: %w: %w", what, c.traits.Location, ErrUnknown, err)
}

// unsettled says whether a job was settled after its last run, and when its record was changed.
func (c *Client) unsettled(ctx context.Context, name, key string, token Token, what string) (changed time.Time, err error) {
	info, ok, err := c.Job(ctx, name, key)
	j := &info.Job
	if err != nil || !ok || j.Token != token || !j.Judged {
		return j.Changed, err
	}
	decision := "marked done"
	if j.State == driver.JobOpen {
		decision = "let run again"
	}
	return j.Changed, fmt.Errorf("%s: %w: it was %s at %s by %s; set Again to overrule that", what, ErrJobChanged, decision,
		j.Changed.Format(time.DateTime), j.Settled)
}
