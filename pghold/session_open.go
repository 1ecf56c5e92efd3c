package pghold

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdlock/holdlock"
)

// Frozen says what happens to the locks of a process that stands still, while its machine and its connection live.
type Frozen uint8

// The choices.
const (
	// Block keeps them taken for as long as the process stands still: nobody else runs, and nobody runs beside it when it
	// wakes up. Client.Break with Now ends them.
	Block Frozen = iota
	// Expire has the server end the connection when it has been silent for a TTL, so that others take over, as with any
	// lease. It needs PostgreSQL 14.
	Expire
)

// SessionOptions are for OpenSessions and NewSessionDriver; nil means all defaults.
type SessionOptions struct {
	// Schema is where Migrate has made the tables. Default: DefaultSchema.
	Schema string

	// Namespace separates applications that share a schema: locks of different namespaces have nothing to do with each other.
	// At most 255 bytes of UTF-8. Defaults to the empty namespace, which is one like any other.
	Namespace string

	// OnFrozen is what happens to the locks of a process that stands still. Default: Block.
	OnFrozen Frozen

	// MaxLocks is how many locks this process may hold at once. The server has one table for the locks of everybody, and when it is full
	// all its clients fail. Default: a quarter of max_locks_per_transaction × max_connections.
	MaxLocks int

	// Configure changes how connections are made: a dialer, TLS, a password. It runs once. What the store depends on is
	// set afterwards.
	Configure func(*pgx.ConnConfig) error

	// Logger gets a line about connections that were lost. Default: Client.Logger.
	Logger *slog.Logger

	// Client are the settings of the client. NewSessionDriver uses the Logger alone.
	Client holdlock.ClientOptions
}

// OpenSessions opens the store of session locks in a database and returns a client on it. A lock is an advisory lock of a
// connection, beside a row that says who has it: it is lost as soon as the connection ends, and the work is told within
// milliseconds. All locks of one TTL share one connection, apart from the job's own.
//
// It needs connections of its own to a server that can be written: a pooler in transaction mode and a standby are
// refused, here and at once. dsn is as for Open. See docs/stores/postgres.md for what ends such a lock and what does not.
func OpenSessions(ctx context.Context, dsn string, opts *SessionOptions) (*holdlock.Client, error) {
	if opts == nil {
		opts = &SessionOptions{}
	}
	d, err := NewSessionDriver(ctx, dsn, opts)
	if err != nil {
		return nil, err
	}
	c, err := holdlock.NewClient(d, &opts.Client)
	if err != nil {
		_ = d.Close()
		return nil, err
	}
	return c, nil
}

func (o *SessionOptions) check() error {
	switch {
	case o.OnFrozen > Expire:
		return fmt.Errorf("pghold: OnFrozen is %d; Block or Expire", o.OnFrozen)
	case o.MaxLocks < 0:
		return fmt.Errorf("pghold: MaxLocks is %d; 0 for the default, or at least 1", o.MaxLocks)
	}
	return nil
}

// rows are the options for the driver of lease rows that a session driver is built on.
func (o *SessionOptions) rows() *LeaseOptions {
	return &LeaseOptions{
		Schema: o.Schema, Namespace: o.Namespace, MaxConns: 2, Logger: o.Logger, Client: o.Client,
		Configure: func(p *pgxpool.Config) error {
			if o.Configure == nil {
				return nil
			}
			return o.Configure(p.ConnConfig)
		},
	}
}
