package memhold

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// A job is the record of a job. It stands in the slot of its key, so that it changes together with the term.
type job struct {
	driver.Job           // but Key, and JobLapsed is never written here
	nonce      string    // of the term of the last run; empty once that has no more say
	hold       bool      // the last run asked for driver.Hold
	expires    time.Time // the record is as if it had never been from then on; zero: kept until settled
}

// known returns the record, or nil if there is none any more.
func (s *slot) known(now time.Time) *job {
	if s.job == nil || !s.job.expires.IsZero() && !now.Before(s.job.expires) {
		return nil
	}
	return s.job
}

// running says whether the term of the job's last run stands.
func (s *slot) running(now time.Time) bool {
	return s.job.State == driver.JobRunning && s.taken(now) && s.term != nil && s.term.nonce == s.job.nonce
}

// showJob describes the record as it is.
func (s *slot) showJob(key string, now time.Time) *driver.Job {
	shown := s.job.Job
	shown.Key = key
	shown.Result = slices.Clone(shown.Result)
	// A settlement leaves no run that has a say, and counts none; nor does one that was undone.
	shown.Judged = s.job.Settled != "" && s.job.nonce == "" && (shown.State == driver.JobDone || shown.State == driver.JobOpen && shown.Runs == 0)
	if shown.State == driver.JobRunning && !s.running(now) {
		shown.State = driver.JobLapsed
	}
	return &shown
}

// The steps below are the semantics of jobs. Each runs under Store.mu, at the moment now.

// inTheWay answers a Claim if it is the record that does. A run before that has lapsed can suspend the job here.
func (s *slot) inTheWay(now time.Time, req *driver.AcquireRequest) error {
	if s.taken(now) && s.belongsTo(req.Ref) {
		return nil
	}
	if !s.taken(now) {
		s.withdraw(req.Ref) // its answer was not heard before its term ran out
	}
	j := s.known(now)
	if j == nil {
		return nil
	}
	answer := func(err error, fresh bool) error {
		return &driver.JobError{Job: *s.showJob(req.Ref.Key, now), Fresh: fresh, Err: err}
	}
	c := req.Once
	switch {
	case c.Input != "" && j.Input != "" && c.Input != j.Input:
		return answer(driver.ErrOtherInput, false)
	case j.State == driver.JobDone:
		return answer(driver.ErrDone, false)
	case j.State == driver.JobSuspended:
		return answer(driver.ErrSuspended, false)
	case s.taken(now):
		return nil // the term answers
	}
	why := driver.NoCause
	if c.MaxRuns > 0 && j.Runs >= c.MaxRuns {
		why = driver.ByNumber
	}
	if j.State == driver.JobRunning && (j.hold || c.OnLapse == driver.Hold) {
		why = driver.ByLapse
	}
	if why == driver.NoCause {
		return nil
	}
	if j.State == driver.JobRunning {
		j.Lapses++
	}
	j.State, j.Why, j.Changed, j.nonce, j.expires = driver.JobSuspended, why, now, "", time.Time{}
	return answer(driver.ErrSuspended, true)
}

// claim begins a run under the term that has just started.
func (s *slot) claim(now time.Time, req *driver.AcquireRequest) {
	c, j := req.Once, s.known(now)
	switch {
	case j == nil:
		j = &job{}
	case j.State == driver.JobRunning:
		j.Before = driver.JobLapsed
		j.Lapses++
	default:
		j.Before = driver.JobOpen
	}
	s.job = j
	j.State, j.Input, j.Runs = driver.JobRunning, cmp.Or(j.Input, c.Input), j.Runs+1
	j.Token, j.Holder, j.Changed = s.token, req.Holder, now
	j.nonce, j.hold, j.expires = req.Ref.Nonce, c.OnLapse == driver.Hold, time.Time{}
	if !j.hold {
		j.expires = keptFor(now, c.Keep)
	}
}

// withdraw undoes the claim of a term under which nothing was run, also if that term has run out.
func (s *slot) withdraw(ref driver.Ref) {
	if s == nil || s.job == nil || s.job.nonce != ref.Nonce || s.job.State != driver.JobRunning {
		return
	}
	j := s.job
	j.Runs--
	j.nonce = ""
	switch j.Before {
	case driver.JobOpen:
		j.State = driver.JobOpen
	case driver.JobLapsed: // still; and only a run that did not hold is followed by another one
		j.Lapses--
		j.hold = false
	default:
		s.job = nil
	}
}

// errRecorded: there is nothing to be done any more.
var errRecorded = errors.New("recorded before")

// record ends a run. gone is why the term is not the current one, or nil if it is.
func (s *slot) record(now time.Time, req *driver.ReleaseRequest, gone error) error {
	var j *job
	if s != nil && s.job != nil && s.job.nonce == req.Ref.Nonce {
		j = s.job
	}
	rec := req.Record
	switch {
	case gone != nil && j != nil && j.State == rec.State:
		return errRecorded
	case gone != nil:
		return gone
	case j == nil || j.State != driver.JobRunning:
		return driver.ErrUnclaimed
	}
	j.State, j.Why, j.Changed = rec.State, rec.Why, now
	j.Result, j.NoResult, j.Error = slices.Clone(rec.Result), rec.NoResult, rec.Error
	j.expires = time.Time{}
	if rec.State != driver.JobSuspended {
		j.expires = keptFor(now, rec.Keep)
	}
	return nil
}

func (s *slot) settle(now time.Time, req *driver.SettleRequest) error {
	var j *job
	if s != nil {
		j = s.known(now)
	}
	switch {
	case j == nil:
		return fmt.Errorf("memhold: settle %q: %w: there is no record", req.Key, driver.ErrJobChanged)
	case j.Token != req.Token:
		return fmt.Errorf("memhold: settle %q: %w: its token is %d", req.Key, driver.ErrJobChanged, j.Token)
	case !req.Seen.IsZero() && j.Changed.UnixMicro() != req.Seen.UnixMicro():
		return fmt.Errorf("memhold: settle %q: %w: it has changed since", req.Key, driver.ErrJobChanged)
	case s.running(now):
		return &driver.HeldError{Term: s.describe(req.Key, now)}
	}
	j.State, j.Why, j.Changed, j.Settled, j.nonce = driver.JobOpen, driver.NoCause, now, req.By, ""
	j.Result, j.NoResult, j.expires = nil, false, keptFor(now, req.Keep)
	if req.Done {
		j.State, j.Result = driver.JobDone, slices.Clone(req.Result)
	} else {
		j.Runs, j.Lapses = 0, 0
	}
	return nil
}

// keptFor returns the moment at which a record is forgotten.
func keptFor(now time.Time, keep time.Duration) time.Time {
	at := now.Add(keep)
	if at.Before(now) { // too far away to be told
		return time.Time{}
	}
	return at
}

// Job implements driver.Journal.
func (d *Driver) Job(ctx context.Context, key string) (driver.Job, bool, error) {
	if err := d.usable(ctx, "job", key); err != nil {
		return driver.Job{}, false, err
	}
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	now, at := time.Now(), d.store.slots[key]
	if at == nil || at.known(now) == nil {
		return driver.Job{}, false, nil
	}
	return *at.showJob(key, now), true, nil
}

// Jobs implements driver.Journal. It reads all keys for each page.
func (d *Driver) Jobs(ctx context.Context, q *driver.JobQuery) ([]driver.Job, error) {
	if err := d.usable(ctx, "jobs", q.Prefix); err != nil {
		return nil, err
	}
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	var found []driver.Job
	now := time.Now()
	for key, at := range d.store.slots {
		if key > q.After && strings.HasPrefix(key, q.Prefix) && at.known(now) != nil && !(q.Undone && at.job.State == driver.JobDone) {
			shown := at.showJob(key, now)
			shown.Result = nil
			found = append(found, *shown)
		}
	}
	slices.SortFunc(found, func(a, b driver.Job) int { return cmp.Compare(a.Key, b.Key) })
	return found[:min(q.Limit, len(found))], nil
}

// Settle implements driver.Journal.
func (d *Driver) Settle(ctx context.Context, req *driver.SettleRequest) error {
	if err := d.usable(ctx, "settle", req.Key); err != nil {
		return err
	}
	d.store.mu.Lock()
	defer d.store.mu.Unlock()
	return d.store.slots[req.Key].settle(time.Now(), req)
}
