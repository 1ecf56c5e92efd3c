package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/cmd/lab/resource"
	"github.com/holdlock/holdlock/pghold"
)

// Log is the log of a resource that is a database: what jobs have done in transactions that were committed. A row that was
// rolled back was never there, like the effect that it stands beside.
const Log = `CREATE TABLE lab_log (
	seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(),
	what text NOT NULL, job text NOT NULL, worker text NOT NULL, ended text NOT NULL
)`

// transactions are run-once jobs whose record is part of the job's own transaction.
type transactions struct {
	cfg   Config
	locks *holdlock.Client
	lock  *holdlock.Lock
	conn  *pgx.Conn
}

func openTransactions(cfg Config) (*transactions, error) {
	locks, err := pghold.OpenTransactions(nil)
	if err != nil {
		return nil, err
	}
	lock, err := locks.NewLock(lockName, &holdlock.LockOptions{Purpose: "an experiment", DoubleRun: holdlock.Harmful})
	return &transactions{cfg: cfg, locks: locks, lock: lock}, err
}

// acquire begins the transaction of the job. It always waits for one that is under way.
func (t *transactions) acquire(ctx context.Context, s Step) (hold, error) {
	cfg, err := pgx.ParseConfig(t.cfg.Postgres)
	if err != nil {
		return nil, err
	}
	cfg.RuntimeParams["application_name"] = t.cfg.Name // by which the lab finds out that it waits
	if t.conn, err = pgx.ConnectConfig(ctx, cfg); err != nil {
		return nil, err
	}
	tx, err := t.conn.Begin(ctx)
	if err != nil {
		return nil, err
	}
	done, err := pghold.Once(ctx, tx, t.lock.For(s.Job), nil)
	if err == nil && done.Already {
		err = fmt.Errorf("%w: since %s", errAlready, done.At.Format(time.TimeOnly))
	}
	if err != nil {
		_ = tx.Rollback(ctx)
		return nil, err
	}
	return &transactionHold{tx: tx}, nil
}

func (t *transactions) close() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if t.conn != nil {
		_ = t.conn.Close(ctx)
	}
	_ = t.locks.Shutdown(ctx)
}

type transactionHold struct {
	tx       pgx.Tx
	rollback bool
}

func (h *transactionHold) token() uint64        { return 0 }
func (h *transactionHold) until() time.Duration { return resource.Always }

// check asks nothing: if the transaction is over, its writes fail.
func (h *transactionHold) check() error { return errUnchecked }

func (h *transactionHold) send(ctx context.Context, e resource.Entry) error {
	if e.What == resource.End && e.Ended != resource.Done {
		h.rollback = true
		return nil
	}
	_, err := h.tx.Exec(ctx, "INSERT INTO lab_log (what, job, worker, ended) VALUES ($1, $2, $3, $4)", string(e.What), e.Job, e.Worker, e.Ended)
	return err
}

func (h *transactionHold) release(ctx context.Context) error {
	if h.rollback {
		return h.tx.Rollback(ctx)
	}
	if err := h.tx.Commit(ctx); err != nil {
		return fmt.Errorf("not committed: %w", err)
	}
	return nil
}
