//go:build unix

package pghold

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/internal/testenv"
)

// A way is a library by which programs have transactions. Every test of locks in transactions runs on each.
type way struct {
	name  string
	begin func(t *testing.T, level string) Tx
}

// ways returns all of them on one server. Every transaction has a connection of its own.
func ways(t *testing.T, p *testenv.Postgres) []way {
	t.Helper()
	pool := newPool(t, p.URL(), 20)
	db := sql.OpenDB(stdlib.GetConnector(*mustParse(t, p.URL())))
	t.Cleanup(func() { db.Close() })
	levels := map[string]sql.IsolationLevel{
		"": sql.LevelDefault, "repeatable read": sql.LevelRepeatableRead, "serializable": sql.LevelSerializable,
	}
	return []way{
		{"pgx", func(t *testing.T, level string) Tx {
			tx, err := pool.BeginTx(testContext(t), pgx.TxOptions{IsoLevel: pgx.TxIsoLevel(level)})
			must(t, err)
			t.Cleanup(func() { tx.Rollback(context.Background()) })
			return tx
		}},
		{"database/sql", func(t *testing.T, level string) Tx {
			tx, err := db.BeginTx(testContext(t), &sql.TxOptions{Isolation: levels[level]})
			must(t, err)
			t.Cleanup(func() { tx.Rollback() })
			return SQL(tx)
		}},
	}
}

func newPool(tb testing.TB, url string, size int32) *pgxpool.Pool {
	tb.Helper()
	conf, err := pgxpool.ParseConfig(url)
	must(tb, err)
	conf.MaxConns = size
	pool, err := pgxpool.NewWithConfig(context.Background(), conf)
	must(tb, err)
	tb.Cleanup(pool.Close)
	return pool
}

func mustParse(tb testing.TB, url string) *pgx.ConnConfig {
	tb.Helper()
	conf, err := pgx.ParseConfig(url)
	must(tb, err)
	return conf
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// is checks an error of a lock in a transaction: what it is, and that the server's own error is reached.
func is(t *testing.T, what string, err error, code string, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Errorf("%s: %v is not %v", what, err, target)
		}
	}
	var te *TxError
	if !errors.As(err, &te) || te.Code != code {
		t.Fatalf("%s: want a *TxError with code %q, got %v", what, code, err)
	}
	var pe *pgconn.PgError
	if errors.As(err, &pe) != (code != "") || pe != nil && pe.Code != code {
		t.Errorf("%s: the server's error is %v", what, pe)
	}
}

// declared returns a harmful lock of a client for transactions, and what its observer hears.
func declared(t testing.TB, schema string) (*holdlock.Lock, *observed) {
	t.Helper()
	seen := &observed{}
	c, err := OpenTransactions(&TxOptions{Schema: schema, Namespace: schema, Client: holdlock.ClientOptions{Observer: seen}})
	must(t, err)
	t.Cleanup(func() { _ = c.Shutdown(context.Background()) })
	l, err := c.NewLock("settle", &holdlock.LockOptions{DoubleRun: holdlock.Harmful, Purpose: "pays out"})
	must(t, err)
	return l, seen
}

// onEachWay runs a test on every way, each with a lock of its own.
func onEachWay(t *testing.T, f func(t *testing.T, w way, l *holdlock.Lock, seen *observed)) {
	t.Helper()
	p := testenv.SharedPostgres(t)
	for _, w := range ways(t, p) {
		t.Run(w.name, func(t *testing.T) {
			l, seen := declared(t, newSchema())
			f(t, w, l, seen)
		})
	}
}

func TestTxLock(t *testing.T) {
	t.Parallel()
	onEachWay(t, func(t *testing.T, w way, l *holdlock.Lock, seen *observed) {
		ctx := testContext(t)
		a, b := w.begin(t, ""), w.begin(t, "")
		must(t, Lock(ctx, a, l.For("k")))
		must(t, Lock(ctx, a, l.For("k"))) // again: no further effect
		must(t, TryLock(ctx, b, l.For("other")))
		err := TryLock(ctx, b, l.For("k"))
		is(t, "TryLock of a taken lock", err, "", holdlock.ErrHeld)
		must(t, TryLock(ctx, b, l.For("third"))) // it has not hurt the transaction

		got := make(chan error, 1)
		go func() { got <- Lock(ctx, b, l.For("k")) }()
		select {
		case err := <-got:
			t.Fatalf("Lock of a taken lock returned %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		must(t, a.Commit(ctx))
		must(t, <-got)
		must(t, b.Rollback(ctx))
		c := w.begin(t, "")
		must(t, TryLock(ctx, c, l.For("k"))) // a rollback gives back as well
		if g, s := seen.count(holdlock.Granted), seen.count(holdlock.Skipped); g != 6 || s != 1 {
			t.Errorf("observed: %d granted, %d skipped, want 6 and 1", g, s)
		}
		for _, e := range seen.of(holdlock.Skipped) {
			if !e.Contended || e.Unclear {
				t.Errorf("TryLock that was refused: %+v", e)
			}
		}
		unclear := 0
		for _, e := range seen.of(holdlock.Granted) {
			if e.Unclear {
				unclear++
			}
		}
		if unclear != 3 {
			t.Errorf("of %d grants it is unclear whether they waited, want the three of Lock", unclear)
		}
		if e := seen.last(); !e.InTx || e.Name != "settle" || e.Key != "k" {
			t.Errorf("observed: %+v", e)
		}
	})
}

// The deadline of the context is the server's lock_timeout for that statement, and for no other one.
func TestTxLockDeadline(t *testing.T) {
	t.Parallel()
	onEachWay(t, func(t *testing.T, w way, l *holdlock.Lock, seen *observed) {
		ctx := testContext(t)
		a, b := w.begin(t, ""), w.begin(t, "")
		must(t, Lock(ctx, a, l))
		timeout := func() (s string) {
			must(t, b.QueryRow(ctx, "SELECT current_setting('lock_timeout')").Scan(&s))
			return s
		}
		_, err := b.Exec(ctx, "SET LOCAL lock_timeout = '77s'")
		must(t, err)
		bounded, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		must(t, Lock(bounded, b, l.For("free")))
		if got := timeout(); got != "77s" {
			t.Errorf("lock_timeout is %s after a Lock, before it was 77s", got)
		}
		_, err = b.Exec(ctx, "SAVEPOINT s")
		must(t, err)
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		err = Lock(short, b, l)
		is(t, "Lock past its deadline", err, "55P03", ErrTimeout, holdlock.ErrHeld, context.DeadlineExceeded)
		is(t, "a statement after it", Lock(ctx, b, l.For("free")), "25P02", ErrAborted)
		_, err = b.Exec(ctx, "ROLLBACK TO s") // the connection has survived, and the savepoint saves the transaction
		must(t, err)
		if got := timeout(); got != "77s" {
			t.Errorf("lock_timeout is %s after the savepoint, before it was 77s", got)
		}
		// A shorter one of the caller's is respected.
		_, err = b.Exec(ctx, "SET LOCAL lock_timeout = '50ms'")
		must(t, err)
		is(t, "Lock with a lock_timeout of the caller's", Lock(bounded, b, l), "55P03", ErrTimeout)
		if seen.count(holdlock.Skipped) != 2 || seen.count(holdlock.Failed) != 1 {
			t.Errorf("observed: %d skipped, %d failed, want 2 and 1", seen.count(holdlock.Skipped), seen.count(holdlock.Failed))
		}
	})
}

// The control of the one before: without a deadline the wait has no end.
func TestTxLockWithoutDeadlineWaits(t *testing.T) {
	t.Parallel()
	onEachWay(t, func(t *testing.T, w way, l *holdlock.Lock, _ *observed) {
		a, b := w.begin(t, ""), w.begin(t, "")
		must(t, Lock(context.Background(), a, l))
		got := make(chan error, 1)
		go func() { got <- Lock(context.Background(), b, l) }()
		select {
		case err := <-got:
			t.Errorf("Lock of a taken lock returned %v", err)
		case <-time.After(500 * time.Millisecond):
		}
		must(t, a.Rollback(context.Background()))
		must(t, <-got)
	})
}

func TestTxErrors(t *testing.T) {
	t.Parallel()
	onEachWay(t, func(t *testing.T, w way, l *holdlock.Lock, seen *observed) {
		ctx := testContext(t)
		t.Run("deadlock", func(t *testing.T) {
			a, b := w.begin(t, ""), w.begin(t, "")
			must(t, Lock(ctx, a, l.For("1")))
			must(t, Lock(ctx, b, l.For("2")))
			second := make(chan error, 1)
			go func() {
				err := Lock(ctx, b, l.For("1"))
				b.Rollback(ctx)
				second <- err
			}()
			err := Lock(ctx, a, l.For("2"))
			a.Rollback(ctx)
			if other := <-second; err == nil {
				err = other
			} else if other != nil {
				t.Errorf("both have failed: %v, %v", err, other)
			}
			is(t, "the victim", err, "40P01", ErrDeadlock, ErrRetry)
		})
		t.Run("cancelled", func(t *testing.T) {
			a, b := w.begin(t, ""), w.begin(t, "")
			must(t, Lock(ctx, a, l))
			_, err := b.Exec(ctx, "SET LOCAL statement_timeout = '50ms'")
			must(t, err)
			is(t, "statement_timeout", Lock(ctx, b, l), "57014", ErrCanceled)
		})
		t.Run("ended context", func(t *testing.T) {
			a := w.begin(t, "")
			ended, cancel := context.WithCancel(ctx)
			cancel()
			is(t, "Lock", Lock(ended, a, l), "", context.Canceled)
			must(t, Lock(ctx, a, l)) // nothing was sent, so the transaction is well
		})
		t.Run("bad key", func(t *testing.T) {
			if err := Lock(ctx, w.begin(t, ""), l.For("")); !errors.Is(err, holdlock.ErrInvalid) {
				t.Errorf("an empty key: %v", err)
			}
		})
		t.Run("other namespaces", func(t *testing.T) {
			other, _ := declared(t, newSchema())
			a, b := w.begin(t, ""), w.begin(t, "")
			must(t, Lock(ctx, a, l))
			must(t, TryLock(ctx, b, other))
		})
	})
}

// 53200: the table of locks is the server's, for everybody. The error says what to do.
func TestTxLockTableFull(t *testing.T) {
	t.Parallel()
	p := testenv.StartPostgres(t, "max_connections=10", "max_locks_per_transaction=10")
	for _, w := range ways(t, p) {
		l, _ := declared(t, "")
		tx := w.begin(t, "")
		var err error
		for i := 0; err == nil && i < 100_000; i++ {
			err = TryLock(testContext(t), tx, l.For(fmt.Sprint(i)))
		}
		is(t, w.name, err, "53200", ErrLockTable)
		tx.Rollback(context.Background())
	}
}

func TestTxReadOnly(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	for _, w := range ways(t, p) {
		l, _ := declared(t, schema)
		tx := w.begin(t, "")
		_, err := tx.Exec(testContext(t), "SET TRANSACTION READ ONLY")
		must(t, err)
		must(t, Lock(testContext(t), tx, l)) // it writes nothing
		_, err = Once(testContext(t), tx, l, nil)
		is(t, "Once", err, "25006", ErrReadOnly)
	}
}

func TestRowLocks(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	table := inSchema(`"holdlock".account`, schema)
	p.Do(t, "CREATE TABLE "+table+" (id int PRIMARY KEY, balance int); INSERT INTO "+table+" VALUES (1, 10), (2, 20)")
	read := "SELECT balance FROM " + table + " WHERE id = $1 "
	for _, w := range ways(t, p) {
		t.Run(w.name, func(t *testing.T) {
			l, seen := declared(t, schema)
			ctx := testContext(t)
			a, b := w.begin(t, ""), w.begin(t, "")
			var balance int
			must(t, LockRow(ctx, a, l.For("1"), read+"FOR UPDATE", 1).Scan(&balance))
			if balance != 10 {
				t.Errorf("balance = %d", balance)
			}
			err := TryLockRow(ctx, b, l.For("1"), read+"FOR UPDATE SKIP LOCKED", 1).Scan(&balance)
			is(t, "SKIP LOCKED of a locked row", err, "", holdlock.ErrHeld, ErrNoRow)
			if e := seen.last(); e.Kind != holdlock.Skipped || e.Contended || !e.Unclear {
				t.Errorf("SKIP LOCKED finds no row: %+v", e)
			}
			must(t, TryLockRow(ctx, b, l.For("2"), read+"for no key update\n skip  locked", 2).Scan(&balance))
			_, err = b.Exec(ctx, "SAVEPOINT s")
			must(t, err)
			err = TryLockRow(ctx, b, l.For("1"), read+"FOR UPDATE NOWAIT", 1).Scan(&balance)
			is(t, "NOWAIT of a locked row", err, "55P03", holdlock.ErrHeld, ErrTimeout)
			_, err = b.Exec(ctx, "ROLLBACK TO s")
			must(t, err)
			short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			err = LockRow(short, b, l.For("1"), read+"FOR UPDATE", 1).Scan(&balance)
			is(t, "LockRow past its deadline", err, "55P03", holdlock.ErrHeld, ErrTimeout, context.DeadlineExceeded)
			b.Rollback(ctx)
			c := w.begin(t, "")
			err = LockRow(ctx, c, l.For("9"), read+"FOR UPDATE", 9).Scan(&balance)
			is(t, "LockRow of what is not there", err, "", ErrNoRow)
			if errors.Is(err, holdlock.ErrHeld) {
				t.Errorf("no row is reported as held: %v", err)
			}
			must(t, LockRow(ctx, c, l.For("2"), read+"FOR UPDATE", 2).Scan(&balance))
			var limit string
			must(t, c.QueryRow(ctx, "SELECT current_setting('lock_timeout')").Scan(&limit))
			if limit != "0" {
				t.Errorf("lock_timeout is %s after LockRow", limit)
			}
			if seen.count(holdlock.Granted) != 3 || seen.count(holdlock.Skipped) != 3 {
				t.Errorf("observed: %d granted, %d skipped", seen.count(holdlock.Granted), seen.count(holdlock.Skipped))
			}
		})
	}
}

// A query that does not lock is no lock.
func TestRowLockQueriesAreChecked(t *testing.T) {
	t.Parallel()
	l, _ := declared(t, "")
	for query, ok := range map[string][2]bool{ // whether LockRow and TryLockRow take it
		"SELECT 1 FROM t":                                    {false, false},
		"SELECT 1 FROM t FOR UPDATE":                         {true, false},
		"SELECT 1 FROM t FOR NO KEY UPDATE OF t":             {true, false},
		"SELECT 1 FROM t FOR UPDATE NOWAIT":                  {false, true},
		"SELECT 1 FROM t FOR UPDATE SKIP LOCKED":             {false, true},
		"SELECT 1 FROM t FOR SHARE":                          {false, false},
		"SELECT 'for update' FROM t":                         {false, false},
		"SELECT 1 FROM t -- FOR UPDATE":                      {false, false},
		"SELECT 1 /* FOR UPDATE */ FROM t":                   {false, false},
		`SELECT "for update" FROM t`:                         {false, false},
		"SELECT 1 FROM t FOR UPDATE -- NOWAIT":               {true, false},
		"SELECT 'it''s' FROM t FOR UPDATE /* skip locked */": {true, false},
	} {
		if err := LockRow(t.Context(), nil, l, query).err; (err == nil) != ok[0] {
			t.Errorf("LockRow(%q): %v", query, err)
		}
		if err := TryLockRow(t.Context(), nil, l, query).err; (err == nil) != ok[1] {
			t.Errorf("TryLockRow(%q): %v", query, err)
		}
	}
}

// A lease of a client without a store says what to do instead.
func TestOpenTransactions(t *testing.T) {
	t.Parallel()
	c, err := OpenTransactions(nil)
	must(t, err)
	defer c.Shutdown(context.Background())
	l, err := c.NewLock("k", nil)
	must(t, err)
	if err := l.Do(t.Context(), nil); !errors.Is(err, holdlock.ErrUnsupported) || !errors.Is(err, holdlock.ErrUnreachable) {
		t.Errorf("Do: %v", err)
	}
	harmful, err := c.NewLock("k", &holdlock.LockOptions{DoubleRun: holdlock.Harmful})
	must(t, err)
	if err := harmful.Do(t.Context(), nil); !errors.Is(err, holdlock.ErrRefused) {
		t.Errorf("Do of a harmful lock: %v", err)
	}
	if _, err := OpenTransactions(&TxOptions{Schema: "pg_x"}); err == nil {
		t.Error("a bad schema is accepted")
	}
}
