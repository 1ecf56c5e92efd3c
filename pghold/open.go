package pghold

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdlock/holdlock"
)

// LeaseOptions are for Open and NewLeaseDriver; nil means all defaults.
type LeaseOptions struct {
	// Schema is where Migrate has made the tables. Default: DefaultSchema.
	Schema string

	// Namespace separates applications that share a schema: locks of different namespaces have nothing to do with each other.
	// At most 255 bytes of UTF-8. Defaults to the empty namespace, which is one like any other.
	Namespace string

	// MaxConns is how many connections the store opens at most, beside the one that listens while somebody waits. Default 4.
	// They are its own: a job that uses up its pool does not keep its lock from being renewed.
	MaxConns int

	// Configure changes how connections are made: a dialer, TLS, a password that is fetched anew each time
	// (BeforeConnect). It runs once. The mode of execution and the size of the pool are set afterwards.
	Configure func(*pgxpool.Config) error

	// Logger gets a line when hints cannot be had, so that waiters poll. Default: Client.Logger.
	Logger *slog.Logger

	// Client are the settings of the client. NewLeaseDriver uses the Logger alone.
	Client holdlock.ClientOptions
}

// Open opens the store of lease rows in a database and returns a client on it. The locks are rows with an expiry by the
// server's clock; any pooler may stand in between.
//
// dsn is what pgx takes: a URL, or name=value pairs, and what it does not say comes from the environment (PGHOST,
// PGPASSFILE, PGSSLMODE, …) as with psql; an empty one leaves all to it. Open connects, and fails if the schema has not
// been made (see Migrate), or if this is a replica or otherwise read-only. Passwords are never part of an error.
func Open(ctx context.Context, dsn string, opts *LeaseOptions) (*holdlock.Client, error) {
	if opts == nil {
		opts = &LeaseOptions{}
	}
	d, err := NewLeaseDriver(ctx, dsn, opts)
	if err != nil {
		return nil, err
	}
	c, err := holdlock.NewClient(d, &opts.Client)
	if err != nil {
		_ = d.Close()
	}
	return c, err
}

func (o *LeaseOptions) check() error {
	switch ns := o.Namespace; {
	case len(ns) > 255:
		return fmt.Errorf("pghold: the namespace has %d bytes; at most 255 are allowed", len(ns))
	case !utf8.ValidString(ns) || strings.ContainsRune(ns, 0):
		return fmt.Errorf("pghold: namespace %q is not UTF-8 without NUL", ns)
	case o.MaxConns < 0:
		return fmt.Errorf("pghold: MaxConns is %d; 0 for the default, or at least 1", o.MaxConns)
	}
	return nil
}

func (o *LeaseOptions) logger() *slog.Logger {
	switch {
	case o.Logger != nil:
		return o.Logger
	case o.Client.Logger != nil:
		return o.Client.Logger
	default:
		return slog.New(slog.DiscardHandler)
	}
}
