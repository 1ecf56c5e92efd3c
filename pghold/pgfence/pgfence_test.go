//go:build unix

package pgfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/fence"
	"github.com/holdlock/holdlock/fence/fencetest"
	"github.com/holdlock/holdlock/internal/testenv"
	"github.com/holdlock/holdlock/memhold"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testenv.End()
	os.Exit(code)
}

// row is a row of a table of its own behind a fence, or behind none.
type row struct {
	pool  *pgxpool.Pool
	table string
	f     *Fence
	sql   *fence.SQL // instead of f, over db
	db    *sql.DB
}

var tables atomic.Int64

func newRow(t *testing.T) *row {
	t.Helper()
	url := testenv.SharedPostgres(t).URL()
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	r := &row{pool: pool, db: db, table: fmt.Sprint("data", tables.Add(1))}
	if _, err := pool.Exec(t.Context(), fmt.Sprintf("CREATE TABLE %[1]s AS SELECT ''::text AS content", r.table)); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *row) Begin(ctx context.Context, c fence.Claim) (string, error) {
	var err error
	switch {
	case r.f != nil:
		err = r.f.Begin(ctx, r.pool, c)
	case r.sql != nil:
		err = r.sql.Begin(ctx, r.db, c)
	}
	if err != nil {
		return "", err
	}
	return r.Read(ctx)
}

func (r *row) Write(ctx context.Context, c fence.Claim, content string) error {
	if r.sql != nil {
		return r.writeSQL(ctx, c, content)
	}
	tx, err := r.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	if r.f != nil {
		if err := r.f.Check(ctx, tx, c); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, "UPDATE "+r.table+" SET content = $1", content); err != nil {
		return err
	}
	return tx.Commit(ctx)
}

func (r *row) writeSQL(ctx context.Context, c fence.Claim, content string) error {
	tx, err := r.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := r.sql.Check(ctx, tx, c); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE "+r.table+" SET content = $1", content); err != nil {
		return err
	}
	return tx.Commit()
}

func (r *row) Read(ctx context.Context) (content string, err error) {
	err = r.pool.QueryRow(ctx, "SELECT content FROM "+r.table).Scan(&content)
	return content, err
}

func fenced(t *testing.T) *row {
	t.Helper()
	r := newRow(t)
	var err error
	if r.f, err = New(&Options{Table: r.table + "_marks"}); err == nil {
		err = r.f.CreateTable(t.Context(), r.pool)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestPgx(t *testing.T) {
	fencetest.Run(t, func(t *testing.T) fencetest.Resource { return fenced(t) })
}

func TestDatabaseSQL(t *testing.T) {
	fencetest.Run(t, func(t *testing.T) fencetest.Resource {
		r := newRow(t)
		var err error
		if r.sql, err = fence.NewSQL(&fence.SQLOptions{Table: "public." + r.table + "_marks"}); err == nil {
			err = r.sql.CreateTable(t.Context(), r.db)
		}
		if err != nil {
			t.Fatal(err)
		}
		return r
	})
}

// A holder whose lease has run out writes late. The fence refuses it; without the fence the new is lost.
func TestStaleWriter(t *testing.T) {
	for name, r := range map[string]*row{"fenced": fenced(t), "unfenced": newRow(t)} {
		t.Run(name, func(t *testing.T) {
			locks, err := memhold.Open(nil)
			if err != nil {
				t.Fatal(err)
			}
			defer locks.Shutdown(context.Background())
			l, err := locks.NewLock("row", &holdlock.LockOptions{TTL: 100 * time.Millisecond, Renew: holdlock.RenewOff})
			if err != nil {
				t.Fatal(err)
			}
			paused, err := l.TryAcquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			next, err := l.Acquire(t.Context()) // when the first has run out
			if err != nil {
				t.Fatal(err)
			}
			if err := r.Write(t.Context(), fence.Of(next), "new"); err != nil {
				t.Fatal(err)
			}
			err = r.Write(t.Context(), fence.Of(paused), "old")
			content, _ := r.Read(t.Context())
			if r.f != nil && (!errors.Is(err, fence.ErrStale) || content != "new") || r.f == nil && content != "old" {
				t.Errorf("the late write: %v; the row holds %q", err, content)
			}
			_, _ = paused.Release(t.Context()), next.Release(t.Context())
		})
	}
}

func TestSweep(t *testing.T) {
	r := fenced(t)
	if err := r.Write(t.Context(), fence.Claim{Name: "l", Token: 7}, "x"); err != nil {
		t.Fatal(err)
	}
	if err := r.f.Sweep(t.Context(), r.pool, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := r.Write(t.Context(), fence.Claim{Name: "l", Token: 6}, "y"); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a young mark was swept: %v", err)
	}
	if _, err := r.pool.Exec(t.Context(), "UPDATE "+r.table+"_marks SET marked_at = marked_at - interval '2 hours'"); err != nil {
		t.Fatal(err)
	}
	if err := r.f.Sweep(t.Context(), r.pool, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := r.Write(t.Context(), fence.Claim{Name: "l", Token: 6}, "y"); err != nil {
		t.Errorf("an old mark was not swept: %v", err)
	}
}

func TestBadInput(t *testing.T) {
	if _, err := New(&Options{Table: `x"; DROP TABLE y`}); err == nil {
		t.Error("a table that is no name is accepted")
	}
	r := fenced(t)
	if err := r.Write(t.Context(), fence.Claim{Name: "l"}, "x"); !errors.Is(err, fence.ErrNoClaim) {
		t.Errorf("a claim without a token: %v", err)
	}
	r.f, _ = New(&Options{Table: "missing"})
	if err := r.Write(t.Context(), fence.Claim{Name: "l", Token: 1}, "x"); err == nil || errors.Is(err, fence.ErrStale) || !strings.Contains(err.Error(), "missing") {
		t.Errorf("without a table of marks: %v", err)
	}
}
