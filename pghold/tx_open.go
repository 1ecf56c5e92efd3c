package pghold

import (
	"context"
	"fmt"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

// TxOptions are for OpenTransactions; nil means all defaults.
type TxOptions struct {
	// Schema is where Migrate has made the tables; only Once needs them. Default "holdlock".
	Schema string
	// Namespace separates applications that share a database, as that of a store does. Defaults to the empty namespace.
	Namespace string
	// Client are the settings of the client: its Observer and Logger hear of every use.
	Client holdlock.ClientOptions
}

// OpenTransactions returns a client for programs whose locks live in transactions only: it declares locks, for Lock,
// TryLock, LockRow, TryLockRow and Once, and tells its observer about them. It connects to nothing. Do, Acquire
// and TryAcquire of its locks fail: there is no store that a lease could live in. Locks that are declared by Open or
// OpenSessions can be used in transactions too.
func OpenTransactions(opts *TxOptions) (*holdlock.Client, error) {
	if opts == nil {
		opts = &TxOptions{}
	}
	schema, err := checkSchema(opts.Schema)
	if err != nil {
		return nil, err
	}
	return holdlock.NewClient(txOnly{schema: schema, namespace: opts.Namespace}, &opts.Client)
}

// txOnly is the driver of a client without a store.
type txOnly struct{ schema, namespace string }

func (d txOnly) place() (schema, namespace string) { return d.schema, d.namespace }

func (d txOnly) Traits() driver.Traits {
	return driver.Traits{
		Name: "postgres-tx", Location: fmt.Sprintf("transactions in PostgreSQL, schema %s, namespace %q", d.schema, d.namespace),
		Scope: driver.Cluster, Fencing: driver.NoTokens, Forgets: driver.NeverAlone, Clock: driver.MonotonicClock,
		MinTTL: 100 * time.Millisecond, Prompt: true, FrozenBlocks: true, Transactional: true,
	}
}

var errNoStore = fmt.Errorf("this client declares locks for transactions and has no store for leases; "+
	"use pghold.Lock or pghold.Once with your transaction, or open a store (%w, %w)", holdlock.ErrUnsupported, driver.ErrNotApplied)

func (txOnly) Acquire(context.Context, *driver.AcquireRequest) (driver.Grant, error) {
	return driver.Grant{}, errNoStore
}

func (txOnly) Renew(context.Context, *driver.RenewRequest) (driver.Grant, error) {
	return driver.Grant{}, errNoStore
}
func (txOnly) Release(context.Context, *driver.ReleaseRequest) error { return errNoStore }
func (txOnly) Close() error                                          { return nil }
