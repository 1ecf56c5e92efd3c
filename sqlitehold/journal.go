package sqlitehold

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/holdlock/holdlock/driver"
)

// Steps that change a job are transactions of a few statements, and synced to the disk before they are answered, whatever
// Options.Durable says: a power failure must not take back that a job is done, nor, where it is not to be run again, that it
// was begun.

// synced runs f, which makes one transaction, so that it is on disk when f returns.
func (d *Driver) synced(w *writer, f func() error) error {
	if d.durable {
		return f()
	}
	if _, err := w.once("PRAGMA synchronous = FULL"); err != nil {
		return err
	}
	// If this fails the steps that follow are slower than they need be.
	defer w.once("PRAGMA synchronous = NORMAL") //nolint:errcheck // see above
	return f()
}

// atomically runs f in one synced transaction, with the file locked against all others.
func (d *Driver) atomically(w *writer, f func(m moment) error) error {
	return d.synced(w, func() error { return d.unsynced(w, f) })
}

// unsynced runs f in one transaction, with the file locked against all others.
func (d *Driver) unsynced(w *writer, f func(m moment) error) error {
	return w.transaction("BEGIN IMMEDIATE", func() error { return f(d.moment()) })
}

// claim is Acquire with Once.
func (d *Driver) claim(w *writer, req *driver.AcquireRequest, holder string) (g driver.Grant, answer error) {
	key := req.Ref.Key
	// A look without a transaction comes first. What it finds done or suspended is so, and most duplicates end here.
	m := d.moment()
	j, known, err := w.job(d.namespace, key, m)
	if err != nil {
		return g, err
	}
	if known && j.nonce != req.Ref.Nonce && j.state != jobOpen && j.state != jobRunning {
		if about := j.judge(req, m, true, false); about != nil {
			return g, about
		}
	}
	err = d.atomically(w, func(m moment) error {
		j, known, err := w.job(d.namespace, key, m)
		if err != nil {
			return err
		}
		r, hasTerm, err := w.record(d.namespace, key)
		if err != nil {
			return err
		}
		taken := hasTerm && d.stands(&r, m.now)
		mine := taken && r.nonce == req.Ref.Nonce && r.state == stateHeld
		if known && j.state == jobRunning && !taken {
			// A claim of this very request was not heard before its term ran out, so nothing was run under it.
			known = (j.nonce != req.Ref.Nonce || j.withdraw()) && !j.forgotten(m)
		}
		if known && !mine {
			if about := j.judge(req, m, taken, d.runs(&j, &r, m.now)); about != nil {
				answer = about
				if about.Fresh {
					return w.writeJob(d.namespace, key, &j)
				}
				return nil
			}
		}
		g, err = d.tryAcquire(w, req, holder, m) // the moment at which the record was judged, or a lapse could slip in between
		var held *driver.HeldError
		if errors.As(err, &held) {
			answer = err
			return nil
		}
		if err != nil {
			return err
		}
		if !mine {
			j.claim(req, m, known, g.Token, holder)
			if err := w.writeJob(d.namespace, key, &j); err != nil {
				return err
			}
		}
		shown := j.show(key, true)
		g.Job = &shown
		return nil
	})
	if err != nil || answer != nil {
		return driver.Grant{}, cmp.Or(err, answer)
	}
	return g, nil
}

func (w *writer) writeJob(namespace, key string, j *jobRow) error {
	_, err := w.exec(writeJobStatement, j.args(namespace, key)...)
	return err
}

// endRun is Release with a Record, or with Undo, which withdraws what the term has claimed.
func (d *Driver) endRun(ctx context.Context, req *driver.ReleaseRequest, state int) error {
	const verb = "release"
	key := req.Ref.Key
	var first sql.NullString
	var gone error // an answer, beside which there may have been something to write
	err := d.call(ctx, verb, key, func(w *writer) error {
		gone = nil
		step := d.atomically
		if req.Record == nil { // that nothing was run may be forgotten; then it has lapsed
			step = d.unsynced
		}
		return step(w, func(m moment) error {
			j, known, err := w.job(d.namespace, key, m)
			if err != nil {
				return err
			}
			mine := known && j.nonce == req.Ref.Nonce
			ended, err := w.row(releaseStatement, []any{
				d.namespace, key, req.Ref.Nonce, d.boot, m.now, state, m.after(req.KeepFor), m.micro(), d.net, req.Undo,
			}, &first)
			if err != nil {
				return err
			}
			if !ended {
				if _, err = d.whyNot(w, req.Ref, m); err != nil && !errors.Is(err, driver.ErrGone) {
					return err
				}
				gone = &refusal{verb, key, cmp.Or(err, driver.ErrGone)}
			}
			rec := req.Record
			switch {
			case req.Undo && mine && j.state == jobRunning && j.withdraw():
				return w.writeJob(d.namespace, key, &j)
			case req.Undo && mine && j.state == jobRunning:
				_, err := w.exec(removeJobStatement, d.namespace, key)
				return err
			case rec == nil:
				return nil
			case gone != nil && mine && j.state == int(rec.State): // it was sent before
				gone = nil
				return nil
			case gone != nil:
				return nil
			case !mine || j.state != jobRunning:
				return &refusal{verb, key, driver.ErrUnclaimed}
			}
			j.end(rec, m)
			return w.writeJob(d.namespace, key, &j)
		})
	})
	if err == nil {
		err = gone
	}
	switch {
	case err != nil || !first.Valid:
	case req.Record != nil && req.Record.State != driver.JobOpen:
		d.wakeAll(ctx, key)
	default:
		d.wake(ctx, key, first.String)
	}
	return err
}

// Settle implements driver.Journal.
func (d *Driver) Settle(ctx context.Context, req *driver.SettleRequest) error {
	const verb = "settle"
	changed := func(what string) error {
		return &refusal{verb, req.Key, fmt.Errorf("%w: %s", driver.ErrJobChanged, what)}
	}
	if err := d.inPlace(verb, req.Key); err != nil {
		return err
	}
	return d.call(ctx, verb, req.Key, func(w *writer) error {
		return d.atomically(w, func(m moment) error {
			j, known, err := w.job(d.namespace, req.Key, m)
			if err != nil {
				return err
			}
			r, hasTerm, err := w.record(d.namespace, req.Key)
			if err != nil {
				return err
			}
			stands := known && hasTerm && d.runs(&j, &r, m.now)
			switch {
			case !known || j.state == jobRunning && !stands && j.forgotten(m):
				return changed("there is no record")
			case j.token != int64(req.Token):
				return changed(fmt.Sprintf("its token is %d", j.token))
			case !req.Seen.IsZero() && j.changed != req.Seen.UnixMicro():
				return changed("it has changed since")
			case stands:
				return &driver.HeldError{Term: r.term(req.Key, m.now)}
			}
			j.settle(req, m)
			return w.writeJob(d.namespace, req.Key, &j)
		})
	})
}

// runs says whether the job is running under the term in r.
func (d *Driver) runs(j *jobRow, r *record, now int64) bool {
	return j.state == jobRunning && j.nonce != "" && j.nonce == r.nonce && d.stands(r, now)
}

// Job implements driver.Journal.
func (d *Driver) Job(ctx context.Context, key string) (job driver.Job, ok bool, err error) {
	err = d.look(ctx, "job", key, func(c *sql.Conn) error {
		var j jobRow
		m := d.moment()
		err := c.QueryRowContext(ctx, jobStatement, d.namespace, key).Scan(append(j.dest(), &j.result)...)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		if err == nil {
			err = j.check(key)
		}
		if err != nil {
			return err
		}
		var r record
		err = c.QueryRowContext(ctx, describeStatement, d.namespace, key).Scan(&r.nonce, &r.state, &r.token, &r.boot,
			&r.expiry, &r.written, &r.acquired, &r.used, &r.holder, &r.broken, &r.previous, &r.prior)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		stands := d.runs(&j, &r, m.now)
		if ok = stands || !j.forgotten(m); ok {
			job = j.show(key, stands)
		}
		return nil
	})
	return job, ok, err
}

// Jobs implements driver.Journal.
func (d *Driver) Jobs(ctx context.Context, q *driver.JobQuery) (jobs []driver.Job, err error) {
	statement := jobsStatement
	if q.Undone {
		statement = undoneJobsStatement
	}
	err = d.look(ctx, "jobs", q.Prefix, func(c *sql.Conn) error {
		jobs = nil
		m := d.moment()
		rows, err := c.QueryContext(ctx, statement, d.namespace, q.Prefix, q.After, q.Prefix+"\xff", m.micro(), q.Limit)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var j jobRow
			var r record
			var key string
			if err := rows.Scan(append(append([]any{&key}, j.dest()...), &r.nonce, &r.boot, &r.expiry, &r.written)...); err != nil {
				return err
			}
			if err := j.check(key); err != nil { // it does not hide the others
				jobs = append(jobs, driver.Job{Key: key, Damaged: err})
				continue
			}
			jobs = append(jobs, j.show(key, d.runs(&j, &r, m.now)))
		}
		return rows.Err()
	})
	return jobs, err
}
