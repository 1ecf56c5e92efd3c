//go:build unix

package pghold

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// Nothing stays locked after an unlock with an ended context, a panic or an error of the job; and the job has a pool
// of one connection to itself.
func TestNothingStaysLockedOnASession(t *testing.T) {
	t.Parallel()
	p := testenv.StartPostgres(t)
	c := openSessions(t, p.URL(), SessionOptions{Schema: migrated(t, p)})
	pool := newPool(t, p.URL(), 1)
	locks := func() string {
		return p.Do(t, "SELECT count(*) FROM pg_locks k JOIN pg_stat_activity a USING (pid) WHERE k.locktype = 'advisory' AND a.application_name = '"+sessionName+"'")
	}
	for name, work := range map[string]func(ctx context.Context, cancel func()) error{
		"error": func(context.Context, func()) error { return errFails },
		"panic": func(context.Context, func()) error { panic(errFails) },
		"ended": func(_ context.Context, cancel func()) error { cancel(); return errFails },
	} {
		ctx, cancel := context.WithCancel(testContext(t))
		err := func() (err error) {
			defer func() {
				if r := recover(); r != nil {
					err = r.(error)
				}
			}()
			return lockOf(t, c, time.Minute).Do(ctx, func(ctx context.Context, _ *holdlock.Lease) error {
				if got := locks(); got != "1" {
					t.Errorf("%s: %s advisory locks while the work runs", name, got)
				}
				return errors.Join(pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
					_, err := tx.Exec(ctx, "SELECT 1")
					return err
				}), work(ctx, cancel))
			})
		}()
		if !errors.Is(err, errFails) {
			t.Errorf("%s: %v", name, err)
		}
		if got := locks(); got != "0" {
			t.Errorf("%s: %s advisory locks afterwards", name, got)
		}
		cancel()
	}
}

// An index is built concurrently under a lock while others wait for it. They have no snapshot that it would wait for.
func TestIndexUnderALockWithWaiters(t *testing.T) {
	t.Parallel()
	p := testenv.StartPostgres(t)
	schema := migrated(t, p)
	p.Do(t, "CREATE TABLE big AS SELECT i FROM generate_series(1, 10000) AS i")
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	c := openSessions(t, p.URL(), SessionOptions{Schema: schema})
	l := lockOf(t, c, time.Minute)
	lease, err := l.TryAcquire(ctx)
	must(t, err)
	done := make(chan error, 20)
	for range 20 {
		go func() {
			lease, err := l.Acquire(ctx)
			if err == nil {
				err = lease.Release(context.Background())
			}
			done <- err
		}()
	}
	testenv.Eventually(t, "20 wait", func() bool {
		return p.Do(t, inSchema(`SELECT count(*) FROM "holdlock".waiter`, schema)) == "20"
	})
	conn := connect(t, p.URL())
	_, err = conn.Exec(ctx, "CREATE INDEX CONCURRENTLY ON big (i)")
	must(t, err)
	must(t, lease.Release(ctx))
	for range 20 {
		must(t, <-done)
	}

	// The control: one waiter in pg_advisory_lock is enough to hold it up.
	held, waiter := connect(t, p.URL()), connect(t, p.URL())
	_, err = held.Exec(ctx, "SELECT pg_advisory_lock(1)")
	must(t, err)
	waited := make(chan error, 1)
	go func() {
		_, err := waiter.Exec(ctx, "SELECT pg_advisory_lock(1)")
		waited <- err
	}()
	testenv.Eventually(t, "one waits", func() bool { return p.Do(t, "SELECT count(*) FROM pg_locks WHERE NOT granted") == "1" })
	_, err = conn.Exec(ctx, "SET statement_timeout = '2s'")
	must(t, err)
	if _, err = conn.Exec(ctx, "CREATE INDEX CONCURRENTLY ON big (i)"); err == nil {
		t.Error("an index was built beside a waiter in pg_advisory_lock, so this test tells nothing")
	}
	_, err = held.Exec(ctx, "SELECT pg_advisory_unlock(1)")
	must(t, errors.Join(err, <-waited))
}

// A program that asks for 100,000 locks meets its own limit, and nobody beside it notices.
func TestSessionCap(t *testing.T) {
	t.Parallel()
	p := testenv.StartPostgres(t, "max_connections=30", "max_locks_per_transaction=20")
	schema := migrated(t, p)
	d := sessionDriver(t, p.URL(), schema, SessionOptions{})
	if d.maxLocks != 20*30/4 {
		t.Errorf("the limit is %d", d.maxLocks)
	}
	probe := connect(t, p.URL())
	var refused error
	granted := 0
	ctx := testContext(t)
	for i := range 100_000 {
		_, err := d.Acquire(ctx, leaseRequest(fmt.Sprint(i), time.Minute))
		switch {
		case err == nil:
			granted++
		case !errors.Is(err, errCap) || !errors.Is(err, driver.ErrNotApplied):
			t.Fatal(err)
		default:
			refused = err
		}
		if i%1000 == 0 { // others need many locks in one transaction
			_, err := probe.Exec(ctx, "BEGIN; SELECT count(pg_advisory_xact_lock(i)) FROM generate_series(1, 150) AS i; COMMIT")
			must(t, err)
		}
	}
	t.Logf("%d granted; then: %v", granted, refused)
	if granted != d.maxLocks || !strings.Contains(refused.Error(), "max_locks_per_transaction") {
		t.Errorf("%d granted, then %v", granted, refused)
	}

	// The control: without the limit the server's table fills up. That hurts this program alone, as it were, and says so.
	greedy := sessionDriver(t, p.URL(), schema, SessionOptions{MaxLocks: 1_000_000})
	var err error
	for i := 0; err == nil && i < 100_000; i++ {
		_, err = greedy.Acquire(ctx, leaseRequest(fmt.Sprint("more ", i), time.Minute))
	}
	var full *pgconn.PgError
	if !errors.As(err, &full) || full.Code != "53200" || !errors.Is(err, driver.ErrNotApplied) {
		t.Errorf("without a limit: %v", err)
	}
}

// 500 locks of one TTL need one connection.
func TestSessionConnections(t *testing.T) {
	t.Parallel()
	p := testenv.StartPostgres(t)
	d := sessionDriver(t, p.URL(), migrated(t, p), SessionOptions{})
	var reqs []*driver.RenewRequest
	for i := range 500 {
		req := leaseRequest(fmt.Sprint(i), time.Minute)
		_, err := d.Acquire(testContext(t), req)
		must(t, err)
		reqs = append(reqs, &driver.RenewRequest{Ref: req.Ref, TTL: time.Minute})
	}
	for _, r := range d.RenewBatch(testContext(t), reqs) {
		must(t, r.Err)
	}
	sessions := p.Do(t, "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'holdlock%'")
	locks := p.Do(t, "SELECT count(*) FROM pg_locks k JOIN pg_stat_activity a USING (pid) WHERE k.locktype = 'advisory' AND a.application_name = '"+sessionName+"'")
	t.Logf("%s advisory locks on %s connections in all", locks, sessions)
	if locks != "500" || sessions > "3" || len(sessions) > 1 {
		t.Errorf("%s advisory locks on %s connections", locks, sessions)
	}
}

// Defaults of the user or the database do not matter, or are refused with a reason.
func TestSessionUnderOtherSettings(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	for _, setting := range []string{
		"default_transaction_isolation=serializable", "default_transaction_isolation=repeatable\\ read", "search_path=nowhere",
		"statement_timeout=1000", "lock_timeout=1000", "idle_session_timeout=1000", "idle_in_transaction_session_timeout=1000",
	} {
		d, err := NewSessionDriver(testContext(t), p.URL("options=-c "+setting), &SessionOptions{Schema: schema, Namespace: setting})
		must(t, err)
		req := leaseRequest("k", time.Minute)
		if _, err := d.Acquire(testContext(t), req); err != nil {
			t.Errorf("%s: %v", setting, err)
		}
		d.NotifyLoss(req.Ref, func(err error) { t.Errorf("%s: lost: %v", setting, err) })
		time.Sleep(1500 * time.Millisecond)
		if err := d.Release(testContext(t), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
			t.Errorf("%s: %v", setting, err)
		}
		d.Close()
	}
	_, err := NewSessionDriver(testContext(t), p.URL("options=-c default_transaction_read_only=on"), &SessionOptions{Schema: schema})
	if !errors.Is(err, errReadOnly) {
		t.Errorf("with default_transaction_read_only: %v", err)
	}
}

// The settings of a connection have limits in the system below; a long TTL must stay within them.
func TestSessionOfALongTTL(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	d := sessionDriver(t, p.URL(), migrated(t, p), SessionOptions{})
	for _, ttl := range []time.Duration{time.Hour, 12 * time.Hour, 24 * time.Hour, 7 * 24 * time.Hour, 60 * 24 * time.Hour} {
		req := leaseRequest(ttl.String(), ttl)
		if _, err := d.Acquire(testContext(t), req); err != nil {
			t.Errorf("TTL %s: %v", ttl, err)
			continue
		}
		must(t, d.Release(testContext(t), &driver.ReleaseRequest{Ref: req.Ref}))
	}
}

// 200 who wait cost a process two connections and next to no statements.
func TestSessionIdleWaiters(t *testing.T) {
	t.Parallel()
	p := testenv.StartPostgres(t)
	schema := migrated(t, p)
	var pieces atomic.Int64
	x := testenv.StartProxy(t, p.Addr, func(up bool, _ []byte) testenv.Verdict {
		if up {
			pieces.Add(1)
		}
		return testenv.Pass
	})
	holder := openSessions(t, p.URL(), SessionOptions{Schema: schema, Namespace: "idle"})
	lease, err := lockOf(t, holder, time.Minute).TryAcquire(testContext(t))
	must(t, err)
	p.Do(t, "CREATE ROLE waiting SUPERUSER LOGIN")
	d := sessionDriver(t, strings.Replace(through(p, x), "postgres@", "waiting@", 1), schema, SessionOptions{Namespace: "idle"})
	c, err := holdlock.NewClient(d, nil)
	must(t, err)
	defer c.Shutdown(context.Background())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 200)
	for i := range 200 {
		go func() {
			lease, err := lockOf(t, c, time.Minute).Acquire(ctx)
			if err == nil {
				_ = lease.Release(ctx)
			}
			ended <- err
		}()
		if i%20 == 19 { // a call that takes too long on a busy machine would make its caller poll
			testenv.Eventually(t, "they wait", func() bool {
				return p.Do(t, inSchema(`SELECT count(*) FROM "holdlock".waiter`, schema)) == fmt.Sprint(i+1)
			})
		}
	}
	conns := func() string { return p.Do(t, "SELECT count(*) FROM pg_stat_activity WHERE usename = 'waiting'") }
	d.rows.pool.Reset() // what was needed to begin with is closed, as it is after 15 s
	testenv.Eventually(t, "two connections are left", func() bool { return conns() <= "2" })
	rate := testenv.AtRest(2, 8, pieces.Load)
	t.Logf("200 waiters: %.2f statements a second, %s connections", rate, conns())
	if rate > 2 || conns() > "2" {
		t.Errorf("%.2f statements a second, %s connections", rate, conns())
	}
	cancel()
	for range 200 {
		<-ended
	}
	must(t, lease.Release(testContext(t)))
}
