package riverlock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/pghold"
)

const defaultWait = 250 * time.Millisecond

// InTxOptions are for InTx; nil means all defaults.
type InTxOptions struct {
	// Again is how soon a duplicate comes back whose twin is at work. Default 1 s, at least 500 ms.
	Again time.Duration
	// Wait is how long a duplicate waits for its twin before it is snoozed. It keeps a connection and a worker for so long. Default
	// 250 ms, at least 10 ms.
	Wait time.Duration
	// Keep is as in pghold.OnceOptions.
	Keep time.Duration
	// CompareArgs makes a second River job under the same key with other arguments an error, which cancels it.
	CompareArgs bool
}

// DB is where InTx begins its transactions: a *pgxpool.Pool on the database in which River's jobs are.
type DB interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

type inTxMiddleware struct {
	river.MiddlewareDefaults

	db   DB
	lock *holdlock.Lock
	key  KeyFunc
	opts InTxOptions
}

// InTx returns a middleware that gives each job a transaction, which the work finds with Tx: the writes of the work, the record
// that the job of this key is done (pghold.Once), and the completion of the River job commit together. The work neither commits
// nor rolls back. If it fails, or dies, nothing of it is left, and the job runs when it is next delivered.
//
// The River client has to be one on riverpgxv5 and the database of db, where pghold.Migrate has made the schema of the lock's client;
// pghold.OpenTransactions makes a client that needs no other store. Harmful locks are allowed. Each job that is worked uses
// one connection of db. The transaction is READ COMMITTED.
func InTx(db DB, lock *holdlock.Lock, key KeyFunc, opts *InTxOptions) (rivertype.WorkerMiddleware, error) {
	m := &inTxMiddleware{db: db, lock: lock, key: key}
	if opts != nil {
		m.opts = *opts
	}
	if none(db) || lock == nil || key == nil {
		return nil, errors.New("riverlock: InTx needs a database, a lock and a function that names jobs")
	}
	var err error
	if m.opts.Again, err = pause("Again", m.opts.Again, defaultAgain); err != nil {
		return nil, fmt.Errorf("riverlock: lock %s: %w", lock.Name(), err)
	}
	if m.opts.Wait == 0 {
		m.opts.Wait = defaultWait
	}
	switch {
	case m.opts.Wait < 10*time.Millisecond:
		return nil, fmt.Errorf("riverlock: lock %s: Wait is %s; at least 10 ms", lock.Name(), m.opts.Wait)
	case m.opts.Keep < 0:
		return nil, fmt.Errorf("riverlock: lock %s: Keep is %s; 0 for the default, or a positive duration", lock.Name(), m.opts.Keep)
	}
	if _, err := lock.For("any").InTransaction(); err != nil { // such as one in shadow mode
		return nil, fmt.Errorf("riverlock: %w", err)
	}
	return m, nil
}

// none says whether there is no database: also a pool that is nil, which is no nil interface.
func none(db DB) bool {
	v := reflect.ValueOf(db)
	return db == nil || v.Kind() == reflect.Pointer && v.IsNil()
}

type txKey struct{}

// Tx returns the transaction of the job whose context this is, or nil if it runs without InTx. It is the work's until it returns.
func Tx(ctx context.Context) pgx.Tx {
	tx, _ := ctx.Value(txKey{}).(pgx.Tx)
	return tx
}

// Work implements rivertype.WorkerMiddleware.
func (m *inTxMiddleware) Work(ctx context.Context, job *rivertype.JobRow, doInner func(context.Context) error) error {
	lock, err := name(m.lock, m.key, job)
	if err != nil {
		return err
	}
	tx, err := m.db.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite})
	if err != nil {
		return fmt.Errorf("riverlock: a transaction for River job %d: %w", job.ID, err)
	}
	// Also if the work panics; after a commit it does nothing.
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	done, err := m.begin(ctx, tx, lock, job)
	if err != nil || done.Already {
		return err // if it is done, River completes its own job in its own time
	}
	if err := doInner(context.WithValue(ctx, txKey{}, tx)); err != nil {
		return err
	}
	completed, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, &river.Job[anyArgs]{JobRow: job})
	switch {
	case err != nil:
		return fmt.Errorf("riverlock: completing River job %d, whose work is rolled back: %w", job.ID, err)
	case completed.State != rivertype.JobStateCompleted: // River says nothing if somebody has cancelled it, or taken it for stuck
		return fmt.Errorf("riverlock: River job %d is %s by now; its work is rolled back", job.ID, completed.State)
	}
	if err := tx.Commit(ctx); err != nil {
		// It may have committed all the same. Then River finds its job completed, and leaves it so.
		return fmt.Errorf("riverlock: committing River job %d: %w", job.ID, err)
	}
	return nil
}

// begin writes the record into the transaction, or finds out why not.
func (m *inTxMiddleware) begin(ctx context.Context, tx pgx.Tx, lock *holdlock.Lock, job *rivertype.JobRow) (*pghold.Done, error) {
	opts := &pghold.OnceOptions{Keep: m.opts.Keep}
	if m.opts.CompareArgs {
		opts.Input = append([]byte{}, job.EncodedArgs...) // not nil
	}
	wait, cancel := context.WithTimeout(ctx, m.opts.Wait)
	defer cancel()
	done, err := pghold.Once(wait, tx, lock, opts)
	switch {
	case err == nil:
		return done, nil
	case errors.Is(err, pghold.ErrInput):
		return nil, river.JobCancel(err)
	case errors.Is(err, holdlock.ErrHeld), errors.Is(err, pghold.ErrRetry), wait.Err() != nil && ctx.Err() == nil,
		errors.Is(err, pghold.ErrCanceled) && ctx.Err() == nil: // by a statement_timeout that is shorter than Wait
		return nil, errors.Join(err, river.JobSnooze(m.opts.Again))
	}
	return nil, err
}

// anyArgs are arguments that nobody looks at: the types of River want them, where the row alone is needed.
type anyArgs struct{}

func (anyArgs) Kind() string { return "" }

// UnmarshalJSON implements json.Unmarshaler.
func (*anyArgs) UnmarshalJSON([]byte) error { return nil }

var _ json.Unmarshaler = (*anyArgs)(nil)
