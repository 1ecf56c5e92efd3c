package fence_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/holdlock/holdlock/fence"
	"github.com/holdlock/holdlock/fence/fencetest"
)

// row is a row of a SQLite database behind a fence, or behind none.
type row struct {
	db *sql.DB
	f  *fence.SQL // nil: unfenced
}

func openRow(t *testing.T, path string, fenced bool) *row {
	t.Helper()
	r, err := newRow(t.Context(), path, fenced)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.db.Close() })
	return r
}

func newRow(ctx context.Context, path string, fenced bool) (*row, error) {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(60000)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	r := &row{db: db}
	if fenced {
		if r.f, err = fence.NewSQL(&fence.SQLOptions{Dialect: fence.SQLite, Table: "marks"}); err != nil {
			return nil, err
		}
		if err := r.f.CreateTable(ctx, db); err != nil {
			return nil, err
		}
	}
	_, err = db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS data (content TEXT);
		INSERT INTO data SELECT '' WHERE NOT EXISTS (SELECT 1 FROM data)`)
	return r, err
}

func (r *row) Begin(ctx context.Context, c fence.Claim) (string, error) {
	if r.f != nil {
		if err := r.f.Begin(ctx, r.db, c); err != nil {
			return "", err
		}
	}
	return r.Read(ctx)
}

func (r *row) Write(ctx context.Context, c fence.Claim, content string) error {
	tx, err := r.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if r.f != nil {
		if err := r.f.Check(ctx, tx, c); err != nil {
			return err
		}
	}
	if _, err := tx.ExecContext(ctx, "UPDATE data SET content = $1", content); err != nil {
		return err
	}
	return tx.Commit()
}

func (r *row) Read(ctx context.Context) (content string, err error) {
	err = r.db.QueryRowContext(ctx, "SELECT content FROM data").Scan(&content)
	return content, err
}

func TestSQLite(t *testing.T) {
	fencetest.Run(t, func(t *testing.T) fencetest.Resource {
		return openRow(t, filepath.Join(t.TempDir(), "data"), true)
	})
}

// A refused write leaves the mark and the rest of the transaction alone.
func TestRolledBack(t *testing.T) {
	r := openRow(t, filepath.Join(t.TempDir(), "data"), true)
	tx, err := r.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.f.Check(t.Context(), tx, fence.Claim{Name: "l", Token: 7}); err != nil {
		t.Fatal(err)
	}
	if err := tx.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := r.Write(t.Context(), fence.Claim{Name: "l", Token: 6}, "x"); err != nil {
		t.Errorf("the mark of a transaction that was rolled back stands: %v", err)
	}
}

func TestSweep(t *testing.T) {
	r := openRow(t, filepath.Join(t.TempDir(), "data"), true)
	if err := r.Write(t.Context(), fence.Claim{Name: "l", Token: 7}, "x"); err != nil {
		t.Fatal(err)
	}
	if err := r.f.Sweep(t.Context(), r.db, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := r.Write(t.Context(), fence.Claim{Name: "l", Token: 6}, "y"); !errors.Is(err, fence.ErrStale) {
		t.Errorf("a young mark was swept: %v", err)
	}
	if _, err := r.db.Exec("UPDATE marks SET marked_at = marked_at - 7200"); err != nil {
		t.Fatal(err)
	}
	if err := r.f.Sweep(t.Context(), r.db, time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := r.Write(t.Context(), fence.Claim{Name: "l", Token: 6}, "y"); err != nil {
		t.Errorf("an old mark was not swept: %v", err)
	}
}

func TestSQLBadInput(t *testing.T) {
	for _, table := range []string{"a b", "a;b", "a.b.c", `"a"`, "1a", ".a"} {
		if _, err := fence.NewSQL(&fence.SQLOptions{Table: table}); err == nil {
			t.Errorf("table %q is accepted", table)
		}
	}
	if _, err := fence.NewSQL(&fence.SQLOptions{Dialect: 9}); err == nil {
		t.Error("a dialect that is not known is accepted")
	}
	r := openRow(t, filepath.Join(t.TempDir(), "data"), true)
	for _, age := range []time.Duration{-time.Hour, 0, time.Millisecond} {
		if err := r.f.Sweep(t.Context(), r.db, age); err == nil {
			t.Errorf("marks of an age of %s are swept", age)
		}
	}
	for _, c := range []fence.Claim{{Name: "l"}, {Token: 3}, {}} {
		if err := r.Write(t.Context(), c, "x"); !errors.Is(err, fence.ErrNoClaim) {
			t.Errorf("the claim %+v gives %v, want ErrNoClaim", c, err)
		}
	}
	bare := &row{db: r.db}
	var err error
	if bare.f, err = fence.NewSQL(&fence.SQLOptions{Dialect: fence.SQLite, Table: "missing"}); err != nil {
		t.Fatal(err)
	}
	if err := bare.Write(t.Context(), fence.Claim{Name: "l", Token: 3}, "x"); err == nil || errors.Is(err, fence.ErrStale) {
		t.Errorf("without a table of marks: %v, want an error that is not ErrStale", err)
	}
	r.content(t, "")
}

func (r *row) content(t *testing.T, want string) {
	t.Helper()
	if got, err := r.Read(t.Context()); err != nil || got != want {
		t.Errorf("the row holds %q, %v; want %q", got, err, want)
	}
}
