package sqlitehold

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"math"

	"github.com/holdlock/holdlock/driver"
)

// Release implements driver.Driver.
func (d *Driver) Release(ctx context.Context, req *driver.ReleaseRequest) error {
	state := stateOver
	if req.KeepFor > 0 {
		state = stateCooling
	}
	if req.Record != nil || req.Undo {
		err := d.endRun(ctx, req, state)
		d.collect(ctx)
		return err
	}
	err := d.end(ctx, "release", req.Ref, func(w *writer, m moment, first *sql.NullString) (bool, error) {
		return w.row(releaseStatement, []any{
			d.namespace, req.Ref.Key, req.Ref.Nonce, d.boot, m.now, state, m.after(req.KeepFor), m.micro(), d.net, false,
		}, first)
	})
	d.collect(ctx)
	return err
}

// Break implements driver.Breaker.
func (d *Driver) Break(ctx context.Context, req *driver.BreakRequest) error {
	by := cmp.Or(req.By, "an operator")
	return d.end(ctx, "break", req.Ref, func(w *writer, m moment, first *sql.NullString) (bool, error) {
		state, latest := stateHeld, int64(math.MaxInt64)
		if req.Now {
			state, latest = stateOver, m.now
		}
		ended, err := w.row(breakStatement, []any{
			d.namespace, req.Ref.Key, req.Ref.Nonce, d.boot, m.now, state, latest, m.micro(), d.net, by,
		}, first)
		if !req.Now {
			*first = sql.NullString{} // the key is not free yet
		}
		return ended, err
	})
}

// end ends or marks the term ref by a statement that also finds the first waiter, and wakes that one.
func (d *Driver) end(ctx context.Context, verb string, ref driver.Ref,
	statement func(*writer, moment, *sql.NullString) (bool, error),
) error {
	var first sql.NullString
	err := d.call(ctx, verb, ref.Key, func(w *writer) error {
		m := d.moment()
		ended, err := statement(w, m, &first)
		if err != nil || ended {
			return err
		}
		switch _, err = d.whyNot(w, ref, m); {
		case err == nil: // it has come to be the current term only now
			return &refusal{verb, ref.Key, driver.ErrGone}
		case errors.Is(err, driver.ErrGone):
			return &refusal{verb, ref.Key, err}
		}
		return err
	})
	if err == nil && first.Valid {
		d.wake(ctx, ref.Key, first.String)
	}
	return err
}
