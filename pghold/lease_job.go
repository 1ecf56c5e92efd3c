package pghold

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdlock/holdlock/driver"
)

// The records of jobs: sql/2.sql has the steps, and what is written where.

// The columns of a record that are shown, and what is wrong with it. Nothing is decided by when it was changed, so a time that somebody has set to
// infinity by hand does no harm: it is shown as 0, and not compared by a settlement.
const jobColumns = `j.state, j.why, j.input, j.runs, j.lapses, j.before, j.token, j.holder::text,
	CASE WHEN pg_catalog.isfinite(j.changed) THEN "holdlock".us(j.changed) ELSE 0 END, j.no_result, j.error, j.settled, j.nonce = ''`

const jobFault = `"holdlock".job_fault(j.layout, j.state, j.why, j.before, j.runs, j.lapses, j.token, j.holder, pg_catalog.octet_length(j.result))`

// A claim. What it answers by is the record as the step has left it; there may be none.
const claimStatement = `
SELECT c.answer, c.detail, (c.j).key IS NOT NULL, coalesce((c.j).state, 0), coalesce((c.j).why, 0), coalesce((c.j).input, ''),
	coalesce((c.j).runs, 0), coalesce((c.j).lapses, 0), coalesce((c.j).before, 0), coalesce((c.j).token, 0),
	coalesce((c.j).holder::text, '{}'), CASE WHEN pg_catalog.isfinite((c.j).changed) THEN "holdlock".us((c.j).changed) ELSE 0 END, coalesce((c.j).no_result, false),
	coalesce((c.j).error, ''), coalesce((c.j).settled, ''), coalesce((c.j).nonce, '') = '', (c.j).result
FROM "holdlock".claim($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) c`

// Whether the term of the last run stands, and the record is to be shown. One statement sees one state of both tables.
const (
	jobStands = `(j.state = 2 AND l.nonce = j.nonce AND l.state = 1 AND l.expiry > pg_catalog.statement_timestamp())`
	jobLease  = ` LEFT JOIN "holdlock".lease l ON l.namespace = j.namespace AND l.key = j.key`
)

const jobStatement = `
SELECT coalesce(` + jobStands + `, false), j.expires > pg_catalog.statement_timestamp(), coalesce(` + jobFault + `, ''), ` + jobColumns + `, j.result
FROM "holdlock".job j` + jobLease + `
WHERE j.namespace = $1 AND j.key = $2`

// jobsStatement is a page of jobs without their results. It looks at a bounded number of rows, however few of them are still kept,
// and returns those and the last one it has looked at, from which the next page goes on. $1 namespace, $2 prefix,
// $3 key after which to start, $4 rows.
func jobsStatement(which string) string {
	return `
WITH page AS MATERIALIZED (
	SELECT j.namespace, j.key, j.nonce, j.expires, coalesce(` + jobFault + `, '') AS fault, j.state, j.why, j.input, j.runs, j.lapses,
		j.before, j.token, j.holder, j.changed, j.no_result, j.error, j.settled
	FROM "holdlock".job j WHERE j.namespace = $1 AND j.key >= $2 AND j.key > $3` + which + ` ORDER BY j.key LIMIT $4)
SELECT j.key, (SELECT pg_catalog.count(*) FROM page), coalesce(` + jobStands + `, false),
	j.expires > pg_catalog.statement_timestamp(), j.fault, ` + jobColumns + `
FROM page j` + jobLease + `
WHERE j.expires > pg_catalog.statement_timestamp() OR j.fault <> '' OR coalesce(` + jobStands + `, false) OR j.key = (SELECT pg_catalog.max(q.key) FROM page q)
ORDER BY j.key`
}

// A jobRow is a record as it is read.
type jobRow struct {
	stands, kept                     bool   // its last run has its term; its time is not over
	fault                            string // why it must not be acted upon
	state, why, before, runs, lapses int64
	token, changed                   int64
	input, holder, error, settled    string
	noResult                         bool
	noRun                            bool // no run has a say
	result                           []byte
}

// dest is jobColumns.
func (j *jobRow) dest() []any {
	return []any{
		&j.state, &j.why, &j.input, &j.runs, &j.lapses, &j.before, &j.token, &j.holder, &j.changed, &j.noResult, &j.error, &j.settled, &j.noRun,
	}
}

// befores are the values of job.before in the contract's words.
var befores = [...]driver.JobState{0: 0, 1: driver.JobOpen, 2: driver.JobLapsed}

// show describes the record.
func (j *jobRow) show(key string) driver.Job {
	shown := driver.Job{
		Key: key, State: driver.JobState(j.state), Why: driver.Cause(j.why), Input: j.input, Runs: int(j.runs), Lapses: int(j.lapses),
		Before: befores[j.before], Token: driver.Token(j.token), Changed: time.UnixMicro(j.changed), Result: j.result,
		NoResult: j.noResult, Error: j.error, Settled: j.settled,
	}
	// A settlement leaves no run that has a say, and counts none; nor does one that was undone.
	shown.Judged = j.settled != "" && j.noRun && (shown.State == driver.JobDone || shown.State == driver.JobOpen && j.runs == 0)
	if shown.State == driver.JobRunning && !j.stands {
		shown.State = driver.JobLapsed
	}
	_ = json.Unmarshal([]byte(j.holder), &shown.Holder) // it is for people only
	return shown
}

// badRecord is the error about a record that must not be acted upon.
func badRecord(verb, key, fault string) error {
	kind := driver.ErrBadRecord
	var layout int
	if _, err := fmt.Sscanf(fault, "it has layout %d", &layout); err == nil && layout > 1 { // so says job_fault
		kind = fmt.Errorf("%w: %w", kind, driver.ErrNewer)
	}
	return fmt.Errorf("pghold: %s %q: %w: %s (%w)", verb, key, kind, fault, driver.ErrNotApplied)
}

// claim is Acquire with Once. args are those of acquire.
func (d *LeaseDriver) claim(ctx context.Context, key string, args []any, c *driver.Claim) (answer, rest string, j *jobRow, err error) {
	args = append(args, c.Input, c.OnLapse == driver.Hold, int64(c.MaxRuns), micros(c.Keep))
	err = d.step(ctx, "acquire", key, d.sql.claim, args, func(rows pgx.Rows) error {
		row := &jobRow{stands: true}
		var known bool
		var detail *string
		if err := rows.Scan(append(append([]any{&answer, &detail, &known}, row.dest()...), &row.result)...); err != nil {
			return err
		}
		if rest = ""; detail != nil {
			rest = *detail
		}
		if j = nil; known {
			j = row
		}
		return nil
	})
	return answer, rest, j, err
}

// claimAnswer is the error of a claim that the record answers, or nil if it is another answer.
func claimAnswer(key, answer, rest string, j *jobRow) error {
	refused := func(err error) error {
		if j == nil {
			return leaseFailure("acquire", key, fmt.Errorf("the server answered %q without a record", answer))
		}
		return &driver.JobError{Job: j.show(key), Fresh: answer == "stopped", Err: err}
	}
	switch answer {
	case "done":
		return refused(driver.ErrDone)
	case "suspended", "stopped":
		return refused(driver.ErrSuspended)
	case "other":
		return refused(driver.ErrOtherInput)
	case "bad":
		return badRecord("acquire", key, rest)
	case "unclaimed":
		return fmt.Errorf("pghold: acquire %q: %w (%w)", key, driver.ErrUnclaimed, driver.ErrNotApplied)
	}
	return nil
}

// finish is Release with Record. args are the first ones.
func (d *LeaseDriver) finish(ctx context.Context, key string, args []any, rec *driver.Record) (answer, rest string, err error) {
	return d.word(ctx, "release", key, d.sql.finish,
		append(args, int64(rec.State), int64(rec.Why), rec.Result, rec.NoResult, rec.Error, micros(rec.Keep))...)
}

// seen is a moment as records have it, or 0.
func seen(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMicro()
}

// Settle implements driver.Journal.
func (d *LeaseDriver) Settle(ctx context.Context, req *driver.SettleRequest) error {
	const verb = "settle"
	answer, rest, err := d.word(ctx, verb, req.Key, d.sql.settle,
		d.namespace, req.Key, int64(min(req.Token, driver.MaxToken)), req.By, req.Done, req.Result, micros(req.Keep), seen(req.Seen))
	if err != nil {
		return err
	}
	switch answer {
	case "settled":
		return nil
	case "changed":
		return fmt.Errorf("pghold: %s %q: %w: %s", verb, req.Key, driver.ErrJobChanged, rest)
	case "bad":
		return badRecord(verb, req.Key, rest)
	case "held":
		t, err := parseTerm(req.Key, rest)
		if err != nil {
			return leaseFailure(verb, req.Key, err)
		}
		return &driver.HeldError{Term: t}
	}
	return leaseFailure(verb, req.Key, fmt.Errorf("the server answered %q", answer))
}

// Job implements driver.Journal.
func (d *LeaseDriver) Job(ctx context.Context, key string) (job driver.Job, ok bool, err error) {
	const verb = "job"
	var j jobRow
	err = d.step(ctx, verb, key, d.sql.job, []any{d.namespace, key}, func(rows pgx.Rows) error {
		j, ok = jobRow{}, true
		return rows.Scan(append(append([]any{&j.stands, &j.kept, &j.fault}, j.dest()...), &j.result)...)
	})
	switch {
	case err != nil:
		return driver.Job{}, false, err
	case ok && j.fault != "":
		return driver.Job{}, false, badRecord(verb, key, j.fault)
	case !ok || !j.kept && !j.stands:
		return driver.Job{}, false, nil
	}
	return j.show(key), true, nil
}

// Jobs implements driver.Journal.
func (d *LeaseDriver) Jobs(ctx context.Context, q *driver.JobQuery) ([]driver.Job, error) {
	const verb = "jobs"
	statement := d.sql.jobs
	if q.Undone {
		statement = d.sql.undoneJobs
	}
	var found []driver.Job
	after := q.After
	for more := true; more && len(found) < q.Limit; {
		more = false
		err := d.step(ctx, verb, q.Prefix, statement, []any{d.namespace, q.Prefix, after, min(listStep, q.Limit+jobsSlack)}, func(rows pgx.Rows) error {
			var key string
			var j jobRow
			var seen int
			if err := rows.Scan(append([]any{&key, &seen, &j.stands, &j.kept, &j.fault}, j.dest()...)...); err != nil {
				return err
			}
			within := len(key) >= len(q.Prefix) && key[:len(q.Prefix)] == q.Prefix
			after, more = key, within && seen == min(listStep, q.Limit+jobsSlack)
			if !within || len(found) == q.Limit || !j.kept && !j.stands && j.fault == "" {
				return nil
			}
			if j.fault != "" { // it does not hide the others
				found = append(found, driver.Job{Key: key, Damaged: badRecord(verb, key, j.fault)})
				return nil
			}
			found = append(found, j.show(key))
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// jobsSlack is how many rows a page looks at beyond those that it is to show: records that are not kept any more stand among them.
const jobsSlack = 100
