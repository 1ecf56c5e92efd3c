package pghold

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

// A Tx is a transaction of yours that a lock is to live in: a pgx.Tx as it is, or SQL(tx) for one of database/sql. Commit
// and Rollback stand here so that nothing else fits, such as a pool or a connection outside of a transaction, on which the lock would
// be gone at once. They are never called: how the transaction ends is your decision.
type Tx interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
}

// SQL makes a transaction of database/sql one that locks can live in. Any driver for PostgreSQL will do; errors.As
// reaches the errors of pgx as *pgconn.PgError and those of other drivers as their own.
func SQL(tx *sql.Tx) Tx { return sqlTx{tx} }

type sqlTx struct{ tx *sql.Tx }

func (t sqlTx) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	_, err := t.tx.ExecContext(ctx, query, args...)
	return pgconn.CommandTag{}, err
}

func (t sqlTx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	return t.tx.QueryRowContext(ctx, query, args...)
}

func (t sqlTx) Commit(context.Context) error   { return t.tx.Commit() }
func (t sqlTx) Rollback(context.Context) error { return t.tx.Rollback() }

// Lock takes a lock that lives and dies with the transaction, and waits for it. There is nothing to release: commit and
// rollback do it, and so does every way in which the connection can end. What the transaction writes is visible before
// the next one has the lock. That is why a Harmful lock is allowed here: no pause, no crash and no cut can come between the lock
// and the writes.
//
// It is for one effect: the writes of this transaction. A call to another system can still happen twice.
//
// Waiters are served in the order in which they came, as a rule. The wait ends with ctx. A deadline of ctx is given to
// the server as lock_timeout for this one statement, a little early, so that the connection survives; the error is then
// ErrTimeout and context.DeadlineExceeded. A ctx that is cancelled without a deadline costs the connection, as with any
// statement. A lock_timeout of yours that is shorter is respected, and in force again afterwards.
//
// After any error but ErrHeld of TryLock the transaction is aborted: roll it back, or back to a savepoint that you have
// set before. Savepoints work: a lock that was taken after one is given back by a rollback to it.
//
// A transaction of the isolation level REPEATABLE READ or SERIALIZABLE sees the database as it was at its first statement, and
// that is before a wait in Lock has ended: at REPEATABLE READ it does not see what the holder before has written. Use READ COMMITTED, the
// default, where the work reads what others under the lock have written.
//
// The same lock taken on a session (see SessionDriver) of the same database and namespace excludes this one. Taking it
// again in the same transaction succeeds and has no further effect.
func Lock(ctx context.Context, tx Tx, lock *holdlock.Lock) error {
	u, err := use(ctx, "Lock", lock)
	if err != nil {
		return err
	}
	var standby bool
	if wait, bounded := u.patience(ctx); bounded {
		err = tx.QueryRow(ctx, lockWithin, u.id(), wait).Scan(&standby)
	} else {
		err = tx.QueryRow(ctx, lockForever, u.id()).Scan(&standby)
	}
	return u.ended(ctx, held(true, standby, err))
}

// TryLock takes the lock of Lock if it is free, and otherwise returns an error that is holdlock.ErrHeld, at once. The
// transaction is usable in both cases.
func TryLock(ctx context.Context, tx Tx, lock *holdlock.Lock) error {
	u, err := use(ctx, "TryLock", lock)
	if err != nil {
		return err
	}
	u.AtOnce()
	var got, standby bool
	err = tx.QueryRow(ctx, tryLock, u.id()).Scan(&got, &standby)
	return u.ended(ctx, held(got, standby, err))
}

// The function scan makes sure that void comes as a row. Names are qualified, because the search_path is the caller's. A
// standby has advisory locks of its own, which exclude nobody on the primary.
const (
	lockForever = `SELECT pg_catalog.pg_is_in_recovery() FROM pg_catalog.pg_advisory_xact_lock($1::bigint)`
	tryLock     = `SELECT pg_catalog.pg_try_advisory_xact_lock($1::bigint), pg_catalog.pg_is_in_recovery()`
)

// lockWithin sets the limit, waits, and puts back what was set before. Each part reads the one before, which fixes their
// order.
var lockWithin = `WITH ` + limitWait(2) + `,
	locked AS MATERIALIZED (SELECT 1 FROM limited, LATERAL pg_catalog.pg_advisory_xact_lock($1::bigint + 0 * length(limited.set)) AS l)
	SELECT pg_catalog.pg_is_in_recovery() FROM locked, before
	WHERE pg_catalog.set_config('lock_timeout', before.value, true) IS NOT NULL`

// limitWait sets lock_timeout to the milliseconds that are parameter n, unless a shorter one is in force.
func limitWait(n int) string {
	return fmt.Sprintf(`before AS MATERIALIZED (SELECT pg_catalog.current_setting('lock_timeout') AS value),
	limited AS MATERIALIZED (SELECT pg_catalog.set_config('lock_timeout',
		CASE WHEN value::interval > '0' AND value::interval < $%[1]d::bigint * interval '1 ms' THEN value ELSE $%[1]d::bigint::text END, true) AS set
		FROM before)`, n)
}

// held judges the answer of the server.
func held(got, standby bool, err error) error {
	switch {
	case err != nil:
		return err
	case standby:
		return errStandby
	case !got:
		return holdlock.ErrHeld
	}
	return nil
}

// A txUse is one use of a lock in a transaction.
type txUse struct {
	*holdlock.TxUse
	op, name, key     string
	schema, namespace string
}

// placed is a store of this package: it knows where its tables are.
type placed interface {
	place() (schema, namespace string)
}

func (d *LeaseDriver) place() (schema, namespace string) { return d.schema, d.namespace }

func (d *SessionDriver) place() (schema, namespace string) { return d.rows.place() }

// use begins the use of a lock. Locks of a client on some other store are in the default schema and namespace.
func use(ctx context.Context, op string, lock *holdlock.Lock) (*txUse, error) {
	if lock == nil {
		return nil, fmt.Errorf("%w: pghold.%s needs a lock; Client.NewLock makes one", holdlock.ErrInvalid, op)
	}
	u := &txUse{op: op, name: lock.Name(), key: lock.Key(), schema: DefaultSchema}
	var err error
	if u.TxUse, err = lock.InTransaction(); err != nil {
		return nil, err
	}
	if p, ok := driver.As[placed](u.Driver()); ok {
		u.schema, u.namespace = p.place()
	}
	if n, ok := driver.As[noting](u.Driver()); ok {
		n.note(u.StoreKey())
	}
	if ctx.Err() != nil { // nothing is sent, so the connection stays well
		return nil, u.ended(ctx, fmt.Errorf("nothing was sent: %w", ctx.Err()))
	}
	return u, nil
}

// id is the number of the advisory lock.
func (u *txUse) id() int64 { return LockID(u.namespace, u.StoreKey()) }

// patience returns how many milliseconds the server may wait: somewhat less than ctx allows, so that its answer is here
// before ctx ends. Otherwise the client gives up the connection.
func (u *txUse) patience(ctx context.Context) (ms int64, bounded bool) {
	end, ok := ctx.Deadline()
	if !ok {
		return 0, false
	}
	left := time.Until(end)
	left -= min(left/5, 100*time.Millisecond)
	return max(1, min(left.Milliseconds(), 1<<31-1)), true
}

// ended reports how it went and returns the error for the caller.
func (u *txUse) ended(ctx context.Context, err error) error {
	kind := holdlock.Granted
	if err != nil {
		e := u.failure(ctx, err)
		if kind, err = holdlock.Failed, e; e.is(holdlock.ErrHeld) {
			kind = holdlock.Skipped
		}
	}
	u.Ended(kind, err)
	return err
}
