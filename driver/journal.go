package driver

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// This file is the contract of jobs that are to be done once. A job is a key; what the store knows of it is its record,
// which stands beside the term of that key, so that both change in one step (R11):
//
//	no record ──Acquire with Once──▶ running ──Release with Record──▶ done, open (failed, runs again) or suspended
//	running ──Release with Undo──▶ as before that Acquire: nothing was run
//	running, and its term ends in any other way ──▶ lapsed: whether it did its work, nobody can know
//	lapsed ──Acquire with Once──▶ running again, or suspended (Claim.OnLapse, Claim.MaxRuns)
//	lapsed, open, suspended, done ──Settle──▶ open or done
//
// A record outlives its term, also a restart of the store as far as Traits.Records promises. Terms without Once neither
// see nor change it.

// MaxResult is the size of the largest result that is kept with a record, in bytes.
const MaxResult = 64 << 10

// MaxJobText is the size of the longest text in a Claim, Record or SettleRequest, in bytes of UTF-8. The caller guarantees that, and
// that there is no NUL in a text.
const MaxJobText = 1024

// A Policy says what follows a run whose end is in doubt.
type Policy uint8

// The policies.
const (
	Rerun Policy = iota // the next Acquire runs the job again: at least once
	Hold                // the job is suspended until an operator settles it: at most once
)

// String returns the policy in lower case.
func (p Policy) String() string {
	if p == Hold {
		return "hold"
	}
	return "rerun"
}

// A Claim makes an Acquire the start of one run of the job that its key names. A Claim in AcquireRequest.Once is answered
// so, by the first line that applies, in the one step that Acquire is:
//
//   - Ref is the current term: what Acquire says of that. It is the same run; nothing is counted. If the term of Ref has run
//     out meanwhile, that claim is withdrawn as by Undo, and the rest applies: nothing was run under an answer not heard.
//   - The record cannot be read: an error that wraps ErrBadRecord and ErrNotApplied.
//   - Its Input is another one: *JobError with ErrOtherInput.
//   - It is done or suspended: *JobError with ErrDone or ErrSuspended, also while the key is taken.
//   - The key is taken: *HeldError.
//   - The run before has lapsed and its policy or that of this Claim is Hold (ByLapse), or MaxRuns runs were started
//     (ByNumber): the record becomes suspended, no term starts, and the answer is *JobError with ErrSuspended and Fresh.
//   - Otherwise a term starts, and the record says that the job is running under it. Runs goes up by one. Grant.Job is the
//     record as it is now.
//
// Record and term are judged by one reading of the clock. With two, a term that ends in between is taken for one that
// stands when the record is judged and for one that has ended when the key is, and a job to be held runs again.
//
// If the run before has lapsed, Lapses goes up by one in either case.
//
// The caller guarantees that Input has at most MaxJobText bytes, that MaxRuns is not negative, and that Keep is longer
// than a term can be renewed.
type Claim struct {
	// Input is a fingerprint of what the job works on, so that one key used for two things is noticed. It is compared if
	// neither side is empty, and stays with the record once it is not.
	Input   string
	OnLapse Policy // what follows if this run, or the one before, lapses
	MaxRuns int    // 0, or how many runs may be started before the job is suspended
	// Keep is how long an unfinished run is remembered, counted from its start. With Hold it is remembered until settled.
	Keep time.Duration
}

// A Record ends a run: in ReleaseRequest.Record it says how, and is written in the same step in which the term ends, with
// KeepFor if there is one. It is refused like any Release if Ref is not the current, unexpired term (ErrGone), and with
// ErrUnclaimed, changing nothing, if that term has no Claim. It may be sent again: if the record says already that this
// very run ended in State, the answer is nil and nothing changes, so that a lost reply is not taken for a loss.
//
// A Waiter then wakes all who watch the key if the job is done or suspended: they get one answer and contend for nothing.
//
// The caller guarantees that State is JobDone, JobOpen or JobSuspended, that Result has at most MaxResult bytes, and that
// texts have at most MaxJobText.
type Record struct {
	State    JobState
	Why      Cause // of JobSuspended
	Result   []byte
	NoResult bool          // there was a result, too large to be kept
	Error    string        // of a run that failed; for people
	Keep     time.Duration // how long it is kept, counted from now by the store's clock; a suspended job is kept until settled
}

// JobState is what is known of a job.
type JobState uint8

// The states. JobLapsed is told, never written: it is a running job whose term has ended.
const (
	JobOpen      JobState = iota + 1 // will run when it is next asked for: its last run failed, or an operator said so
	JobRunning                       // the term of its last run stands
	JobLapsed                        // the term of its last run has ended without a Record
	JobSuspended                     // will not run until settled
	JobDone
)

// String returns the state in lower case.
func (s JobState) String() string {
	switch s {
	case JobOpen:
		return "open"
	case JobRunning:
		return "running"
	case JobLapsed:
		return "lapsed"
	case JobSuspended:
		return "suspended"
	case JobDone:
		return "done"
	default:
		return fmt.Sprintf("state %d", uint8(s))
	}
}

// Cause is why a job was suspended.
type Cause uint8

// The causes.
const (
	NoCause  Cause = iota
	ByLapse        // a run lapsed, and the policy is Hold
	ByError        // a run failed, and the caller holds such jobs
	ByNumber       // MaxRuns was reached
)

// String says the cause in words, to follow "suspended because ".
func (c Cause) String() string {
	switch c {
	case ByLapse:
		return "a run never said whether it had finished"
	case ByError:
		return "a run failed"
	case ByNumber:
		return "it was run as often as allowed"
	default:
		return "of no known cause"
	}
}

// Job is the record of a job as the store shows it.
type Job struct {
	Key      string
	Damaged  error // of Jobs: an ErrBadRecord; nothing but Key is known then
	State    JobState
	Why      Cause    // of JobSuspended
	Input    string   // fingerprint; "" if none was given
	Runs     int      // started since the record began or an operator let the job run again; what was undone does not count
	Lapses   int      // of these, how many lapsed, as far as it was noticed by an Acquire
	Before   JobState // what the last run followed: JobLapsed, JobOpen, or 0 if it was the first
	Token    Token    // of the term of the last run: names this state for Settle
	Holder   Holder   // of the last run
	Changed  time.Time
	Result   []byte // of a done job; nil in lists
	NoResult bool   // there was a result, too large to be kept
	Error    string // how the last run that said so failed
	Settled  string // who settled the job last, and why; "" if nobody has
	// Judged: State is what Settled has decided about the last run. It is not once a run has begun since, unless that was undone.
	Judged bool
}

// JobError is the answer to an Acquire with Once that is not granted because of the record. Err is ErrDone, ErrSuspended
// or ErrOtherInput.
type JobError struct {
	Job   Job
	Fresh bool // this very request has suspended the job
	Err   error
}

// Error names the job.
func (e *JobError) Error() string { return fmt.Sprintf("job %q: %v", e.Job.Key, e.Err) }

// Unwrap returns the answer.
func (e *JobError) Unwrap() error { return e.Err }

// The answers about jobs.
var (
	ErrDone       = errors.New("job is done")
	ErrSuspended  = errors.New("job is suspended until an operator settles it")
	ErrOtherInput = errors.New("job was begun with another input under the same key")
	// ErrUnclaimed: a Record came for a term that was acquired without Once.
	ErrUnclaimed = errors.New("the term has no claim on a job")
	// ErrBadRecord: the record of the job is damaged, or was written by a release that lays it out differently. It is
	// never taken for no record.
	ErrBadRecord = errors.New("the record of the job cannot be read")
	// ErrJobChanged: there is no such job, or it is not as the caller saw it.
	ErrJobChanged = errors.New("the job is not, or no longer, as it was seen")
)

// A Journal keeps the records of jobs. It has tokens, since these name runs. A driver that is one answers AcquireRequest.Once and ReleaseRequest.Record as said
// there; the caller sends these to no other driver. Records whose Keep is over are as if they had never been.
type Journal interface {
	// Job returns the record of one job. ok is false if there is none.
	Job(ctx context.Context, key string) (job Job, ok bool, err error)
	// Jobs returns at most q.Limit records in ascending byte order of key. One that cannot be read is shown as Damaged: it hides
	// none of the others, and is never a gap.
	Jobs(ctx context.Context, q *JobQuery) ([]Job, error)
	// Settle is an operator's decision about a job that is not running. The error wraps ErrJobChanged, and nothing
	// changes, if there is no record or its Token is another one, and is a *HeldError if the job is running.
	Settle(ctx context.Context, req *SettleRequest) error
}

// JobQuery is the input of Journal.Jobs.
type JobQuery struct {
	Prefix string // of the keys
	After  string // start behind this key
	Limit  int
	Undone bool // only jobs that are not done; cheap, however many are
}

// SettleRequest is the input of Journal.Settle.
type SettleRequest struct {
	Key   string
	Token Token  // as the job was shown: it names the run that is judged
	By    string // who and why; kept with the record
	// Done marks the job done with Result. Otherwise it becomes open with no runs counted, and runs when it is next asked
	// for.
	Done   bool
	Result []byte
	Keep   time.Duration // how long the record is kept from now on
	// Seen, if it is not zero, is Job.Changed as it was shown, to the microsecond. If the record has changed since, that is
	// ErrJobChanged: so of two decisions at the same time one stands and the other is told.
	Seen time.Time
}
