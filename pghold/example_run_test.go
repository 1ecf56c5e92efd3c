//go:build unix

package pghold_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/internal/testenv"
	"github.com/holdlock/holdlock/pghold"
)

// The examples need a server, so what they show is run here.
func TestExamples(t *testing.T) {
	p := testenv.StartPostgres(t)
	ctx := t.Context()
	pool, err := pgxpool.New(ctx, p.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	conn, err := pgx.Connect(ctx, p.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := pghold.Migrate(ctx, conn, ""); err != nil {
		t.Fatal(err)
	}
	p.Do(t, `CREATE TABLE sale (day text, amount int); INSERT INTO sale VALUES ('2026-11-29', 3), ('2026-11-29', 4);
		CREATE TABLE payment (day text, amount int); CREATE TABLE report (month text, total int);
		CREATE TABLE account (id text, balance int); INSERT INTO account VALUES ('alice', 10)`)
	locks, err := pghold.OpenTransactions(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Shutdown(context.Background())
	lock := func(name string) *holdlock.Lock {
		l, err := locks.NewLock(name, &holdlock.LockOptions{DoubleRun: holdlock.Harmful})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	for i := range 3 {
		if ran, err := settleDay(ctx, pool, lock("settle"), "2026-11-29"); ran != (i == 0) || err != nil {
			t.Errorf("delivery %d: ran = %v, %v", i, ran, err)
		}
	}
	if got := p.Do(t, "SELECT count(*), sum(amount) FROM payment"); got != "1|7" {
		t.Errorf("payments: %s", got)
	}

	db := sql.OpenDB(stdlib.GetPoolConnector(pool))
	defer db.Close()
	if err := rebuild(ctx, db, lock("report"), "2026-11"); err != nil {
		t.Error(err)
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if err := pghold.Lock(ctx, tx, lock("report").For("2026-11")); err != nil {
			return err
		}
		if err := rebuild(ctx, db, lock("report"), "2026-11"); !errors.Is(err, holdlock.ErrHeld) {
			t.Errorf("beside another one: %v", err)
		}
		return withdraw(ctx, tx, lock("account"), "alice", 3)
	})
	if err != nil {
		t.Error(err)
	}
	if got := p.Do(t, "SELECT balance FROM account"); got != "7" {
		t.Errorf("balance: %s", got)
	}
}
