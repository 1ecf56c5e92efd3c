//go:build unix

package choosing

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "modernc.org/sqlite"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver/faultdriver"
	"github.com/holdlock/holdlock/fence"
	"github.com/holdlock/holdlock/holdtest"
	"github.com/holdlock/holdlock/internal/testenv"
	"github.com/holdlock/holdlock/memhold"
	"github.com/holdlock/holdlock/once"
	"github.com/holdlock/holdlock/pghold"
)

func database(t *testing.T, statements ...string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "data.db")+"?_pragma=busy_timeout(30000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	for _, s := range statements {
		if _, err := db.ExecContext(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	return db
}

func migrate(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	err := pool.AcquireFunc(t.Context(), func(c *pgxpool.Conn) error { return pghold.Migrate(t.Context(), c.Conn(), "") })
	if err != nil {
		t.Fatal(err)
	}
}

func number(t *testing.T, db *sql.DB, query string) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), query).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// twice runs f two times at once and once more.
func twice(f func() error) error {
	var group sync.WaitGroup
	var errs [2]error
	for i := range errs {
		group.Go(func() { errs[i] = f() })
	}
	group.Wait()
	return errors.Join(errs[0], errs[1], f())
}

func TestIdempotent(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE sales (day TEXT, amount INTEGER)", "CREATE TABLE totals (day TEXT PRIMARY KEY, amount INTEGER)",
		"INSERT INTO sales VALUES ('Monday', 3), ('Monday', 4)")
	if err := twice(func() error { return writeTotal(t.Context(), db, "Monday") }); err != nil {
		t.Fatal(err)
	}
	if n := number(t, db, "SELECT sum(amount) FROM totals"); n != 7 {
		t.Errorf("the total is %d", n)
	}
}

func TestTransaction(t *testing.T) {
	t.Parallel()
	pool, err := pgxpool.New(t.Context(), testenv.StartPostgres(t).URL())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	migrate(t, pool)
	for _, s := range []string{"CREATE TABLE sales (day text, amount int)", "CREATE TABLE payments (day text, amount int)", "INSERT INTO sales VALUES ('Monday', 3), ('Monday', 4)"} {
		if _, err := pool.Exec(t.Context(), s); err != nil {
			t.Fatal(err)
		}
	}
	locks, lock, err := payouts()
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Shutdown(context.Background())
	if err := twice(func() error { return payOut(t.Context(), pool, lock, "Monday") }); err != nil {
		t.Fatal(err)
	}
	var payments, amount int
	if err := pool.QueryRow(t.Context(), "SELECT count(*), sum(amount) FROM payments").Scan(&payments, &amount); err != nil {
		t.Fatal(err)
	}
	if payments != 1 || amount != 7 {
		t.Errorf("%d payments, %d in all", payments, amount)
	}
	if err := lock.For("Monday").Do(t.Context(), func(context.Context, *holdlock.Lease) error { return nil }); err == nil {
		t.Error("a lease is granted for what must be in a transaction")
	}
}

// A holder is paused past its lease; its successor sets the price; it wakes up and is refused.
func TestFenced(t *testing.T) {
	t.Parallel()
	db := database(t, "CREATE TABLE items (name TEXT, price INTEGER)", "INSERT INTO items VALUES ('chair', 1)")
	marks, err := fence.NewSQL(&fence.SQLOptions{Dialect: fence.SQLite})
	if err != nil {
		t.Fatal(err)
	}
	if err := marks.CreateTable(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	client := holdtest.NewClient(t, nil)
	prices, err := client.NewLock("price", &fenced)
	if err != nil {
		t.Fatal(err)
	}
	err = setPrice(t.Context(), db, marks, prices, "chair", func(context.Context) (int, error) {
		client.Expire("price", "chair")
		if err := setPrice(context.Background(), db, marks, prices, "chair", func(context.Context) (int, error) { return 3, nil }); err != nil {
			t.Error("the successor:", err)
		}
		return 2, nil
	})
	if n := number(t, db, "SELECT price FROM items"); err == nil || n != 3 {
		t.Errorf("who was overtaken: %v; the price is %d, want 3", err, n)
	}
}

func TestCheap(t *testing.T) {
	t.Parallel()
	client := holdtest.NewClient(t, nil)
	index, err := client.NewLock("index", &cheap)
	if err != nil {
		t.Fatal(err)
	}
	runs := 0
	err = rebuildIndex(t.Context(), index, func(ctx context.Context) error {
		runs++
		return rebuildIndex(ctx, index, func(context.Context) error { runs++; return nil })
	})
	if err != nil || runs != 1 {
		t.Errorf("%v, %d runs", err, runs)
	}
}

// A process dies after it has sent; nobody sends again.
func TestHarmful(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := holdtest.NewClient(t, nil)
		transfers, err := client.NewLock("transfer", &harmful)
		if err != nil {
			t.Fatal(err)
		}
		var sent []string
		err = transfer(t.Context(), transfers, "17", func(_ context.Context, reference string) error {
			sent = append(sent, reference)
			client.Expire("transfer", "17")
			return nil
		})
		if !errors.Is(err, holdlock.ErrLost) {
			t.Errorf("the one that was paused: %v", err)
		}
		err = transfer(t.Context(), transfers, "17", func(_ context.Context, reference string) error {
			sent = append(sent, reference)
			return nil
		})
		if !errors.Is(err, once.ErrSuspended) || len(sent) != 1 {
			t.Errorf("the next delivery: %v, sent %d times", err, len(sent))
		}
	})
}

// lapses counts who tells of a lapse.
type lapses struct{ told []string }

func (l *lapses) Observe(e holdlock.Event) {
	if e.Kind == holdlock.Lapsed {
		l.told = append(l.told, e.Name)
	}
}

// A holder that dies blocks others for TTL at most, one that hangs for MaxHold and TTL; the successor tells of the lapse.
func TestNeverReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, told := memhold.NewStore(), &lapses{}
		first := faultdriver.New(memhold.NewDriver(&memhold.Options{Store: store}), nil)
		dying, err := holdlock.NewClient(first, nil)
		if err != nil {
			t.Fatal(err)
		}
		living, err := memhold.Open(&memhold.Options{Store: store, Client: holdlock.ClientOptions{Observer: told}})
		if err != nil {
			t.Fatal(err)
		}
		defer living.Shutdown(context.Background())
		declare := func(c *holdlock.Client) *holdlock.Lock {
			l, err := c.NewLock("import", &bounded)
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		if _, err := declare(dying).TryAcquire(context.Background()); err != nil {
			t.Fatal(err)
		}
		first.SetScript(func(faultdriver.Call) faultdriver.Fault { return faultdriver.Fault{Drop: true} }) // it is dead to the store
		begin := time.Now()
		var waited time.Duration
		err = declare(living).Do(context.Background(), func(ctx context.Context, _ *holdlock.Lease) error {
			waited = time.Since(begin)
			<-ctx.Done() // it hangs, but hears
			return context.Cause(ctx)
		})
		if waited > bounded.TTL+2*time.Second || !slices.Equal(told.told, []string{"import"}) {
			t.Errorf("the next run waited for %s; lapses told: %v", waited, told.told)
		}
		var lost *holdlock.LostError
		if took := time.Since(begin) - waited; !errors.As(err, &lost) || lost.Reason != holdlock.LossMaxHold || took > bounded.MaxHold+time.Second {
			t.Errorf("a run that hangs ended after %s: %v", took, err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		_ = dying.Shutdown(ctx)
	})
}
