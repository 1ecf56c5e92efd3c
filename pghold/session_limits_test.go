//go:build unix

package pghold

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// A TTL that the server's idle_session_timeout cannot be is refused when the lock is declared, and the longest one works.
func TestSessionLongestTTL(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	c := openSessions(t, p.URL(), SessionOptions{Schema: migrated(t, p), Namespace: fmt.Sprint("longest ", namespaces.Add(1)), OnFrozen: Expire})
	longest := c.Traits().MaxTTL
	_, err := c.NewLock("job", &holdlock.LockOptions{TTL: longest + time.Second})
	if !errors.Is(err, holdlock.ErrInvalid) {
		t.Errorf("a TTL of %v: %v, want ErrInvalid", longest+time.Second, err)
	}
	l, err := c.NewLock("job", &holdlock.LockOptions{TTL: longest})
	must(t, err)
	lease, err := l.TryAcquire(testContext(t))
	must(t, err)
	must(t, lease.Release(testContext(t)))
}

// A server that has no room for another connection has certainly granted nothing.
func TestNoConnectionLeft(t *testing.T) {
	t.Parallel()
	p := testenv.StartPostgres(t, "max_connections=8", "superuser_reserved_connections=0")
	schema := migrated(t, p)
	d := leaseDriver(t, p.URL(), schema, LeaseOptions{})
	p.Do(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'")
	full := false
	for range 100 {
		conn, err := pgx.Connect(testContext(t), p.URL())
		if full = code(err) == tooManyConnections; full {
			break
		}
		must(t, err)
		defer conn.Close(context.Background())
	}
	testenv.Eventually(t, "the store finds the server full", func() bool { // its own connection has ended, which it may see at the first call only
		_, err := d.Acquire(testContext(t), leaseRequest("job", time.Minute))
		if err == nil || code(err) != tooManyConnections {
			return false
		}
		if !errors.Is(err, driver.ErrNotApplied) {
			t.Errorf("%v; want that nothing was changed", err)
		}
		return true
	})
	if !full {
		t.Error("the server is not full, so this test tells nothing")
	}
}

// cancels counts the cancel requests of a program.
type cancels struct{ sent, heard atomic.Int64 }

// overheard is a connection on which a cancel request is noticed. The server closes it once it has heard it.
type overheard struct {
	net.Conn
	all      *cancels
	isCancel atomic.Bool
}

func (c *overheard) Write(b []byte) (int, error) {
	if len(b) >= 8 && binary.BigEndian.Uint32(b[4:]) == 80877102 {
		c.all.sent.Add(1)
		c.isCancel.Store(true)
	}
	return c.Conn.Write(b)
}

func (c *overheard) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err == io.EOF && c.isCancel.Swap(false) {
		c.all.heard.Add(1)
	}
	return n, err
}

// A call that is given up is cancelled at the server, over a connection of its own. pgbouncer before 1.19 ends itself if that is
// closed before it was heard, so opening and closing wait for it: the process may end right behind them.
func TestCancelIsHeard(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	b := testenv.StartPgbouncer(t, p, "session", "default_pool_size = 1")
	ns := fmt.Sprint("cancel ", namespaces.Add(1))
	var all cancels
	slowly := func(c *pgx.ConnConfig) error {
		dial := c.DialFunc
		c.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			time.Sleep(50 * time.Millisecond) // so that who does not wait is found out
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &overheard{Conn: conn, all: &all}, nil
		}
		return nil
	}
	heard := func(when string, atLeast int64) {
		t.Helper()
		if sent, heard := all.sent.Load(), all.heard.Load(); sent != heard || sent < atLeast {
			t.Errorf("%s: %d cancel requests were sent, and %d heard; want %d at least, and all", when, sent, heard, atLeast)
		}
	}
	occupant := connect(t, b.URL())
	_, err := occupant.Exec(testContext(t), "SELECT 1")
	must(t, err)

	// The pool is full: the first statement waits in the pooler's line.
	ctx, cancel := context.WithTimeout(testContext(t), time.Second)
	defer cancel()
	if d, err := NewSessionDriver(ctx, b.URL(), &SessionOptions{Schema: schema, Namespace: ns, Configure: slowly}); err == nil {
		d.Close()
		t.Fatal("the store was opened through a full pool")
	}
	heard("after the opening has failed", 1)

	// A call on a session that has no answer in time, and then the end of the program.
	d, err := NewSessionDriver(testContext(t), p.URL(), &SessionOptions{Schema: schema, Namespace: ns, Configure: slowly})
	must(t, err)
	mustGrant(t, d, leaseRequest("job", time.Second))
	blocker := connect(t, p.URL())
	tx, err := blocker.Begin(testContext(t))
	must(t, err)
	_, err = tx.Exec(testContext(t), inSchema(`LOCK TABLE "holdlock".lease`, schema))
	must(t, err)
	if _, err := d.Acquire(testContext(t), leaseRequest("other", time.Second)); err == nil {
		t.Error("a lock was granted without a row")
	}
	must(t, d.Close())
	heard("after Close", 2)
	must(t, tx.Rollback(testContext(t)))
}

// pgx prepares statements by default, which a pooler in transaction mode gives to the wrong client. The error says what to do, and
// doing it helps.
func TestTransactionsBehindAPooler(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	l, _ := declared(t, migrated(t, p))
	b := testenv.StartPgbouncer(t, p, "transaction", "default_pool_size = 1")
	lock := func(mode string) (err error) {
		for range 2 { // two clients that share a connection
			conn := connect(t, b.URL("default_query_exec_mode="+mode))
			err = pgx.BeginFunc(testContext(t), conn, func(tx pgx.Tx) error { return Lock(testContext(t), tx, l) })
			if err != nil {
				return err
			}
		}
		return nil
	}
	if err := lock("cache_statement"); code(err) != "42P05" || !strings.Contains(err.Error(), "QueryExecModeExec") {
		t.Errorf("with prepared statements: %v; want 42P05, and what to do", err)
	}
	for _, mode := range []string{"exec", "simple_protocol"} {
		if err := lock(mode); err != nil {
			t.Errorf("with %s: %v", mode, err)
		}
	}
}
