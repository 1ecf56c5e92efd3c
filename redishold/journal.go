package redishold

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// The records of jobs (driver.Journal). claim.lua is Acquire with a look at the record before it, finish.lua is Release with
// the record written before it, each one script over keys of one node. With PlainKeys there are no records: other programs
// take part in those locks, and know nothing of jobs.

// errPlain refuses what needs records.
var errPlain = fmt.Errorf("plain keys have no records of jobs, because the other programs that use them keep none: "+
	"open the store without PlainKeys (%w, %w)", errors.ErrUnsupported, driver.ErrNotApplied)

// claim is Acquire with Once. args are those of an acquire.
func (d *Driver) claim(ctx context.Context, verb string, req *driver.AcquireRequest, args []any) (driver.Grant, error) {
	key, c := req.Ref.Key, req.Once
	if d.plain {
		return driver.Grant{}, d.failure(verb, key, errPlain)
	}
	if holder, _ := args[3].(string); len(holder) > maxHolder {
		return driver.Grant{}, d.failure(verb, key, fmt.Errorf("the holder is described in %d bytes, and a record has room for %d (%w)",
			len(holder), maxHolder, driver.ErrNotApplied))
	}
	args = append(args, "", c.Input, digit(c.OnLapse == driver.Hold), c.MaxRuns, keepMicros(c.Keep))
	reply, err := d.write(ctx, req.Ref, d.scripts.claim, d.withRecord(key), args...)
	if err != nil {
		return driver.Grant{}, d.failure(verb, key, err)
	}
	word, rest, err := answer(reply)
	about := func(what error, stands, fresh bool) error {
		j, err := d.parseRecord(key, rest[0], stands, true)
		if err != nil {
			return d.failure(verb, key, err)
		}
		return &driver.JobError{Job: j, Fresh: fresh, Err: what}
	}
	switch {
	case err != nil:
	case word == "G" && len(rest) == 4:
		g, err := d.granted(key, rest[:3])
		if err != nil {
			return driver.Grant{}, d.failure(verb, key, err)
		}
		j, err := d.parseRecord(key, rest[3], true, true)
		if err != nil {
			return driver.Grant{}, d.failure(verb, key, err)
		}
		g.Job = &j
		return g, nil
	case word == "D" && len(rest) == 1:
		return driver.Grant{}, about(driver.ErrDone, false, false)
	case word == "S" && len(rest) == 2:
		return driver.Grant{}, about(driver.ErrSuspended, false, rest[1] == "1")
	case word == "I" && len(rest) == 2:
		return driver.Grant{}, about(driver.ErrOtherInput, rest[1] == "1", false)
	case word == "J" && len(rest) == 1:
		err = d.badRecord(key, rest[0])
	default:
		return driver.Grant{}, d.notGranted(verb, key, word, rest)
	}
	return driver.Grant{}, d.failure(verb, key, err)
}

// finish is Release with a Record, or with Undo, which withdraws what the term has claimed. args are those of a release.
func (d *Driver) finish(ctx context.Context, verb string, req *driver.ReleaseRequest, args []any) error {
	key := req.Ref.Key
	if d.plain {
		return d.failure(verb, key, errPlain)
	}
	keys := append(d.withAll(key), d.withRecord(key)[1:]...)
	rec := req.Record
	if rec == nil {
		reply, err := d.call(ctx, d.scripts.finish, keys, append(args, "")...)
		return d.ended(verb, key, reply, err)
	}
	tooLarge := "-"
	if rec.NoResult {
		tooLarge = "x"
	}
	args = append(args, letter(jobStates, rec.State), letter(jobCauses, rec.Why), tooLarge, 0, rec.Error, rec.Result)
	if rec.State != driver.JobSuspended { // that is kept until settled
		args[7] = keepMicros(rec.Keep)
	}
	reply, err := d.confirm(ctx, keys, args)
	if err != nil {
		return d.failure(verb, key, err)
	}
	switch word, rest, _ := answer(reply); {
	case word == "C":
		return d.failure(verb, key, fmt.Errorf("%w (%w)", driver.ErrUnclaimed, driver.ErrNotApplied))
	case word == "J" && len(rest) == 1:
		return d.failure(verb, key, d.badRecord(key, rest[0]))
	}
	return d.ended(verb, key, reply, nil)
}

// confirm writes a record. With Replicas it counts only when so many of them have it, and can be sent again.
func (d *Driver) confirm(ctx context.Context, keys []string, args []any) (any, error) {
	if d.acks == 0 {
		return d.call(ctx, d.scripts.finish, keys, args...)
	}
	reply, confirmed, err := d.writeAndWait(ctx, d.scripts.finish, keys, args)
	if err == nil && wrote(reply) && confirmed < d.acks {
		err = fmt.Errorf("the record is written, but %d of %d replicas confirmed it in time", confirmed, d.acks)
	}
	return reply, err
}

// Job implements driver.Journal.
func (d *Driver) Job(ctx context.Context, key string) (driver.Job, bool, error) {
	const verb = "job"
	if err := d.journal(ctx, verb, key); err != nil {
		return driver.Job{}, false, err
	}
	found, err := d.readJobs(ctx, []string{key}, "f")
	if err != nil || len(found) == 0 {
		if err != nil {
			err = d.failure(verb, key, err)
		}
		return driver.Job{}, false, err
	}
	return found[0], true, nil
}

// Jobs implements driver.Journal. Like List it goes through the names of all keys of the database for the first page, in
// small steps; what it then reads are records of jobs that are asked for only.
func (d *Driver) Jobs(ctx context.Context, q *driver.JobQuery) ([]driver.Job, error) {
	const verb = "jobs"
	if err := d.journal(ctx, verb, q.Prefix); err != nil {
		return nil, err
	}
	names, end, which := &d.jobs, "}:[jd]", "a"
	if q.Undone {
		names, end, which = &d.undone, "}"+undoneEnd, "u"
	}
	keys, err := d.names(ctx, names, end, q.Prefix, q.After)
	if err != nil {
		return nil, d.failed(verb, q.Prefix, err)
	}
	from, found := slices.BinarySearch(keys, q.After)
	if found {
		from++
	}
	var jobs []driver.Job
	for keys = keys[from:]; len(keys) > 0 && len(jobs) < q.Limit; {
		n := min(len(keys), jobsCount)
		some, err := d.readJobs(ctx, keys[:n], which)
		if err != nil {
			return nil, d.failed(verb, q.Prefix, err)
		}
		jobs, keys = append(jobs, some...), keys[n:]
	}
	return jobs[:min(q.Limit, len(jobs))], nil
}

// jobsCount is how many records one script reads.
const jobsCount = 200

// readJobs reads records, those that there are, as jobs.lua says.
func (d *Driver) readJobs(ctx context.Context, keys []string, which string) ([]driver.Job, error) {
	if d.cluster == nil {
		return d.readJobsTogether(ctx, keys, which)
	}
	return readEach(ctx, d, d.scripts.jobs, keys,
		func(key string) *slotCall { return &slotCall{keys: d.withRecord(key), args: []any{which}} },
		func(keys []string, reply any, err error) ([]driver.Job, error) {
			return d.jobsRead(keys, which, reply, err)
		})
}

func (d *Driver) readJobsTogether(ctx context.Context, keys []string, which string) ([]driver.Job, error) {
	var all []string
	for _, key := range keys {
		all = append(all, d.withRecord(key)...)
	}
	reply, err := d.call(ctx, d.scripts.jobs, all, which)
	return d.jobsRead(keys, which, reply, err)
}

// jobsRead judges the reply about some records.
func (d *Driver) jobsRead(keys []string, which string, reply any, err error) (jobs []driver.Job, _ error) {
	if err != nil {
		return nil, err
	}
	parts, ok := reply.([]any)
	if !ok || len(parts) != len(keys) {
		return nil, fmt.Errorf("the script answered %v", reply)
	}
	for i, p := range parts {
		if one, ok := p.([]any); ok && len(one) == 0 {
			continue
		}
		record, rest, err := answer(p)
		if err != nil || len(rest) != 1 {
			return nil, fmt.Errorf("the script answered %v", p)
		}
		j, err := d.parseRecord(keys[i], record, rest[0] == "1", which == "f")
		if err == nil && rest[0] == "?" {
			err = d.badRecord(keys[i], "slot")
		}
		if err != nil && which == "f" {
			return nil, fmt.Errorf("job %q: %w", keys[i], err)
		} else if err != nil { // it does not hide the others
			j = driver.Job{Key: keys[i], Damaged: err}
		}
		jobs = append(jobs, j)
	}
	return jobs, nil
}

// Settle implements driver.Journal.
func (d *Driver) Settle(ctx context.Context, req *driver.SettleRequest) error {
	const verb = "settle"
	key := req.Key
	if err := d.journal(ctx, verb, key); err != nil {
		return err
	}
	reply, err := d.call(ctx, d.scripts.settle, d.withRecord(key),
		strconv.FormatUint(uint64(req.Token), 10), digit(req.Done), req.Result, req.By, keepMicros(req.Keep), seen(req.Seen))
	if err != nil {
		return d.failure(verb, key, err)
	}
	word, rest, err := answer(reply)
	switch {
	case err != nil:
	case word == "K":
		return nil
	case word == "H" && len(rest) == 2:
		return d.held(verb, key, rest)
	case word == "N":
		err = fmt.Errorf("%w: there is no record (%w)", driver.ErrJobChanged, driver.ErrNotApplied)
	case word == "T" && len(rest) == 1:
		token, _ := strconv.ParseUint(rest[0], 10, 64)
		err = fmt.Errorf("%w: its token is %d (%w)", driver.ErrJobChanged, token, driver.ErrNotApplied)
	case word == "S":
		err = fmt.Errorf("%w: it has changed since (%w)", driver.ErrJobChanged, driver.ErrNotApplied)
	case word == "J" && len(rest) == 1:
		err = d.badRecord(key, rest[0])
	default:
		err = fmt.Errorf("the script answered %v", reply)
	}
	return d.failure(verb, key, err)
}

// seen is a moment as records have it.
func seen(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf("%016d", t.UnixMicro())
}

// journal says why a call about records cannot be made.
func (d *Driver) journal(ctx context.Context, verb, key string) error {
	if err := d.usable(ctx, verb, key); err != nil || !d.plain {
		return err
	}
	return d.failure(verb, key, errPlain)
}
