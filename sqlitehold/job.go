package sqlitehold

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// A jobRow is the record of a job.
type jobRow struct {
	layout, state, why int
	nonce              string
	hold               bool
	before             int
	input              string
	runs, lapses       int
	token              int64
	holder             string
	changed, expires   int64
	noResult           bool
	error, settled     string
	result             []byte

	who   driver.Holder // holder, once it was checked
	flags [2]int        // hold and noResult as they were read, for check: a row may hold any number
}

// dest and args are jobColumns, but the result in dest.
func (j *jobRow) dest() []any {
	return []any{
		&j.layout, &j.state, &j.why, &j.nonce, &j.flags[0], &j.before, &j.input, &j.runs, &j.lapses, &j.token, &j.holder, &j.changed,
		&j.expires, &j.flags[1], &j.error, &j.settled,
	}
}

func (j *jobRow) args(namespace, key string) []any {
	return []any{
		namespace, key, j.layout, j.state, j.why, j.nonce, number(j.hold), j.before, j.input, j.runs, j.lapses, j.token, j.holder,
		j.changed, j.expires, number(j.noResult), j.error, j.settled, j.result,
	}
}

func number(b bool) int {
	if b {
		return 1
	}
	return 0
}

// job reads the record of a key. known is false if there is none, or none any more. One that cannot be read is an error.
func (w *writer) job(namespace, key string, m moment) (j jobRow, known bool, err error) {
	known, err = w.row(jobStatement, []any{namespace, key}, append(j.dest(), &j.result)...)
	if err != nil || !known {
		return jobRow{}, false, err
	}
	if err := j.check(key); err != nil {
		return jobRow{}, false, err
	}
	// The one that is running is needed by its own run at the least, whose term stands; then Keep was too short.
	if j.expires <= m.micro() && j.state != jobRunning {
		return jobRow{}, false, nil
	}
	return j, true, nil
}

// check completes a row that was read, or says why it must not be acted upon.
func (j *jobRow) check(key string) error {
	switch {
	case j.layout > jobLayout:
		return &refusal{"job", key, fmt.Errorf("%w: %w: it has layout %d, and this release knows %d; upgrade this program (%w)",
			driver.ErrBadRecord, driver.ErrNewer, j.layout, jobLayout, driver.ErrNotApplied)}
	case j.layout < jobLayout:
		return damagedJob(key, fmt.Sprintf("there is no layout %d", j.layout))
	case j.state != jobOpen && j.state != jobRunning && j.state != jobSuspended && j.state != jobDone:
		return damagedJob(key, fmt.Sprintf("there is no state %d", j.state))
	case j.why < 0 || j.why > int(driver.ByNumber) || j.before < beforeNothing || j.before > beforeLapsed,
		j.flags[0]&^1 != 0, j.flags[1]&^1 != 0, j.runs < 0, j.lapses < 0, j.token < 0, len(j.result) > driver.MaxResult, json.Unmarshal([]byte(j.holder), &j.who) != nil:
		return damagedJob(key, "what it says cannot be")
	}
	j.hold, j.noResult = j.flags[0] == 1, j.flags[1] == 1
	return nil
}

// damagedJob is the error about a record that no release has written so.
func damagedJob(key, what string) error {
	return &refusal{"job", key, fmt.Errorf("%w: it is damaged: %s; remove the row from table job once you know whether the job was done (%w)",
		driver.ErrBadRecord, what, driver.ErrNotApplied)}
}

// forgotten says whether a running record without a term is past its time.
func (j *jobRow) forgotten(m moment) bool { return j.expires <= m.micro() }

// befores are the values of job.before in the contract's words.
var befores = [...]driver.JobState{beforeNothing: 0, beforeOpen: driver.JobOpen, beforeLapsed: driver.JobLapsed}

// show describes the record; stands says whether the term of its last run does.
func (j *jobRow) show(key string, stands bool) driver.Job {
	shown := driver.Job{
		Key: key, State: driver.JobState(j.state), Why: driver.Cause(j.why), Input: j.input, Runs: j.runs, Lapses: j.lapses,
		Before: befores[j.before], Token: driver.Token(j.token), Changed: time.UnixMicro(j.changed), Result: j.result, NoResult: j.noResult, Error: j.error,
		Settled: j.settled, Holder: j.who,
	}
	// A settlement leaves no run that has a say, and counts none; nor does one that was undone.
	shown.Judged = j.settled != "" && j.nonce == "" && (j.state == jobDone || j.state == jobOpen && j.runs == 0)
	if j.state == jobRunning && !stands {
		shown.State = driver.JobLapsed
	}
	return shown
}

// keptFor returns the moment d from now in µs since 1970, or as far as it goes.
func (m moment) keptFor(d time.Duration) int64 {
	if at := m.micro() + d.Microseconds(); at > m.micro() {
		return at
	}
	return math.MaxInt64
}

// judge answers a Claim by the record, if it is that which answers; nil: let the term decide. taken says whether the key
// is taken, and stands, whether by the last run. If the answer is Fresh the record has changed and is to be written.
func (j *jobRow) judge(req *driver.AcquireRequest, m moment, taken, stands bool) *driver.JobError {
	c, key := req.Once, req.Ref.Key
	switch {
	case c.Input != "" && j.input != "" && c.Input != j.input:
		return &driver.JobError{Job: j.show(key, stands), Err: driver.ErrOtherInput}
	case j.state == jobDone:
		return &driver.JobError{Job: j.show(key, false), Err: driver.ErrDone}
	case j.state == jobSuspended:
		return &driver.JobError{Job: j.show(key, false), Err: driver.ErrSuspended}
	case taken:
		return nil
	}
	lapsed, why := j.state == jobRunning, driver.NoCause
	if c.MaxRuns > 0 && j.runs >= c.MaxRuns {
		why = driver.ByNumber
	}
	if lapsed && (j.hold || c.OnLapse == driver.Hold) {
		why = driver.ByLapse
	}
	if why == driver.NoCause {
		return nil
	}
	if lapsed {
		j.lapses++
	}
	j.state, j.why, j.nonce, j.changed, j.expires = jobSuspended, int(why), "", m.micro(), math.MaxInt64
	return &driver.JobError{Job: j.show(key, false), Fresh: true, Err: driver.ErrSuspended}
}

// claim makes the record that of a run that begins with token; known says whether there was one.
func (j *jobRow) claim(req *driver.AcquireRequest, m moment, known bool, token driver.Token, holder string) {
	switch {
	case !known:
		*j = jobRow{layout: jobLayout, before: beforeNothing}
	case j.state == jobRunning:
		j.before = beforeLapsed
		j.lapses++
	default:
		j.before = beforeOpen
	}
	j.state, j.why, j.nonce, j.hold = jobRunning, 0, req.Ref.Nonce, req.Once.OnLapse == driver.Hold
	j.input, j.runs, j.token, j.changed = cmp.Or(j.input, req.Once.Input), j.runs+1, int64(token), m.micro()
	j.holder, j.who = holder, req.Holder
	j.expires = m.keptFor(req.Once.Keep)
	if j.hold {
		j.expires = math.MaxInt64
	}
}

// withdraw undoes the last claim, under which nothing was run. It reports false if the record is to be removed.
func (j *jobRow) withdraw() bool {
	j.runs--
	j.nonce = ""
	switch j.before {
	case beforeOpen:
		j.state = jobOpen
	case beforeLapsed: // still; and only a run that did not hold is followed by another one
		j.lapses--
		j.hold = false
	default:
		return false
	}
	return true
}

// end ends the run as rec says.
func (j *jobRow) end(rec *driver.Record, m moment) {
	j.state, j.why, j.changed, j.expires = int(rec.State), int(rec.Why), m.micro(), m.keptFor(rec.Keep)
	j.result, j.noResult, j.error = rec.Result, rec.NoResult, rec.Error
	if rec.State == driver.JobSuspended {
		j.expires = math.MaxInt64
	}
}

// settle is an operator's decision.
func (j *jobRow) settle(req *driver.SettleRequest, m moment) {
	j.state, j.why, j.nonce, j.changed, j.settled = jobOpen, 0, "", m.micro(), req.By
	j.result, j.noResult, j.expires = nil, false, m.keptFor(req.Keep)
	if req.Done {
		j.state, j.result = jobDone, req.Result
	} else {
		j.runs, j.lapses = 0, 0
	}
}
