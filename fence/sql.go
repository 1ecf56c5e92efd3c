package fence

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/internal/fencesql"
)

// Dialect says which database a SQL fence speaks to.
type Dialect = fencesql.Dialect

// The dialects.
const (
	PostgreSQL = fencesql.PostgreSQL
	SQLite     = fencesql.SQLite
)

// SQLOptions are for NewSQL; nil means all defaults.
type SQLOptions struct {
	Dialect Dialect // default PostgreSQL
	Table   string  // the table of marks, NAME or SCHEMA.NAME; default holdlock_marks
}

// SQL is a fence in a database that is used through database/sql. The marks are a table beside the data. It is safe for
// concurrent use.
//
// It protects rows only in transactions that begin with Check, whatever they write; a transaction that does not check is not
// refused. Two holders of one lock wait for each other at Check until the first one's transaction ends.
type SQL struct{ s fencesql.Statements }

// NewSQL returns a fence. It does not talk to a database; see CreateTable.
func NewSQL(opts *SQLOptions) (*SQL, error) {
	if opts == nil {
		opts = &SQLOptions{}
	}
	table := opts.Table
	if table == "" {
		table = "holdlock_marks"
	}
	s, err := fencesql.For(opts.Dialect, table)
	if err != nil {
		return nil, fmt.Errorf("fence: %w", err)
	}
	return &SQL{s}, nil
}

// CreateTable makes the table of marks unless there is one. Its text is Schema, for those who keep migrations.
func (f *SQL) CreateTable(ctx context.Context, db *sql.DB) error {
	if _, err := db.ExecContext(ctx, f.s.Create); err != nil {
		return fmt.Errorf("fence: cannot create the table of marks: %w", err)
	}
	return nil
}

// Schema is the statement of CreateTable.
func (f *SQL) Schema() string { return f.s.Create }

// Check is the first statement of a transaction that writes under a lock, and better of one that reads what it is going to
// write. It refuses a stale claim with a *StaleError: roll back. Otherwise the mark moves with the commit, and until then no
// other holder gets past its Check. Above READ COMMITTED PostgreSQL may answer with a serialization failure (SQLSTATE 40001)
// instead: try the whole transaction again.
func (f *SQL) Check(ctx context.Context, tx *sql.Tx, c Claim) error {
	return f.mark(ctx, tx, c)
}

// Begin marks in a transaction of its own, before the work reads what it is going to write in a later transaction. That one
// has to Check all the same.
func (f *SQL) Begin(ctx context.Context, db *sql.DB, c Claim) error {
	return f.mark(ctx, db, c)
}

// Sweep deletes marks that have not moved for longer than age. Choose it far above the longest time that a holder can be
// paused or a message delayed: a holder that is older than that is let through again. An age below a second is refused.
func (f *SQL) Sweep(ctx context.Context, db *sql.DB, age time.Duration) error {
	if age < time.Second {
		return fmt.Errorf("fence: cannot sweep the marks: an age of %s would let every stale holder through again; use days", age)
	}
	if _, err := db.ExecContext(ctx, f.s.Sweep, int64(age/time.Second)); err != nil {
		return fmt.Errorf("fence: cannot sweep the marks: %w", err)
	}
	return nil
}

// Marks returns the marks for a middleware. Such marks are a filter in front of the data; the fence is a Check in the
// transaction that writes.
func (f *SQL) Marks(db *sql.DB) Marks { return sqlMarks{f, db} }

type sqlMarks struct {
	f  *SQL
	db *sql.DB
}

func (m sqlMarks) Mark(ctx context.Context, c Claim) error { return m.f.Begin(ctx, m.db, c) }

// runner is a *sql.DB or a *sql.Tx.
type runner interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

func (f *SQL) mark(ctx context.Context, r runner, c Claim) error {
	if err := c.Valid(); err != nil {
		return err
	}
	res, err := r.ExecContext(ctx, f.s.Mark, c.Lock(), int64(c.Token))
	var changed int64
	if err == nil {
		changed, err = res.RowsAffected()
	}
	if err != nil {
		return fmt.Errorf("fence: the mark of lock %s could not be checked: %w", c.Lock(), err)
	}
	if changed == 1 {
		return nil
	}
	stale := &StaleError{Lock: c.Lock(), Token: c.Token}
	var seen int64
	if r.QueryRowContext(ctx, f.s.Seen, c.Lock()).Scan(&seen) == nil { // for people only
		stale.Seen = holdlock.Token(seen)
	}
	return stale
}
