package pghold

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdlock/holdlock/driver"
)

// leaseSQL are the statements, with the schema in them. The functions are in sql/1.sql and, those about jobs, in sql/2.sql.
type leaseSQL struct {
	acquire, renew, release, breakTerm, list, inspect string
	stand, leave, poll, collect, name, claims         string
	usage, writeUsage, readUsage, oldUsage            string
	claim, finish, giveUp, settle, collectJobs        string
	job, jobs, undoneJobs                             string
}

func newLeaseSQL(schema string) leaseSQL {
	in := func(sql string) string { return inSchema(sql, schema) }
	return leaseSQL{
		acquire:   in(`SELECT "holdlock".acquire($1, $2, $3, $4, $5, $6)`),
		renew:     in(`SELECT * FROM "holdlock".renew($1, $2, $3, $4, $5)`),
		release:   in(`SELECT "holdlock".release($1, $2, $3, $4, $5)`),
		breakTerm: in(`SELECT "holdlock".break_term($1, $2, $3, $4, $5)`),
		list:      in(listStatement),
		inspect:   in(inspectStatement),
		stand:     in(`SELECT * FROM "holdlock".stand($1, $2, $3, $4, $5, $6)`),
		leave:     in(`SELECT "holdlock".leave($1, $2, $3, $4)`),
		poll:      in(`SELECT "holdlock".poll($1)`),
		collect:   in(`SELECT "holdlock".collect($1, $2)`),
		name:      in(nameStatement),
		claims:    in(claimsStatement),

		usage: in(usageStatement), writeUsage: in(writeUsageStatement), readUsage: in(readUsageStatement), oldUsage: in(oldUsageStatement),

		claim:       in(claimStatement),
		finish:      in(`SELECT "holdlock".finish($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`),
		giveUp:      in(`SELECT "holdlock".give_up($1, $2, $3, $4)`),
		settle:      in(`SELECT "holdlock".settle($1, $2, $3, $4, $5, $6, $7, $8)`),
		collectJobs: in(`SELECT "holdlock".collect_jobs($1)`),
		job:         in(jobStatement), jobs: in(jobsStatement("")), undoneJobs: in(jobsStatement(" AND j.state <> 5")),
	}
}

// micros rounds up: a term never ends early.
func micros(d time.Duration) int64 {
	us := int64(d / time.Microsecond)
	if d%time.Microsecond > 0 {
		us++
	}
	return us
}

// Acquire implements driver.Driver.
func (d *LeaseDriver) Acquire(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	const verb = "acquire"
	key := req.Ref.Key
	asked := time.Now()
	if req.BackStop && d.usable(ctx, verb, key) == nil {
		if held, known := d.refusals.recent(key); known {
			return driver.Grant{}, held
		}
	}
	holder, err := json.Marshal(req.Holder)
	if err != nil {
		return driver.Grant{}, leaseFailure(verb, key, &unsentError{err})
	}
	args := []any{
		d.namespace, key, req.Ref.Nonce, micros(max(req.TTL, req.MinHold)), int64(min(req.Floor, driver.MaxToken)), string(holder),
	}
	var answer, rest string
	var j *jobRow
	if req.Once != nil {
		answer, rest, j, err = d.claim(ctx, key, args, req.Once)
	} else {
		answer, rest, err = d.word(ctx, verb, key, d.sql.acquire, args...)
	}
	if err != nil {
		return driver.Grant{}, err
	}
	switch answer {
	case "granted":
		g, err := parseGrant(key, rest)
		if err != nil {
			return driver.Grant{}, leaseFailure(verb, key, err)
		}
		if j != nil {
			shown := j.show(key)
			g.Job = &shown
		}
		d.collector.acquired(d)
		return g, nil
	case "held":
		t, err := parseTerm(key, rest)
		if err != nil {
			return driver.Grant{}, leaseFailure(verb, key, err)
		}
		if req.BackStop {
			d.refusals.keep(t, asked)
		}
		return driver.Grant{}, &driver.HeldError{Term: t}
	case "undone":
		err = errors.New("this attempt was given up, or its term given back, before it arrived")
	case "exhausted":
		err = driver.ErrTokensExhausted
	default:
		if err := claimAnswer(key, answer, rest, j); err != nil {
			return driver.Grant{}, err
		}
		return driver.Grant{}, leaseFailure(verb, key, fmt.Errorf("the server answered %q", answer))
	}
	return driver.Grant{}, fmt.Errorf("pghold: %s %q: %w (%w)", verb, key, err, driver.ErrNotApplied)
}

// word calls a function that answers with a word and what belongs to it behind a space.
func (d *LeaseDriver) word(ctx context.Context, verb, key, sql string, args ...any) (word, rest string, err error) {
	err = d.step(ctx, verb, key, sql, args, func(rows pgx.Rows) error {
		word = string(rows.RawValues()[0])
		return nil
	})
	word, rest, _ = strings.Cut(word, " ")
	return word, rest, err
}

// Renew implements driver.Driver.
func (d *LeaseDriver) Renew(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
	r := d.RenewBatch(ctx, []*driver.RenewRequest{req})[0]
	return r.Grant, r.Err
}

// batchSize bounds how long one statement renews, to some milliseconds.
const batchSize = 500

// RenewBatch implements driver.BatchRenewer. One statement renews up to 500 terms.
func (d *LeaseDriver) RenewBatch(ctx context.Context, reqs []*driver.RenewRequest) []driver.RenewResult {
	results := make([]driver.RenewResult, len(reqs))
	var order []int
	for i, req := range reqs {
		if req.Floor > driver.MaxToken {
			results[i].Err = fmt.Errorf("pghold: renew %q: floor %d: %w (%w)", req.Ref.Key, req.Floor,
				driver.ErrTokensExhausted, driver.ErrNotApplied)
			continue
		}
		order = append(order, i)
	}
	// In the order of the keys, so that no two batches wait for each other.
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(reqs[a].Ref.Key, reqs[b].Ref.Key) })
	for some := range slices.Chunk(order, batchSize) {
		d.renew(ctx, reqs, some, results)
	}
	return results
}

func (d *LeaseDriver) renew(ctx context.Context, reqs []*driver.RenewRequest, which []int, results []driver.RenewResult) {
	n := len(which)
	keys, nonces, ttls, floors := make([]string, n), make([]string, n), make([]int64, n), make([]int64, n)
	for j, i := range which {
		keys[j], nonces[j] = reqs[i].Ref.Key, reqs[i].Ref.Nonce
		ttls[j], floors[j] = micros(reqs[i].TTL), int64(reqs[i].Floor)
	}
	what := keys[0]
	if n > 1 {
		what = fmt.Sprintf("%s and %d more", what, n-1)
	}
	got := make([]driver.RenewResult, 0, n)
	err := d.step(ctx, "renew", what, d.sql.renew, []any{d.namespace, keys, nonces, ttls, floors}, func(rows pgx.Rows) error {
		var answer string
		var token *int64
		var detail *string
		if err := rows.Scan(&answer, &token, &detail); err != nil {
			return err
		}
		if len(got) == n {
			return errors.New("the server gave too many answers")
		}
		got = append(got, d.renewed(reqs[which[len(got)]], answer, token, detail))
		return nil
	})
	if err == nil && len(got) != n {
		err = leaseFailure("renew", what, fmt.Errorf("the server gave %d answers to %d renewals", len(got), n))
	}
	for j, i := range which {
		if err != nil {
			results[i] = driver.RenewResult{Err: err}
		} else {
			results[i] = got[j]
		}
	}
}

func (d *LeaseDriver) renewed(req *driver.RenewRequest, answer string, token *int64, detail *string) driver.RenewResult {
	switch {
	case answer == "renewed" && token != nil:
		return driver.RenewResult{Grant: driver.Grant{Token: driver.Token(*token)}}
	case answer == "passed" && token != nil:
		return driver.RenewResult{Err: fmt.Errorf("pghold: renew %q: %w: it is %d, the floor %d", req.Ref.Key, driver.ErrTokenPassed,
			*token, req.Floor)}
	default:
		why := ""
		if detail != nil {
			why = *detail
		}
		return driver.RenewResult{Err: goneError("renew", req.Ref.Key, answer, why)}
	}
}

// goneError is ErrGone, or ErrBroken with by whom.
func goneError(verb, key, answer, detail string) error {
	err := driver.ErrGone
	if answer == "broken" {
		err = driver.ErrBroken
	}
	if detail != "" {
		return fmt.Errorf("pghold: %s %q: %w: %s", verb, key, err, detail)
	}
	return fmt.Errorf("pghold: %s %q: %w", verb, key, err)
}

// Release implements driver.Driver.
func (d *LeaseDriver) Release(ctx context.Context, req *driver.ReleaseRequest) error {
	const verb = "release"
	key := req.Ref.Key
	d.refusals.forget(key)
	args := []any{d.namespace, key, req.Ref.Nonce, micros(req.KeepFor)}
	var answer, rest string
	var err error
	switch {
	case req.Record != nil:
		answer, rest, err = d.finish(ctx, key, args, req.Record)
	case req.Undo: // also of what it may have claimed
		answer, rest, err = d.word(ctx, verb, key, d.sql.giveUp, args...)
	default:
		answer, rest, err = d.word(ctx, verb, key, d.sql.release, append(args, false)...)
	}
	switch {
	case err != nil || answer == "released" || answer == "recorded":
	case answer == "unclaimed":
		err = fmt.Errorf("pghold: %s %q: %w", verb, key, driver.ErrUnclaimed)
	case answer == "bad":
		err = badRecord(verb, key, rest)
	default:
		err = goneError(verb, key, answer, rest)
	}
	d.hub.freed()
	return err
}

// Break implements driver.Breaker.
func (d *LeaseDriver) Break(ctx context.Context, req *driver.BreakRequest) error {
	var done bool
	err := d.step(ctx, "break", req.Ref.Key, d.sql.breakTerm,
		[]any{d.namespace, req.Ref.Key, req.Ref.Nonce, cmp.Or(req.By, "an operator"), req.Now},
		func(rows pgx.Rows) error { return rows.Scan(&done) })
	if err == nil && !done {
		err = goneError("break", req.Ref.Key, "gone", "")
	}
	return err
}
