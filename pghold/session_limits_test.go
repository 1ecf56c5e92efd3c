//go:build unix

package pghold

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/internal/testenv"
)

// A TTL that the server's idle_session_timeout cannot be is refused when the lock is declared, and the longest one works.
func TestSessionLongestTTL(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	c := openSessions(t, p.URL(), SessionOptions{Schema: migrated(t, p), OnFrozen: Expire})
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
	if d, err := NewSessionDriver(ctx, b.URL(), &SessionOptions{Schema: schema, Configure: slowly}); err == nil {
		d.Close()
		t.Fatal("the store was opened through a full pool")
	}
	heard("after the opening has failed", 1)

	// A call on a session that has no answer in time, and then the end of the program.
	d, err := NewSessionDriver(testContext(t), p.URL(), &SessionOptions{Schema: schema, Configure: slowly})
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
