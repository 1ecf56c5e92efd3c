// Package pgfence refuses writes to PostgreSQL, in transactions of pgx, by holders that have been overtaken. See package fence
// for what a fence is and what it does not do; fence.SQL is the same for database/sql, on the same table.
//
// Where the lock can live in the transaction itself, it should (pghold.Lock, pghold.Once), and there is nothing to fence. This is
// for locks that live elsewhere, in Redis or in a file, around work that writes to PostgreSQL.
package pgfence

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/fence"
	"github.com/holdlock/holdlock/internal/fencesql"
)

// Options are for New; nil means all defaults.
type Options struct {
	Table string // the table of marks, NAME or SCHEMA.NAME; default holdlock_marks
}

// A Fence is safe for concurrent use.
type Fence struct{ s fencesql.Statements }

// New returns a fence. It does not talk to a database; see CreateTable.
func New(opts *Options) (*Fence, error) {
	table := "holdlock_marks"
	if opts != nil && opts.Table != "" {
		table = opts.Table
	}
	s, err := fencesql.For(fencesql.PostgreSQL, table)
	if err != nil {
		return nil, fmt.Errorf("pgfence: %w", err)
	}
	return &Fence{s}, nil
}

// A Querier is a connection, a pool, or a transaction of pgx.
type Querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// CreateTable makes the table of marks unless there is one. Its text is Schema, for those who keep migrations.
func (f *Fence) CreateTable(ctx context.Context, q Querier) error {
	if _, err := q.Exec(ctx, f.s.Create); err != nil {
		return fmt.Errorf("pgfence: cannot create the table of marks: %w", err)
	}
	return nil
}

// Schema is the statement of CreateTable.
func (f *Fence) Schema() string { return f.s.Create }

// Check is the first statement of a transaction that writes under a lock, and better of one that reads what it is going to
// write. It refuses a stale claim with a *fence.StaleError: roll back. Otherwise the mark moves with the commit, and until
// then no other holder gets past its Check. Above READ COMMITTED PostgreSQL may answer with a serialization failure (SQLSTATE
// 40001) instead: try the whole transaction again.
func (f *Fence) Check(ctx context.Context, tx pgx.Tx, c fence.Claim) error { return f.mark(ctx, tx, c) }

// Begin marks in a transaction of its own, before the work reads what it is going to write in a later transaction. That one
// has to Check all the same.
func (f *Fence) Begin(ctx context.Context, q Querier, c fence.Claim) error { return f.mark(ctx, q, c) }

// Sweep deletes marks that have not moved for longer than age. Choose it far above the longest time that a holder can be
// paused or a message delayed: a holder that is older than that is let through again. An age below a second is refused.
func (f *Fence) Sweep(ctx context.Context, q Querier, age time.Duration) error {
	if age < time.Second {
		return fmt.Errorf("pgfence: cannot sweep the marks: an age of %s would let every stale holder through again; use days", age)
	}
	if _, err := q.Exec(ctx, f.s.Sweep, int64(age/time.Second)); err != nil {
		return fmt.Errorf("pgfence: cannot sweep the marks: %w", err)
	}
	return nil
}

func (f *Fence) mark(ctx context.Context, q Querier, c fence.Claim) error {
	if err := c.Valid(); err != nil {
		return err
	}
	tag, err := q.Exec(ctx, f.s.Mark, c.Lock(), int64(c.Token))
	if err != nil {
		return fmt.Errorf("pgfence: the mark of lock %s could not be checked: %w", c.Lock(), err)
	}
	if tag.RowsAffected() == 1 {
		return nil
	}
	stale := &fence.StaleError{Lock: c.Lock(), Token: c.Token}
	var seen int64
	if q.QueryRow(ctx, f.s.Seen, c.Lock()).Scan(&seen) == nil { // for people only
		stale.Seen = holdlock.Token(seen)
	}
	return stale
}
