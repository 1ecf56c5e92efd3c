package pghold

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"

	"github.com/jackc/pgx/v5"

	"github.com/holdlock/holdlock"
)

// A Row is the answer to LockRow and TryLockRow. The row is locked when Scan has returned nil.
type Row struct {
	u     *txUse
	ctx   context.Context
	tx    Tx
	try   bool
	query string
	args  []any
	err   error
}

// LockRow locks a row of yours until the transaction ends, waits for it, and reads it:
//
//	err := pghold.LockRow(ctx, tx, accounts.For(id), "SELECT balance FROM account WHERE id = $1 FOR UPDATE", id).Scan(&balance)
//
// The query must lock: FOR UPDATE or FOR NO KEY UPDATE, without NOWAIT or SKIP LOCKED. It should find one row; of more the
// first is read, and all are locked. If it finds none, the error is ErrNoRow. Nothing happens before Scan, which must be called. Deadlines of
// ctx and errors are as for Lock.
//
// The row is what is locked: other statements that change it wait as well, with holdlock or without. The lock's name and
// key say for observers and reviews what it is; they take part in nothing else.
func LockRow(ctx context.Context, tx Tx, lock *holdlock.Lock, query string, args ...any) *Row {
	r := newRow(ctx, "LockRow", tx, lock, query, args)
	if text := bare(query); r.err == nil && (!locks.MatchString(text) || skips.MatchString(text)) {
		r.err = r.u.ended(ctx, errors.New("the query must end in FOR UPDATE or FOR NO KEY UPDATE, without NOWAIT or SKIP LOCKED"))
	}
	return r
}

// TryLockRow is LockRow that does not wait: the query must have NOWAIT or SKIP LOCKED.
//
// With SKIP LOCKED a locked row is not found: the error is ErrNoRow and holdlock.ErrHeld, the transaction goes on, and the
// server does not tell it from a row that does not exist. With NOWAIT the error is ErrTimeout and holdlock.ErrHeld, and
// the transaction is aborted unless a savepoint was set.
func TryLockRow(ctx context.Context, tx Tx, lock *holdlock.Lock, query string, args ...any) *Row {
	r := newRow(ctx, "TryLockRow", tx, lock, query, args)
	if r.try = true; r.u != nil {
		r.u.AtOnce()
		if skipsLocked.MatchString(bare(query)) { // a row that is not found may not exist
			r.u.Doubtful()
		}
	}
	if text := bare(query); r.err == nil && (!locks.MatchString(text) || !skips.MatchString(text)) {
		r.err = r.u.ended(ctx, errors.New("the query must end in FOR UPDATE or FOR NO KEY UPDATE, with NOWAIT or SKIP LOCKED"))
	}
	return r
}

func newRow(ctx context.Context, op string, tx Tx, lock *holdlock.Lock, query string, args []any) *Row {
	u, err := use(ctx, op, lock)
	return &Row{u: u, ctx: ctx, tx: tx, query: query, args: args, err: err}
}

// Scan runs the query, copies the columns of the row to dest, and says whether the row is locked.
func (r *Row) Scan(dest ...any) error {
	if r.err != nil {
		return r.err
	}
	before, err := r.limit()
	if err == nil {
		err = r.tx.QueryRow(r.ctx, r.query, r.args...).Scan(dest...)
	}
	switch {
	case err == nil && before != "":
		_, err = r.tx.Exec(r.ctx, `SELECT pg_catalog.set_config('lock_timeout', $1, true)`, before)
	case err == nil:
	case !errors.Is(err, pgx.ErrNoRows) && !errors.Is(err, sql.ErrNoRows):
	case r.try && skipsLocked.MatchString(bare(r.query)):
		err = fmt.Errorf("%w: the row is locked by another transaction, or there is none: %w: %w", ErrNoRow, holdlock.ErrHeld, err)
	default:
		err = fmt.Errorf("%w: %w", ErrNoRow, err)
		if before != "" {
			_, restored := r.tx.Exec(r.ctx, `SELECT pg_catalog.set_config('lock_timeout', $1, true)`, before)
			err = errors.Join(err, restored)
		}
	}
	r.err = r.u.ended(r.ctx, err)
	if r.err == nil {
		r.err = errors.New("pghold: a Row is scanned once")
		return nil
	}
	return r.err
}

// limit gives the deadline of ctx to the server and returns what was set before, or "" if there is no deadline.
func (r *Row) limit() (before string, err error) {
	wait, bounded := r.u.patience(r.ctx)
	if r.try || !bounded {
		return "", nil
	}
	err = r.tx.QueryRow(r.ctx, `WITH `+limitWait(1)+` SELECT before.value FROM before, limited WHERE limited.set IS NOT NULL`, wait).Scan(&before)
	return before, err
}

var (
	locks       = regexp.MustCompile(`(?i)\bFOR\s+(NO\s+KEY\s+)?UPDATE\b`)
	skips       = regexp.MustCompile(`(?i)\b(NOWAIT|SKIP\s+LOCKED)\b`)
	skipsLocked = regexp.MustCompile(`(?i)\bSKIP\s+LOCKED\b`)
	noise       = regexp.MustCompile(`(?s)--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'|"(?:[^"]|"")*"`)
)

// bare is the query without what could hold the words that are looked for: comments, strings and quoted names.
func bare(query string) string { return noise.ReplaceAllString(query, " ") }
