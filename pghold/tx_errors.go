package pghold

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/holdlock/holdlock"
)

// What PostgreSQL says when a lock in a transaction is not had. They are tested with errors.Is; the server's own error is
// reached with errors.As (*pgconn.PgError). A lock that somebody else has is holdlock.ErrHeld as well.
var (
	// ErrTimeout (55P03): the lock was not free in time: lock_timeout or the deadline of ctx has passed, or NOWAIT found it
	// taken. It is holdlock.ErrHeld too, and context.DeadlineExceeded if it was the deadline.
	ErrTimeout = errors.New("the lock was not free in time")
	// ErrDeadlock (40P01): this transaction and others waited for each other, and the server chose this one to end. Take
	// locks in the same order everywhere. It is ErrRetry too.
	ErrDeadlock = errors.New("deadlock")
	// ErrCanceled (57014): the statement was cancelled: by ctx, by statement_timeout, or by an operator.
	ErrCanceled = errors.New("the statement was cancelled")
	// ErrLockTable (53200): the server has no room for another lock, for anybody. Raise max_locks_per_transaction, hold fewer,
	// or use lease rows, which have no such limit.
	ErrLockTable = errors.New("the server's lock table is full")
	// ErrReadOnly (25006): the transaction is read-only, or the server is a standby, whose locks exclude nobody.
	ErrReadOnly = errors.New("the transaction is read-only")
	// ErrAborted (25P02): an earlier statement has failed, and the transaction waits for its rollback.
	ErrAborted = errors.New("the transaction has failed before")
	// ErrRetry (40001, 40P01, and 23505 of the record of Once): roll back and run the whole transaction again. Above READ
	// COMMITTED that is how a transaction learns that another one has done the job after its own had begun.
	ErrRetry = errors.New("run the transaction again")
	// ErrNoRow: the query of LockRow or TryLockRow has found nothing. With SKIP LOCKED that means that the row is locked, and
	// the error is holdlock.ErrHeld, or that there is none: the server does not say which.
	ErrNoRow = errors.New("the query has found no row")
)

var errStandby = fmt.Errorf("%w: this server is a standby; connect to the primary, for example with target_session_attrs=read-write", ErrReadOnly)

var codes = map[string][]error{
	"55P03": {ErrTimeout, holdlock.ErrHeld},
	"40P01": {ErrDeadlock, ErrRetry},
	"57014": {ErrCanceled},
	"53200": {ErrLockTable},
	"25006": {ErrReadOnly},
	"25P02": {ErrAborted},
	"40001": {ErrRetry},
	"23505": {ErrRetry},
}

// advice is what to do, for the errors that need it said.
var advice = map[string]string{
	"40P01": "; roll back and run the transaction again; take locks in the same order everywhere",
	"53200": "; raise max_locks_per_transaction, hold fewer locks, or use lease rows",
	"25006": "; begin a transaction that may write, on the primary",
	"25P02": "; roll it back and look for its first error",
	"40001": "; roll back and run the transaction again",
	"42P05": preparedAdvice,
	"26000": preparedAdvice,
	"23505": "; roll back and run the transaction again",
}

// preparedAdvice is for the caller's own connection: pgx prepares statements unless it is told not to.
const preparedAdvice = "; a pooler that shares connections by transaction is in between, where a prepared statement is another client's: set pgx's " +
	"DefaultQueryExecMode to QueryExecModeExec or QueryExecModeSimpleProtocol, or use a pooler that follows them (pgbouncer from 1.21 on)"

// A TxError is how taking a lock in a transaction has failed. It is each of the errors above that apply.
type TxError struct {
	Op        string // Lock, TryLock, LockRow, TryLockRow, Once
	Name, Key string
	Code      string // the server's SQLSTATE, or "" if it was not the server that failed
	Err       error  // what was the matter; never nil

	late bool // the deadline of ctx has passed
}

// Error names the lock, the server's words, and what to do.
func (e *TxError) Error() string {
	lock := strconv.Quote(e.Name)
	if e.Key != "" {
		lock += " key " + strconv.Quote(e.Key)
	}
	if e.Err == holdlock.ErrHeld {
		return fmt.Sprintf("%s of lock %s: another transaction or session has it", e.Op, lock)
	}
	return fmt.Sprintf("%s of lock %s: %v%s", e.Op, lock, e.Err, advice[e.Code])
}

// Is reports whether target is one of the errors that apply.
func (e *TxError) Is(target error) bool {
	return e.is(target) || target == context.DeadlineExceeded && e.late && e.Code == "55P03"
}

func (e *TxError) is(target error) bool {
	for _, err := range codes[e.Code] {
		if err == target {
			return true
		}
	}
	return errors.Is(e.Err, target)
}

// Unwrap returns the server's error, or whatever it was.
func (e *TxError) Unwrap() error { return e.Err }

// failure makes a *TxError of what came back.
func (u *txUse) failure(ctx context.Context, err error) *TxError {
	e := &TxError{Op: u.op, Name: u.name, Key: u.key, Err: err}
	_, e.late = ctx.Deadline()
	var state interface{ SQLState() string } // *pgconn.PgError, and the error of any other driver that knows its codes
	if errors.As(err, &state) {
		e.Code = state.SQLState()
	}
	return e
}
