package sqlitehold

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/holdlock/holdlock/driver"
)

// Acquire implements driver.Driver.
func (d *Driver) Acquire(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	const verb = "acquire"
	key := req.Ref.Key
	holder, err := json.Marshal(req.Holder)
	if err != nil { // a string that is not UTF-8 is no error
		return driver.Grant{}, d.gate.unapplied(verb, key, "holder", err)
	}
	if err := d.inPlace(verb, key); err != nil {
		return driver.Grant{}, err
	}
	var g driver.Grant
	err = d.call(ctx, verb, key, func(w *writer) error {
		if req.Once != nil {
			g, err = d.claim(w, req, string(holder))
			return err
		}
		for range 3 {
			g, err = d.tryAcquire(w, req, string(holder), d.moment())
			if !errors.Is(err, errJustFreed) {
				return err
			}
		}
		// Others come and go too fast to be described one statement later. So let none come in between.
		return w.transaction("BEGIN IMMEDIATE", func() error {
			g, err = d.tryAcquire(w, req, string(holder), d.moment())
			return err
		})
	})
	if err != nil {
		return driver.Grant{}, err
	}
	d.collector.acquired(g.Previous == driver.None, d.now())
	return g, nil
}

// errJustFreed: the key was taken, and a moment later it was not.
var errJustFreed = errors.New("the key has just become free")

// tryAcquire takes the key, or finds out who has it, at the moment m.
func (d *Driver) tryAcquire(w *writer, req *driver.AcquireRequest, holder string, m moment) (driver.Grant, error) {
	key := req.Ref.Key
	first, err := driver.TokenAfter(0, m.wall, req.Floor)
	if err != nil {
		return driver.Grant{}, &refusal{"acquire", key, err}
	}
	var (
		token    int64
		previous int
		prior    sql.NullString
	)
	take := func() (bool, error) {
		return w.row(acquireStatement, []any{
			d.namespace, key, req.Ref.Nonce, int64(first), d.boot, m.now, m.after(max(req.TTL, req.MinHold)), m.micro(), holder,
		}, &token, &previous, &prior)
	}
	granted, err := take()
	switch {
	case primaryCode(err) == sqlite3.SQLITE_CONSTRAINT: // the last token of the key was the last one there is
		return driver.Grant{}, &refusal{"acquire", key, fmt.Errorf("%w: %w", driver.ErrTokensExhausted, driver.ErrNotApplied)}
	case err != nil:
		return driver.Grant{}, err
	case granted:
		d.wrote()
		return grant(key, token, previous, prior), nil
	}

	r, known, err := w.record(d.namespace, key)
	if err == nil && known && r.expiry > m.now && !d.sameBoot(&r) {
		// It was written before a reboot, but only the clock tells, so the statement left it alone.
		if _, err = w.exec(outdatedStatement, d.namespace, key, r.nonce, r.token, r.written, m.now); err == nil {
			granted, err = take()
		}
	}
	if end := d.ends(&r); err == nil && known && !granted && end < r.expiry {
		r.expiry = end
		_, err = w.exec(unsureStatement, d.namespace, key, r.nonce, r.token, r.used, end, int64(d.now()))
	}
	switch {
	case err == nil && granted:
		d.wrote()
		return grant(key, token, previous, prior), nil
	case err != nil && isLocked(err):
		return driver.Grant{}, err
	case err != nil:
		return driver.Grant{}, fmt.Errorf("the key is taken, and reading by whom failed: %w (%w)", err, driver.ErrNotApplied)
	case !known || !d.stands(&r, m.now):
		return driver.Grant{}, errJustFreed
	}
	return driver.Grant{}, &driver.HeldError{Term: r.term(key, m.now)}
}
