//go:build unix

package pghold

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/internal/testenv"
	"github.com/holdlock/holdlock/memhold"
)

// onceOnEachWay runs a test of Once on every way.
func onceOnEachWay(t *testing.T, f func(t *testing.T, w way, l *holdlock.Lock, seen *observed)) {
	t.Helper()
	p := testenv.SharedPostgres(t)
	for _, w := range ways(t, p) {
		t.Run(w.name, func(t *testing.T) {
			l, seen := declared(t, migrated(t, p))
			f(t, w, l, seen)
		})
	}
}

func once(t *testing.T, tx Tx, l *holdlock.Lock, opts *OnceOptions) *Done {
	t.Helper()
	d, err := Once(testContext(t), tx, l, opts)
	must(t, err)
	return d
}

func TestOnce(t *testing.T) {
	t.Parallel()
	onceOnEachWay(t, func(t *testing.T, w way, l *holdlock.Lock, seen *observed) {
		ctx := testContext(t)
		// A job that fails leaves no record.
		failed := w.begin(t, "")
		if once(t, failed, l.For("k"), nil).Already {
			t.Error("a new job is reported as done")
		}
		must(t, failed.Rollback(ctx))

		first := w.begin(t, "")
		d := once(t, first, l.For("k"), &OnceOptions{Input: []byte("pay 5")})
		if d.Already {
			t.Error("a job that has failed is reported as done")
		}
		must(t, d.SetResult(ctx, []byte("paid")))
		if once(t, w.begin(t, ""), l.For("other"), nil).Already {
			t.Error("keys are mixed up")
		}
		must(t, first.Commit(ctx))

		again := w.begin(t, "")
		d = once(t, again, l.For("k"), nil)
		if !d.Already || string(d.Result) != "paid" || time.Since(d.At).Abs() > time.Minute {
			t.Errorf("a redelivery is told %+v", d)
		}
		if err := d.SetResult(ctx, nil); err == nil {
			t.Error("a redelivery may overwrite the result")
		}
		once(t, again, l.For("k"), &OnceOptions{Input: []byte("pay 5")})
		_, err := Once(ctx, again, l.For("k"), &OnceOptions{Input: []byte("pay 6")})
		is(t, "another input", err, "", ErrInput)
		_, err = Once(ctx, again, l.For("k"), &OnceOptions{Keep: -1})
		is(t, "a negative Keep", err, "", holdlock.ErrInvalid)
		if g, a := seen.count(holdlock.Granted), seen.count(holdlock.Duplicate); g != 3 || a != 2 {
			t.Errorf("observed: %d granted, %d already done, want 3 and 2", g, a)
		}
	})
}

// A second delivery waits for the first, and sees what has become of it.
// What is missing in the database is told with what to do about it; a lock that is missing is the program's mistake.
func TestOnceWithoutASchema(t *testing.T) {
	t.Parallel()
	onceOnEachWay(t, func(t *testing.T, w way, l *holdlock.Lock, _ *observed) {
		tx := w.begin(t, "")
		if _, err := Once(testContext(t), tx, nil, nil); !errors.Is(err, holdlock.ErrInvalid) {
			t.Errorf("Once without a lock: %v", err)
		}
		c, err := memhold.Open(nil)
		must(t, err)
		defer func() { must(t, c.Shutdown(testContext(t))) }()
		other, err := c.NewLock("l", nil)
		must(t, err)
		if _, err := Once(testContext(t), tx, other.For("k"), nil); !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), "holdlock migrate") {
			t.Errorf("Once in a schema that is not there: %v", err)
		}
	})
}

func TestOnceWaits(t *testing.T) {
	t.Parallel()
	onceOnEachWay(t, func(t *testing.T, w way, l *holdlock.Lock, _ *observed) {
		for _, commit := range []bool{false, true} {
			ctx := testContext(t)
			first, second := w.begin(t, ""), w.begin(t, "")
			once(t, first, l, nil)
			told := make(chan *Done, 1)
			go func() {
				d, err := Once(ctx, second, l, nil)
				if err != nil {
					t.Errorf("Once: %v", err)
				}
				told <- d
			}()
			select {
			case d := <-told:
				t.Fatalf("a delivery was told %+v while the first was under way", d)
			case <-time.After(50 * time.Millisecond):
			}
			if commit {
				must(t, first.Commit(ctx))
			} else {
				must(t, first.Rollback(ctx))
			}
			if d := <-told; d != nil && d.Already != commit {
				t.Errorf("after commit = %v the second is told Already = %v", commit, d.Already)
			}
			must(t, second.Rollback(ctx))
		}
	})
}

func TestOnceDeadline(t *testing.T) {
	t.Parallel()
	onceOnEachWay(t, func(t *testing.T, w way, l *holdlock.Lock, _ *observed) {
		first, second := w.begin(t, ""), w.begin(t, "")
		once(t, first, l, nil)
		once(t, second, l.For("free"), nil)
		var limit string
		must(t, second.QueryRow(testContext(t), "SELECT current_setting('lock_timeout')").Scan(&limit))
		if limit != "0" {
			t.Errorf("lock_timeout is %s after Once", limit)
		}
		short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := Once(short, second, l, nil)
		is(t, "Once past its deadline", err, "55P03", ErrTimeout, holdlock.ErrHeld, context.DeadlineExceeded)
	})
}

// Above READ COMMITTED a transaction does not see the record that it has waited for, and has to be run again. It never
// runs the job.
func TestOnceAboveReadCommitted(t *testing.T) {
	t.Parallel()
	onceOnEachWay(t, func(t *testing.T, w way, l *holdlock.Lock, _ *observed) {
		for _, level := range []string{"repeatable read", "serializable"} {
			ctx := testContext(t)
			key := l.For(level)
			first, second := w.begin(t, level), w.begin(t, level)
			var one int
			must(t, second.QueryRow(ctx, "SELECT 1").Scan(&one)) // its snapshot is older than the record
			once(t, first, key, nil)
			told := make(chan error, 1)
			go func() {
				_, err := Once(ctx, second, key, nil)
				told <- err
			}()
			must(t, first.Commit(ctx))
			is(t, level, <-told, "40001", ErrRetry)
			must(t, second.Rollback(ctx))
			if again := w.begin(t, level); !once(t, again, key, nil).Already {
				t.Errorf("%s: the transaction that was run again is not told that the job is done", level)
			}
		}
	})
}

// A record that is past its Keep does not count, and is removed.
func TestOnceKeep(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	onceOnEachWay(t, func(t *testing.T, w way, l *holdlock.Lock, _ *observed) {
		ctx := testContext(t)
		for _, key := range []string{"a", "b"} {
			tx := w.begin(t, "")
			must(t, once(t, tx, l.For(key), &OnceOptions{Keep: 200 * time.Millisecond}).SetResult(ctx, []byte("old")))
			must(t, tx.Commit(ctx))
		}
		keep := w.begin(t, "")
		once(t, keep, l.For("kept"), &OnceOptions{Keep: holdlock.Forever})
		must(t, keep.Commit(ctx))
		testenv.Eventually(t, "the record is old", func() bool {
			tx := w.begin(t, "")
			d := once(t, tx, l.For("a"), nil)
			if !d.Already && d.Result != nil {
				t.Errorf("an old result is told: %q", d.Result)
			}
			must(t, tx.Commit(ctx))
			return !d.Already
		})
		u, err := use(ctx, "", l)
		must(t, err)
		conn := connect(t, p.URL())
		testenv.Eventually(t, "the old record of b is removed", func() bool {
			n, err := RemoveOld(ctx, conn, u.schema, 10)
			must(t, err)
			return n == 1
		})
		if n, err := RemoveOld(ctx, conn, u.schema, 10); n != 0 || err != nil {
			t.Errorf("RemoveOld of what is kept: %d, %v", n, err)
		}
	})
}

// Of many deliveries at the same time one runs, although a third of those that begin fail.
func TestOnceAmongMany(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	pool := newPool(t, p.URL(), 8)
	l, _ := declared(t, migrated(t, p))
	ctx := testContext(t)
	for _, level := range []pgx.TxIsoLevel{pgx.ReadCommitted, pgx.Serializable} {
		var ran, already, tries atomic.Int64
		var wg sync.WaitGroup
		for range 24 {
			wg.Go(func() {
				for {
					err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: level}, func(tx pgx.Tx) error {
						d, err := Once(ctx, tx, l.For(string(level)), nil)
						switch {
						case err != nil:
							return err
						case d.Already:
							already.Add(1)
							return nil
						case tries.Add(1)%3 != 0:
							return errFails
						}
						ran.Add(1)
						return nil
					})
					switch {
					case err == nil:
						return
					case !errors.Is(err, ErrRetry) && !errors.Is(err, errFails):
						t.Errorf("%s: %v", level, err)
						return
					}
				}
			})
		}
		wg.Wait()
		if ran.Load() != 1 || already.Load() != 23 || tries.Load() != 3 {
			t.Errorf("%s: %d ran, %d were told that it was done, after %d tries", level, ran.Load(), already.Load(), tries.Load())
		}
	}
}

var errFails = errors.New("the job has failed")

// Nothing stays locked after a panic in the job, an error of the job, or an unlock with an ended context; and a pool of
// one connection is enough.
func TestNothingStaysLocked(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	l, _ := declared(t, migrated(t, p))
	pool := newPool(t, p.URL(), 1)
	ctx := testContext(t)
	work := func(end func(ctx context.Context)) (err error) {
		defer func() {
			if r := recover(); r != nil {
				err = errors.Join(errFails, err)
			}
		}()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if err := Lock(ctx, tx, l); err != nil {
				return err
			}
			if d, err := Once(ctx, tx, l, nil); err != nil || d.Already {
				t.Errorf("Once: %+v, %v", d, err)
			}
			var one int
			if err := tx.QueryRow(ctx, "SELECT 1").Scan(&one); err != nil { // the job's own work on the only connection
				return err
			}
			end(ctx)
			return errFails
		})
	}
	for name, end := range map[string]func(context.Context){
		"panic": func(context.Context) { panic("the job panics") },
		"error": func(context.Context) {},
	} {
		if err := work(end); !errors.Is(err, errFails) {
			t.Errorf("%s: %v", name, err)
		}
	}
	ended, cancel := context.WithCancel(ctx)
	err := pgx.BeginFunc(ended, pool, func(tx pgx.Tx) error {
		if err := Lock(ended, tx, l); err != nil {
			return err
		}
		cancel()
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a commit with an ended context: %v", err)
	}
	other := connect(t, p.URL())
	testenv.Eventually(t, "the lock is free", func() bool {
		return pgx.BeginFunc(ctx, other, func(tx pgx.Tx) error { return TryLock(ctx, tx, l) }) == nil
	})
	must(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return TryLock(ctx, tx, l) }))
}
