package sqlitehold

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"

	"modernc.org/sqlite"

	"github.com/holdlock/holdlock/driver"
)

// A reader has the connections for looking. They read beside a writer without stopping it.
type reader struct {
	mu     sync.Mutex
	db     *sql.DB // opened at the first use
	closed bool
}

func (r *reader) open(path string, durable bool) (*sql.DB, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, driver.ErrClosed
	}
	if r.db == nil {
		c, err := sqlite.NewConnector(dsn(path, "ro", durable))
		if err != nil {
			return nil, err
		}
		r.db = sql.OpenDB(c)
		r.db.SetMaxOpenConns(4)
		r.db.SetMaxIdleConns(1)
	}
	return r.db, nil
}

// close waits for those who are looking.
func (r *reader) close() {
	r.mu.Lock()
	r.closed = true
	db := r.db
	r.mu.Unlock()
	if db != nil {
		db.Close()
	}
}

// look runs f on a connection for reading. Its statements may be interrupted: that harms nothing but the connection,
// which is then replaced.
func (d *Driver) look(ctx context.Context, verb, key string, f func(*sql.Conn) error) error {
	if err := ctx.Err(); err != nil {
		return d.gate.unapplied(verb, key, "it was not tried", err)
	}
	var since atomic.Int64
	return d.gate.retry(ctx, verb, key, &since, func() error {
		db, err := d.reader.open(d.path, d.durable)
		if err != nil {
			return err
		}
		c, err := db.Conn(ctx)
		if err != nil {
			if d.gate.isShut() {
				return driver.ErrClosed
			}
			return err
		}
		defer c.Close()
		return f(c)
	})
}

// listStep bounds the rows that one statement looks at.
const listStep = 2000

// List implements driver.Lister.
func (d *Driver) List(ctx context.Context, prefix, after string, limit int) ([]driver.Term, error) {
	var found []driver.Term
	first, end := prefix, prefix+"\xff" // no UTF-8 text that begins with prefix is behind that
	for len(found) < limit {
		var more []driver.Term
		var stop string
		err := d.look(ctx, "list", prefix, func(c *sql.Conn) (err error) {
			stop = end
			err = c.QueryRowContext(ctx, listEndStatement, d.namespace, first, after, end, listStep).Scan(&stop)
			if err == nil || errors.Is(err, sql.ErrNoRows) {
				more, err = d.page(ctx, c, first, after, stop, limit-len(found))
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		if found = append(found, more...); stop == end {
			break
		}
		first, after = stop, "" // stop itself is still to be looked at
	}
	return found, nil
}

// page returns the live terms of keys from first, and after the key after, up to but without end.
func (d *Driver) page(ctx context.Context, c *sql.Conn, first, after, end string, limit int) ([]driver.Term, error) {
	now := int64(d.now())
	rows, err := c.QueryContext(ctx, listStatement, d.namespace, first, after, end, d.boot, now)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var terms []driver.Term
	for len(terms) < limit && rows.Next() { // no more rows than listStep are between first and end
		var r record
		var key string
		err := rows.Scan(&key, &r.nonce, &r.state, &r.token, &r.boot, &r.expiry, &r.written, &r.acquired, &r.used, &r.holder, &r.broken)
		if err != nil {
			return nil, err
		}
		if d.stands(&r, now) {
			r.expiry = d.ends(&r)
			terms = append(terms, r.term(key, now))
		}
	}
	return terms, rows.Err()
}

// Inspect implements driver.Lister.
func (d *Driver) Inspect(ctx context.Context, key string) (term driver.Term, ok bool, err error) {
	err = d.look(ctx, "inspect", key, func(c *sql.Conn) error {
		var r record
		now := int64(d.now())
		err := c.QueryRowContext(ctx, describeStatement, d.namespace, key).Scan(&r.nonce, &r.state, &r.token, &r.boot,
			&r.expiry, &r.written, &r.acquired, &r.used, &r.holder, &r.broken, &r.previous, &r.prior)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return nil
		case err != nil:
			return err
		}
		if ok = d.stands(&r, now); ok {
			r.expiry = d.ends(&r)
			term = r.term(key, now)
		}
		return nil
	})
	return term, ok, err
}
