package pghold

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdlock/holdlock/driver"
)

// A LeaseDriver is one program's access to the lease rows. It implements driver.Driver, BatchRenewer, Waiter, Lister,
// Breaker, Journal and Ledger, and is safe for concurrent use.
//
// Each step is one call of a function in the schema, in one statement that is a transaction: one round trip. The statement
// is sent with its parameters and nothing is prepared that outlives it, so any pooler may stand in between.
type LeaseDriver struct {
	pool      *pgxpool.Pool
	schema    string
	namespace string
	traits    driver.Traits
	log       *slog.Logger
	sql       leaseSQL

	// explicit: the default isolation of this user is not READ COMMITTED, so each step says which it needs.
	explicit atomic.Bool

	hub       *hub
	refusals  refusals
	collector collector
	notebook  notebook

	open      context.Context // ends with Close
	shut      context.CancelFunc
	closeOnce sync.Once
}

var _ interface {
	driver.Driver
	driver.BatchRenewer
	driver.Waiter
	driver.Lister
	driver.Breaker
	driver.Journal
	driver.Ledger
} = (*LeaseDriver)(nil)

const (
	defaultMaxConns = 4
	connIdle        = 30 * time.Second // after which a connection that is not needed is closed
	pingAfter       = 2 * time.Second  // a connection that was idle for longer is tried before it is used
	closeWait       = time.Second      // for the connections of a server that hangs
	openBudget      = 10 * time.Second // for NewLeaseDriver, if its ctx has no end
)

// NewLeaseDriver opens the store of lease rows for combinators and tests; programs use Open, which see.
func NewLeaseDriver(ctx context.Context, dsn string, opts *LeaseOptions) (*LeaseDriver, error) {
	return newLeaseDriver(ctx, dsn, opts, connIdle)
}

func newLeaseDriver(ctx context.Context, dsn string, opts *LeaseOptions, idle time.Duration) (*LeaseDriver, error) {
	if opts == nil {
		opts = &LeaseOptions{}
	}
	if err := opts.check(); err != nil {
		return nil, err
	}
	schema, err := checkSchema(opts.Schema)
	if err != nil {
		return nil, err
	}
	config, err := leaseConfig(dsn, opts)
	if err != nil {
		return nil, err
	}
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, openBudget)
		defer cancel()
	}
	config.MaxConnIdleTime, config.HealthCheckPeriod = idle, 2*idle
	// The pool uses its context for connections that it makes later, too.
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), config)
	if err != nil {
		return nil, fmt.Errorf("pghold: %w", err)
	}
	d := &LeaseDriver{pool: pool, schema: schema, namespace: opts.Namespace, log: opts.logger(), sql: newLeaseSQL(schema)}
	d.open, d.shut = context.WithCancel(context.Background())
	where := location(config.ConnConfig)
	facts, err := d.lookAround(ctx)
	if err != nil {
		d.shut()
		d.closePool()
		return nil, fmt.Errorf("pghold: opening %s: %w", where, Refusal(err))
	}
	d.traits = LeaseTraits(facts.durable)
	d.traits.Records = facts.records
	d.traits.Location = fmt.Sprintf("postgres %s, schema %s", where, schema)
	if opts.Namespace != "" {
		d.traits.Location += fmt.Sprintf(", namespace %q", opts.Namespace)
	}
	d.explicit.Store(!facts.readCommitted)
	d.hub = newHub(d)
	d.collector.start()
	return d, nil
}

// checkDSN refuses a URL in which part of a password would be taken for a host, and so be printed.
func checkDSN(dsn string) error {
	_, rest, ok := strings.Cut(dsn, "://")
	authority, _, _ := strings.Cut(rest, "/")
	if ok && strings.Count(authority, "@") > 1 {
		return errors.New("pghold: the URL has more than one @ before the database: write %40 for those in the user or the password")
	}
	return nil
}

// leaseConfig reads the DSN and fixes what the store depends on.
func leaseConfig(dsn string, opts *LeaseOptions) (*pgxpool.Config, error) {
	if err := checkDSN(dsn); err != nil {
		return nil, err
	}
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("pghold: %w", err) // pgx masks the password
	}
	if _, named := config.ConnConfig.RuntimeParams["application_name"]; !named {
		config.ConnConfig.RuntimeParams["application_name"] = "holdlock"
	}
	if opts.Configure != nil {
		if err := opts.Configure(config); err != nil {
			return nil, err
		}
	}
	c := config.ConnConfig
	c.DefaultQueryExecMode = execMode
	c.StatementCacheCapacity, c.DescriptionCacheCapacity = 0, 0
	if c.ValidateConnect == nil && hostsDiffer(c) {
		c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite // of several hosts only one can be written
	}
	c.ConnectTimeout = min(c.ConnectTimeout, openBudget) // pgx: two minutes
	config.MaxConns = int32(cmp.Or(opts.MaxConns, defaultMaxConns))
	// Each check of the pool turns its order around, so they must be rare for connections to be idle at all.
	config.MinConns, config.MinIdleConns = 0, 0
	config.MaxConnIdleTime, config.HealthCheckPeriod = connIdle, 2*connIdle
	config.ShouldPing = func(_ context.Context, p pgxpool.ShouldPingParams) bool { return p.IdleDuration > pingAfter }
	return config, nil
}

// hostsDiffer says whether several servers are named, not one that is tried with and without TLS.
func hostsDiffer(c *pgx.ConnConfig) bool {
	for _, f := range c.Fallbacks {
		if f.Host != c.Host || f.Port != c.Port {
			return true
		}
	}
	return false
}

// location names the database to people, without secrets.
func location(c *pgx.ConnConfig) string {
	var hosts []string
	add := func(host string, port uint16) {
		h := net.JoinHostPort(host, strconv.Itoa(int(port)))
		if strings.HasPrefix(host, "/") {
			h = host + ":" + strconv.Itoa(int(port))
		}
		if len(hosts) == 0 || hosts[len(hosts)-1] != h {
			hosts = append(hosts, h)
		}
	}
	add(c.Host, c.Port)
	for _, f := range c.Fallbacks {
		add(f.Host, f.Port)
	}
	return strings.Join(hosts, ",") + "/" + c.Database
}

// facts are what is asked of the server when the store is opened.
type facts struct {
	durable       bool // what is committed is on disk
	readCommitted bool // is the default
	records       driver.Keeping
}

func (d *LeaseDriver) lookAround(ctx context.Context) (f facts, err error) {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return f, err
	}
	defer conn.Release()
	var replica, readOnly, fsync, standbys bool
	var isolation, commit, awaited string
	err = conn.QueryRow(ctx, `SELECT pg_catalog.pg_is_in_recovery(), pg_catalog.current_setting('default_transaction_read_only')::boolean,
		pg_catalog.current_setting('default_transaction_isolation'), pg_catalog.current_setting('synchronous_commit'),
		pg_catalog.current_setting('fsync')::boolean, pg_catalog.current_setting('synchronous_standby_names'),
		EXISTS (SELECT FROM pg_catalog.pg_stat_replication)`).
		Scan(&replica, &readOnly, &isolation, &commit, &fsync, &awaited, &standbys)
	switch {
	case err != nil:
		return f, err
	case replica:
		return f, fmt.Errorf("%w: it is a replica (in recovery); name the primary, or all hosts with target_session_attrs=read-write", errReadOnly)
	case readOnly:
		return f, fmt.Errorf("%w: default_transaction_read_only is on for this user or database; locks have to be written", errReadOnly)
	}
	f.durable = fsync && commit != "off"
	f.readCommitted = isolation == "read committed"
	f.records = recordKeeping(fsync, commit, awaited, standbys)
	return f, checkLayout(ctx, conn, d.schema)
}

// Traits implements driver.Driver.
func (d *LeaseDriver) Traits() driver.Traits { return d.traits }

// Close implements driver.Driver. Calls that are under way fail. If the server hangs, what is left of the connections goes
// within 15 s.
func (d *LeaseDriver) Close() error {
	d.closeOnce.Do(func() {
		d.shut()
		d.hub.close()
		d.collector.wait()
		d.notebook.close()
		d.closePool()
	})
	return nil
}

// closePool closes the connections and waits until the server has heard which calls were given up (see hangUp). pgx gives one that does
// not answer 15 s.
func (d *LeaseDriver) closePool() {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		d.pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(closeWait):
	}
}

// usable says why a call cannot be made.
func (d *LeaseDriver) usable(ctx context.Context, verb, key string) error {
	err := ctx.Err()
	if d.open.Err() != nil {
		err = driver.ErrClosed
	}
	if err != nil {
		return fmt.Errorf("pghold: %s %q: %w (%w)", verb, key, err, driver.ErrNotApplied)
	}
	return nil
}

// step runs one statement as a transaction of its own, in one round trip, and has scan read its rows.
func (d *LeaseDriver) step(ctx context.Context, verb, key, sql string, args []any, scan func(pgx.Rows) error) error {
	if err := d.usable(ctx, verb, key); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.open, cancel)()
	err := d.send(ctx, d.explicit.Load(), sql, args, scan)
	for try := range time.Duration(stepTries - 1) {
		switch code(err) {
		case serializationFailure: // the default isolation has been changed since
			d.explicit.Store(true)
		case deadlockDetected: // with somebody else's transaction: our own steps lock in one order
			select { // so that the other one gets on, and this is not the next deadlock
			case <-time.After((try + 1) * afterDeadlock):
			case <-ctx.Done():
			}
		default:
			return d.stepFailure(ctx, verb, key, err)
		}
		err = d.send(ctx, d.explicit.Load(), sql, args, scan) // nothing was done, so it is done once more
	}
	return d.stepFailure(ctx, verb, key, err)
}

// stepFailure says why a step failed; nil if it did not.
func (d *LeaseDriver) stepFailure(ctx context.Context, verb, key string, err error) error {
	if err == nil {
		return nil
	}
	switch {
	case d.open.Err() != nil:
		err = fmt.Errorf("%w: %w", driver.ErrClosed, err)
	case ctx.Err() != nil && !errors.Is(err, ctx.Err()):
		err = fmt.Errorf("%w: %w", ctx.Err(), err)
	}
	return leaseFailure(verb, key, err)
}

const (
	stepTries     = 3 // how often a step is sent that the server has rolled back because of others
	afterDeadlock = 100 * time.Millisecond
)

// send runs the statement. A connection on which anything went wrong but the server's refusal is closed by pgx and not
// used again.
func (d *LeaseDriver) send(ctx context.Context, explicit bool, sql string, args []any, scan func(pgx.Rows) error) error {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return &unsentError{err}
	}
	defer conn.Release()
	if !explicit {
		rows, err := conn.Query(ctx, sql, args...)
		return read(rows, err, scan)
	}
	var b pgx.Batch
	b.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	b.Queue(sql, args...)
	b.Queue("COMMIT")
	results := conn.SendBatch(ctx, &b)
	if _, err = results.Exec(); err == nil {
		rows, qerr := results.Query()
		if err = read(rows, qerr, scan); err == nil {
			_, err = results.Exec()
		}
	}
	return cmp.Or(err, results.Close())
}

func read(rows pgx.Rows, err error, scan func(pgx.Rows) error) error {
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return err
		}
	}
	rows.Close()
	return rows.Err()
}
