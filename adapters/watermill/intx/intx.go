// Package intx runs handlers of watermill in a transaction of PostgreSQL that also records the job: an effect in it is there exactly once.
//
//	ones, err := intx.Middleware(settle, pool.Begin, nil) // of pgxpool
//	router.AddConsumerHandler("settle", "orders", subscriber, func(msg *message.Message) error {
//		tx := intx.Tx[pgx.Tx](msg.Context())
//		_, err := tx.Exec(msg.Context(), …)
//		return err
//	}).AddMiddleware(ones)
//
// The transaction is committed when the handler has returned nil, and rolled back otherwise; the handler must do neither. A
// duplicate of a job that is done runs nothing; one whose twin is at work waits for a moment and comes back later. Nothing
// has to be renewed, and no clock matters: while the transaction is open nobody else gets as far as the handler, and when its connection
// ends it has had no effect. That holds for what the transaction writes, and for nothing else: a mail that the handler sends can be sent twice.
//
// A job that fails leaves no record, so attempts are not counted here: use Retry and PoisonQueue of watermill, outside. It has also failed
// if the server refuses to commit what it has done: for a constraint that is checked at the end, an SQL error that the handler has passed
// over, or because the handler has ended the transaction itself. Where the answer to the commit is lost, the message comes back, and the
// record says.
//
// Messages that the handler returns are kept with the record, without a limit of size, and each duplicate returns them again, with the same UUIDs:
// they are published at least once, also if the process dies between the commit and the publishing.
package intx

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/holdlock/holdlock"
	watermillonce "github.com/holdlock/holdlock/adapters/watermill"
	"github.com/holdlock/holdlock/adapters/watermill/internal/origin"
	"github.com/holdlock/holdlock/adapters/watermill/internal/produced"
	"github.com/holdlock/holdlock/once"
	"github.com/holdlock/holdlock/pghold"
)

// Options are for Middleware; nil means all defaults.
type Options struct {
	// Keep is as in pghold.OnceOptions.
	Keep time.Duration
	// Key and Input are as in watermillonce.Options.
	Key   func(*message.Message) (string, error)
	Input func(*message.Message) []byte
	// Patience is how long a duplicate waits for its twin's transaction before it is sent to come back later; meanwhile it has a connection.
	// Default 1 s. It is a limit for the whole statement: a server that takes longer to answer lets nothing run.
	Patience time.Duration
	watermillonce.Redelivery
}

// Middleware returns middleware under which each handler runs in a transaction that begin has begun. The lock is declared on a
// client that may have no store: pghold.OpenTransactions. A Harmful lock is allowed. The error says why no message could be handled
// (ErrInvalid); the database is not asked.
func Middleware[T pghold.Tx](lock *holdlock.Lock, begin func(context.Context) (T, error), opts *Options) (message.HandlerMiddleware, error) {
	switch {
	case lock == nil:
		return nil, fmt.Errorf("intx: %w", &holdlock.InvalidError{What: "lock", Value: "nil", Why: "declare one with Client.NewLock"})
	case begin == nil:
		return nil, fmt.Errorf("intx: lock %s: %w", lock.Name(), &holdlock.InvalidError{What: "begin", Value: "nil", Why: "it begins a transaction, such as Begin of a pool"})
	}
	var o Options
	if opts != nil {
		o = *opts
	}
	if o.Patience == 0 {
		o.Patience = time.Second
	}
	for what, d := range map[string]time.Duration{"Patience": o.Patience, "Keep": o.Keep} {
		if d < 0 {
			return nil, fmt.Errorf("intx: lock %s: %w", lock.Name(), &holdlock.InvalidError{What: what, Value: d.String(), Why: "0 for the default, or a positive duration"})
		}
	}
	if _, err := lock.For("any").InTransaction(); err != nil {
		return nil, fmt.Errorf("intx: %w", err)
	}
	again, err := watermillonce.Redeliver(&o.Redelivery)
	if err != nil {
		return nil, fmt.Errorf("intx: lock %s: %w", lock.Name(), err)
	}
	return func(h message.HandlerFunc) message.HandlerFunc {
		return again(func(msg *message.Message) ([]*message.Message, error) {
			made, err := handle(lock, begin, &o, msg, h)
			if err == nil {
				return made, nil
			}
			var from *origin.Error
			if !errors.As(err, &from) {
				err = &origin.Error{Ours: err}
			}
			return nil, fmt.Errorf("message %.60q: %w", msg.UUID, err)
		})
	}, nil
}

// handle runs the handler for one delivery, or says why not. What the handler itself has returned is in an *origin.Error.
func handle[T pghold.Tx](lock *holdlock.Lock, begin func(context.Context) (T, error), o *Options, msg *message.Message, h message.HandlerFunc) ([]*message.Message, error) {
	job, err := watermillonce.JobOf(lock, &watermillonce.Options{Key: o.Key}, msg)
	if err != nil {
		return nil, err
	}
	input, err := watermillonce.InputOf(&watermillonce.Options{Input: o.Input}, msg)
	if err != nil {
		return nil, err
	}
	ctx := msg.Context()
	tx, err := begin(ctx)
	if err != nil {
		return nil, fmt.Errorf("job %s/%s: the transaction cannot begin: %w: %w", job.Name(), job.Key(), holdlock.ErrUnreachable, err)
	}
	open := true
	defer func() { // also on panic and Goexit
		if open {
			_ = tx.Rollback(context.WithoutCancel(ctx))
		}
	}()
	done, err := claim(ctx, tx, job, o, input)
	if err != nil {
		return nil, err
	}
	if done.Already {
		made, err := produced.Unpack(done.Result)
		if err != nil {
			return nil, fmt.Errorf("job %s/%s is done, but the messages that it returned cannot be read: %w: %w", job.Name(), job.Key(), once.ErrNoResult, err)
		}
		return made, nil
	}
	msg.SetContext(context.WithValue(ctx, txKey{}, tx))
	defer msg.SetContext(ctx)
	made, err := h(msg)
	if err != nil {
		return nil, &origin.Error{Handler: err} // what was made belongs to what is rolled back
	}
	kept, err := produced.Pack(made)
	if err != nil {
		return nil, err
	}
	if kept != nil {
		switch err := done.SetResult(ctx, kept); {
		case pghold.NotCommitted(err):
			return nil, refused(job, err)
		case err != nil:
			return nil, said(err)
		}
	}
	open = false
	switch err := tx.Commit(ctx); {
	case err == nil:
		return made, nil
	case pghold.NotCommitted(err):
		_ = tx.Rollback(context.WithoutCancel(ctx))
		return nil, refused(job, err)
	default: // the next delivery sees
		_ = tx.Rollback(context.WithoutCancel(ctx))
		return nil, fmt.Errorf("job %s/%s: whether its transaction was committed is not known: %w: %w", job.Name(), job.Key(), holdlock.ErrUnknown, err)
	}
}

// refused is the failure of a handler that has returned nil and whose transaction could not be committed: by a constraint that is checked at
// the end, a statement whose error it has passed over, or because it has ended the transaction itself.
func refused(job *holdlock.Lock, err error) error {
	return &origin.Error{Handler: fmt.Errorf("job %s/%s: its handler has returned nil, but what it did cannot be committed: %w", job.Name(), job.Key(), err)}
}

// claim writes the record, or finds the one of an earlier delivery. It waits for a twin for a moment only: it costs a connection.
func claim[T pghold.Tx](ctx context.Context, tx T, job *holdlock.Lock, o *Options, input []byte) (*pghold.Done, error) {
	patience, cancel := context.WithTimeout(ctx, o.Patience)
	defer cancel()
	done, err := pghold.Once(patience, tx, job, &pghold.OnceOptions{Keep: o.Keep, Input: input})
	switch {
	case err == nil || errors.Is(err, holdlock.ErrHeld):
		return done, err
	case errors.Is(err, pghold.ErrInput):
		return nil, fmt.Errorf("%w: %w", once.ErrOtherInput, err)
	}
	return nil, said(err)
}

// said is what the server has said to a statement of ours, in holdlock's words. The transaction is rolled back then.
func said(err error) error {
	switch {
	case errors.Is(err, pghold.ErrCanceled): // statement_timeout is shorter than Patience: its twin may be at work
		return fmt.Errorf("%w: %w (that is also how a running twin looks to a statement_timeout that is shorter than Options.Patience)", holdlock.ErrUnknown, err)
	case errors.Is(err, pghold.ErrRetry), errors.Is(err, pghold.ErrTimeout), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", holdlock.ErrUnknown, err)
	case errors.Is(err, pghold.ErrReadOnly), lostConnection(err): // a server that has failed, or was one's primary until now
		return fmt.Errorf("%w: %w", holdlock.ErrUnreachable, err)
	}
	return err
}

// lostConnection says whether it was not the server that has said no.
func lostConnection(err error) bool {
	var failed *pghold.TxError
	return errors.As(err, &failed) && failed.Code == "" && !errors.Is(err, holdlock.ErrInvalid)
}

type txKey struct{}

// Tx returns the transaction that a message's context belongs to, and the zero value if it belongs to none.
func Tx[T pghold.Tx](ctx context.Context) T {
	tx, _ := ctx.Value(txKey{}).(T)
	return tx
}
