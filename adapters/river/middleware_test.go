//go:build unix

package riverlock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
	"github.com/holdlock/holdlock/memhold"
	"github.com/holdlock/holdlock/once"
	"github.com/holdlock/holdlock/pghold"
)

// A funcWorker is a worker whose work is a function.
type funcWorker struct {
	river.WorkerDefaults[args]
	work func(ctx context.Context, job *river.Job[args]) error
}

func (w *funcWorker) Work(ctx context.Context, job *river.Job[args]) error { return w.work(ctx, job) }

// NextRetry makes retries come soon.
func (w *funcWorker) NextRetry(*river.Job[args]) time.Time {
	return time.Now().Add(50 * time.Millisecond)
}

// works starts a River client in this process.
func (r *rig) works(m rivertype.WorkerMiddleware, work func(ctx context.Context, job *river.Job[args]) error) {
	r.t.Helper()
	client, err := newClient(r.pool, &funcWorker{work: work}, m)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := client.Start(context.Background()); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := client.Stop(context.Background()); err != nil {
			r.t.Error(err)
		}
	})
}

// leases returns a client on lease rows and a lock of it.
func (r *rig) leases() (*holdlock.Client, *holdlock.Lock) {
	r.t.Helper()
	c, err := pghold.Open(r.t.Context(), r.url, &pghold.LeaseOptions{Client: holdlock.ClientOptions{CallTimeout: 30 * time.Second}})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Shutdown(context.Background()) })
	l, err := c.NewLock("work", &holdlock.LockOptions{TTL: time.Minute})
	if err != nil {
		r.t.Fatal(err)
	}
	return c, l
}

func (r *rig) once(l *holdlock.Lock, opts OnceOptions) rivertype.WorkerMiddleware {
	r.t.Helper()
	m, err := Once(l, byJob, &opts)
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

func (r *rig) inTx(opts InTxOptions) rivertype.WorkerMiddleware {
	r.t.Helper()
	c, err := pghold.OpenTransactions(nil)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Shutdown(context.Background()) })
	l, err := c.NewLock("work", &holdlock.LockOptions{DoubleRun: holdlock.Harmful, Purpose: "pays out"})
	if err != nil {
		r.t.Fatal(err)
	}
	m, err := InTx(r.pool, l, byJob, &opts)
	if err != nil {
		r.t.Fatal(err)
	}
	return m
}

// both runs a test with each of the middlewares. effect is what the work does.
func both(t *testing.T, compare bool, f func(t *testing.T, r *rig, m rivertype.WorkerMiddleware)) {
	t.Helper()
	t.Run("tx", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		f(t, r, r.inTx(InTxOptions{CompareArgs: compare}))
	})
	t.Run("lease", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		_, l := r.leases()
		f(t, r, r.once(l, OnceOptions{CompareArgs: compare}))
	})
}

// pay is the effect: in the transaction if there is one.
func (r *rig) pay(ctx context.Context, job string) error {
	const sql = "INSERT INTO ledger VALUES ($1)"
	if tx := Tx(ctx); tx != nil {
		_, err := tx.Exec(ctx, sql, job)
		return err
	}
	_, err := r.pool.Exec(ctx, sql, job)
	return err
}

func (r *rig) paid(job string) int {
	return r.number("SELECT count(*) FROM ledger WHERE job = $1", job)
}

// A duplicate that comes afterwards is completed and not run; a job that fails runs again by River's own means, and uses up an
// attempt; in a transaction nothing of it is left.
func TestDuplicatesAndFailures(t *testing.T) {
	t.Parallel()
	both(t, false, func(t *testing.T, r *rig, m rivertype.WorkerMiddleware) {
		var runs atomic.Int64
		transactional := strings.HasSuffix(t.Name(), "tx")
		r.works(m, func(ctx context.Context, job *river.Job[args]) error {
			if _, ends := ctx.Deadline(); !ends {
				t.Error("the context has no deadline of River")
			}
			if transactional != (Tx(ctx) != nil) || transactional == (once.KeyFrom(ctx) != "") {
				t.Errorf("transaction: %v, idempotency key %q", Tx(ctx), once.KeyFrom(ctx))
			}
			n := runs.Add(1)
			if !transactional && n == 1 || job.Args.Job == "panics" && n == 3 {
				if n == 3 {
					if err := r.pay(ctx, job.Args.Job); err != nil && transactional {
						t.Error(err)
					}
					panic("it panics")
				}
				return errors.New("it fails")
			}
			if err := r.pay(ctx, job.Args.Job); err != nil {
				return err
			}
			if n == 1 {
				return errors.New("it fails")
			}
			return nil
		})
		first := r.is(r.insert(args{Job: "a", N: 1}, nil), rivertype.JobStateCompleted)
		if first.Attempt != 2 || len(first.Errors) != 1 || !strings.Contains(first.Errors[0].Error, "it fails") || r.paid("a") != 1 {
			t.Errorf("attempt %d, errors %+v, paid %d times", first.Attempt, first.Errors, r.paid("a"))
		}
		second := r.is(r.insert(args{Job: "a", N: 2}, nil), rivertype.JobStateCompleted)
		if second.Attempt != 1 || runs.Load() != 2 || r.paid("a") != 1 {
			t.Errorf("the duplicate: attempt %d, %d runs, paid %d times", second.Attempt, runs.Load(), r.paid("a"))
		}
		third := r.is(r.insert(args{Job: "panics", N: 2}, nil), rivertype.JobStateCompleted)
		want := 2 // the effect of the run that panicked is outside of any transaction
		if transactional {
			want = 1
		}
		if third.Attempt != 2 || r.paid("panics") != want {
			t.Errorf("after a panic: attempt %d, paid %d times, want %d", third.Attempt, r.paid("panics"), want)
		}
	})
}

// The same key with other arguments is a bug, and is not run.
func TestOtherArguments(t *testing.T) {
	t.Parallel()
	both(t, true, func(t *testing.T, r *rig, m rivertype.WorkerMiddleware) {
		var runs atomic.Int64
		r.works(m, func(ctx context.Context, job *river.Job[args]) error {
			runs.Add(1)
			return nil
		})
		r.is(r.insert(args{Job: "a", N: 1}, nil), rivertype.JobStateCompleted)
		r.is(r.insert(args{Job: "a", N: 1}, nil), rivertype.JobStateCompleted)
		other := r.is(r.insert(args{Job: "a", N: 2}, nil), rivertype.JobStateCancelled)
		if len(other.Errors) != 1 || !strings.Contains(other.Errors[0].Error, "another input") || runs.Load() != 1 {
			t.Errorf("errors %+v, %d runs", other.Errors, runs.Load())
		}
	})
}

// A job without a key, or with one that no lock can have, fails and is not run.
func TestNoKey(t *testing.T) {
	t.Parallel()
	both(t, false, func(t *testing.T, r *rig, m rivertype.WorkerMiddleware) {
		r.works(m, func(ctx context.Context, job *river.Job[args]) error {
			t.Error("it ran")
			return nil
		})
		for key, want := range map[string]string{"": "is empty", strings.Repeat("x", 513): "513 bytes; at most 512; let the function that names jobs"} {
			row := r.is(r.insert(args{Job: key}, &river.InsertOpts{MaxAttempts: 1}), rivertype.JobStateDiscarded)
			if len(row.Errors) != 1 || !strings.Contains(row.Errors[0].Error, want) || !strings.Contains(row.Errors[0].Error, "lock work") {
				t.Errorf("errors %+v", row.Errors)
			}
		}
	})
}

// Work that returns what another job has told it, in which it has found itself, has failed: its own job uses up its attempts.
func TestErrorsOfAnotherJob(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c, l := r.leases()
	another := map[string]error{"suspended": once.ErrSuspended, "input": once.ErrOtherInput, "held": holdlock.ErrHeld, "damaged": driver.ErrDamaged, "newer": driver.ErrNewer}
	r.works(r.once(l, OnceOptions{Suspended: minAgain, Once: once.Options{OnLapse: once.Hold}}), func(ctx context.Context, job *river.Job[args]) error {
		return fmt.Errorf("mail of the order: %w", another[job.Args.Job])
	})
	for what, err := range another {
		row := r.is(r.insert(args{Job: what}, &river.InsertOpts{MaxAttempts: 2}), rivertype.JobStateDiscarded)
		if row.Attempt != 2 || len(row.Errors) != 2 || !strings.Contains(row.Errors[1].Error, err.Error()) {
			t.Errorf("%s: attempt %d, errors %+v", what, row.Attempt, row.Errors)
		}
		if info, ok, err := c.Job(t.Context(), "work", what); err != nil || !ok || info.Job.State != driver.JobOpen || info.Job.Runs != 2 {
			t.Errorf("%s: the record is %+v, %v", what, info.Job, err)
		}
	}
}

// A job that an operator has to look at is put off until it is settled, and then runs, or is completed.
func TestSuspended(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c, l := r.leases()
	var runs, fails atomic.Int64
	fails.Store(2)
	r.works(r.once(l, OnceOptions{Suspended: minAgain, Once: once.Options{OnError: once.Hold}}), func(ctx context.Context, job *river.Job[args]) error {
		runs.Add(1)
		if fails.Add(-1) >= 0 {
			return errors.New("a timeout: nobody knows")
		}
		return nil
	})
	for i, done := range []bool{true, false} {
		job := []string{"done", "again"}[i]
		fails.Store(1)
		before := runs.Load()
		id := r.insert(args{Job: job}, &river.InsertOpts{MaxAttempts: 1})
		r.eventually("it was put off twice", func() bool { return r.snoozes(id) >= 2 })
		info, ok, err := c.Job(t.Context(), "work", job)
		if err != nil || !ok || info.Job.State != driver.JobSuspended || runs.Load() != before+1 {
			t.Fatalf("the job is %+v, %v, after %d runs", info.Job, err, runs.Load()-before)
		}
		err = c.Settle(t.Context(), "work", job, info.Job.Token, holdlock.SettleOptions{By: "a test", Done: done, Keep: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		row := r.is(id, rivertype.JobStateCompleted)
		if want := before + 1 + int64(i); runs.Load() != want || row.Attempt != 1 {
			t.Errorf("%s: %d runs, want %d; attempt %d", job, runs.Load()-before, want-before, row.Attempt)
		}
	}
}

// A lease that is lost ends the context of the job, with the cause.
func TestTheLeaseReachesTheJob(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	c, err := pghold.Open(t.Context(), r.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Shutdown(context.Background())
	l, err := c.NewLock("work", &holdlock.LockOptions{TTL: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	begun := make(chan struct{}, 2)
	causes := make(chan error, 2)
	var runs atomic.Int64
	r.works(r.once(l, OnceOptions{}), func(ctx context.Context, job *river.Job[args]) error {
		if runs.Add(1) > 1 {
			return nil
		}
		begun <- struct{}{}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return ctx.Err()
	})
	id := r.insert(args{Job: "a"}, nil)
	<-begun
	info, ok, err := c.Inspect(t.Context(), "work", "a")
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if err := c.Break(t.Context(), "work", "a", info.Token, holdlock.BreakOptions{By: "a test", Now: true}); err != nil {
		t.Fatal(err)
	}
	if cause := <-causes; !errors.Is(cause, holdlock.ErrLost) {
		t.Errorf("the context ended with %v, want ErrLost", cause)
	}
	if row := r.is(id, rivertype.JobStateCompleted); row.Attempt != 2 || runs.Load() != 2 {
		t.Errorf("attempt %d after %d runs", row.Attempt, runs.Load())
	}
}

// What cannot be read is cancelled, and not tried for weeks; what a newer release has written comes back.
func TestDamaged(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	_, l := r.leases()
	r.works(r.once(l, OnceOptions{Suspended: 500 * time.Millisecond}), func(ctx context.Context, job *river.Job[args]) error {
		return r.pay(ctx, job.Args.Job)
	})
	r.is(r.insert(args{Job: "a"}, nil), rivertype.JobStateCompleted)
	r.do(`UPDATE holdlock.job SET state = 9`)
	row := r.is(r.insert(args{Job: "a", N: 1}, nil), rivertype.JobStateCancelled)
	if n := len(row.Errors); row.Attempt != 1 || n != 1 || !strings.Contains(row.Errors[n-1].Error, `key "a"`) {
		t.Errorf("damaged: %+v", row)
	}
	r.do(`UPDATE holdlock.job SET state = 5, layout = 2`)
	id := r.insert(args{Job: "a", N: 2}, &river.InsertOpts{MaxAttempts: 1})
	r.eventually("it has come back", func() bool { return r.snoozes(id) >= 2 })
	r.do(`UPDATE holdlock.job SET layout = 1`)
	r.is(id, rivertype.JobStateCompleted)
	if n := r.paid("a"); n != 1 {
		t.Errorf("paid %d times", n)
	}
}

// A River job that was cancelled, or taken for stuck, while it was at work is not completed, and so its work is not done either.
func TestTheJobIsCancelledMeanwhile(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	begun, gone := make(chan int64, 1), make(chan struct{})
	r.works(r.inTx(InTxOptions{}), func(ctx context.Context, job *river.Job[args]) error {
		begun <- job.ID
		<-gone
		return r.pay(ctx, job.Args.Job)
	})
	id := r.insert(args{Job: "a"}, nil)
	<-begun
	// Somebody else has decided about the River job while it was at work.
	r.do(`UPDATE river_job SET state = 'cancelled', finalized_at = now() WHERE id = $1`, id)
	close(gone)
	other := r.is(r.insert(args{Job: "b"}, nil), rivertype.JobStateCompleted)
	<-begun
	if r.paid("a") != 0 || r.paid("b") != 1 || r.row(id).State != rivertype.JobStateCancelled || other.Attempt != 1 {
		t.Errorf("a is paid %d times and %s; b is paid %d times", r.paid("a"), r.row(id).State, r.paid("b"))
	}
}

// two are a pool of connections with patience and one with a short statement_timeout.
type two struct {
	calm, short *pgxpool.Pool
	hurry       atomic.Bool
}

func (p *two) BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error) {
	if p.hurry.Load() {
		return p.short.BeginTx(ctx, opts)
	}
	return p.calm.BeginTx(ctx, opts)
}

// A duplicate whose twin is at work is snoozed, also if statement_timeout is shorter than Wait.
func TestStatementTimeoutBelowWait(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	short, err := newPool(t.Context(), r.url+"&statement_timeout=100")
	if err != nil {
		t.Fatal(err)
	}
	defer short.Close()
	c, err := pghold.OpenTransactions(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Shutdown(context.Background())
	l, err := c.NewLock("work", nil)
	if err != nil {
		t.Fatal(err)
	}
	db := &two{calm: r.pool, short: short}
	m, err := InTx(db, l, byJob, &InTxOptions{Again: minAgain})
	if err != nil {
		t.Fatal(err)
	}
	begun, ended := make(chan bool, 2), make(chan bool)
	end := sync.OnceFunc(func() { close(ended) })
	defer end()
	r.works(m, func(ctx context.Context, job *river.Job[args]) error {
		begun <- true
		<-ended
		return r.pay(ctx, job.Args.Job)
	})
	first := r.insert(args{Job: "a", N: 1}, nil)
	<-begun
	db.hurry.Store(true)
	second := r.insert(args{Job: "a", N: 2}, &river.InsertOpts{MaxAttempts: 1})
	r.eventually("it has come back", func() bool { return r.snoozes(second) >= 2 })
	db.hurry.Store(false)
	end()
	r.is(first, rivertype.JobStateCompleted)
	r.is(second, rivertype.JobStateCompleted)
	if n := r.paid("a"); n != 1 {
		t.Errorf("paid %d times", n)
	}
}

// The answer to the commit is lost: the work is done and the River job completed, and neither happens again.
func TestTheAnswerToTheCommitIsLost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var armed, lost atomic.Bool
	proxy := testenv.StartProxy(t, testenv.SharedPostgres(t).Addr, func(up bool, data []byte) testenv.Verdict {
		if up && bytes.Contains(data, []byte("commit")) && armed.CompareAndSwap(true, false) {
			lost.Store(true)
			return testenv.LoseReply
		}
		return testenv.Pass
	})
	far, err := newPool(t.Context(), strings.Replace(r.url, testenv.SharedPostgres(t).Addr, proxy.Addr, 1))
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	c, err := pghold.OpenTransactions(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Shutdown(context.Background())
	l, err := c.NewLock("work", nil)
	if err != nil {
		t.Fatal(err)
	}
	m, err := InTx(far, l, byJob, nil)
	if err != nil {
		t.Fatal(err)
	}
	var runs atomic.Int64
	r.works(m, func(ctx context.Context, job *river.Job[args]) error {
		runs.Add(1)
		armed.Store(job.Args.N == 1)
		return r.pay(ctx, job.Args.Job)
	})
	for n := range 2 {
		r.is(r.insert(args{Job: "a", N: 1 + n}, nil), rivertype.JobStateCompleted)
	}
	// Whatever River makes of the error comes before it works something else.
	r.is(r.insert(args{Job: "b", N: 3}, nil), rivertype.JobStateCompleted)
	if !lost.Load() || r.paid("a") != 1 || runs.Load() != 2 {
		t.Errorf("the answer was lost: %v; paid %d times, %d runs", lost.Load(), r.paid("a"), runs.Load())
	}
}

func TestOptions(t *testing.T) {
	t.Parallel()
	c, err := memhold.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Shutdown(context.Background())
	l, err := c.NewLock("work", nil)
	if err != nil {
		t.Fatal(err)
	}
	for what, opts := range map[string]*OnceOptions{
		"lock work: Again": {Again: time.Millisecond}, "lock work: Suspended": {Suspended: time.Millisecond}, "OnRunning": {Once: once.Options{OnRunning: once.Skip}},
		"Input": {Once: once.Options{Input: []byte{}}}, "lock work: Keep -1": {Once: once.Options{Keep: -1}},
		"lock work: OnLapse 9": {Once: once.Options{OnLapse: 9}}, "lock work: OnError 9": {Once: once.Options{OnError: 9}}, "lock work: MaxRuns -1": {Once: once.Options{MaxRuns: -1}},
	} {
		if _, err := Once(l, byJob, opts); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("Once with a wrong %s: %v", what, err)
		}
	}
	for what, opts := range map[string]*InTxOptions{"lock work: Again": {Again: time.Millisecond}, "Wait": {Wait: time.Microsecond}, "Keep": {Keep: -1}} {
		if _, err := InTx(noDB{}, l, byJob, opts); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("InTx with a wrong %s: %v", what, err)
		}
	}
	harmful, err := c.NewLock("payout", &holdlock.LockOptions{DoubleRun: holdlock.Harmful})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Once(harmful, byJob, nil); !errors.Is(err, holdlock.ErrRefused) || !strings.Contains(err.Error(), "lock payout") {
		t.Errorf("Once with a Harmful lock that nothing protects: %v", err)
	}
	shadow, err := c.NewLock("report", &holdlock.LockOptions{DoubleRun: holdlock.Costly, Mode: holdlock.Shadow})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Once(shadow, byJob, nil); !errors.Is(err, holdlock.ErrInvalid) || !strings.Contains(err.Error(), "lock report") {
		t.Errorf("Once in shadow mode: %v", err)
	}
	if _, err := InTx(noDB{}, shadow, byJob, nil); !errors.Is(err, holdlock.ErrInvalid) || !strings.Contains(err.Error(), "report") {
		t.Errorf("InTx in shadow mode: %v", err)
	}
	if _, err := Once(l, nil, nil); err == nil {
		t.Error("Once without a key")
	}
	if _, err := InTx(nil, l, byJob, nil); err == nil {
		t.Error("InTx without a database")
	}
	if _, err := InTx((*pgxpool.Pool)(nil), l, byJob, nil); err == nil {
		t.Error("InTx with a pool that is nil")
	}
	if _, err := InTx(noDB{}, nil, byJob, &InTxOptions{Wait: -1}); err == nil {
		t.Error("InTx without a lock")
	}
	if Tx(t.Context()) != nil {
		t.Error("there is a transaction without InTx")
	}
}

type noDB struct{}

func (noDB) BeginTx(context.Context, pgx.TxOptions) (pgx.Tx, error) {
	return nil, errors.New("no database")
}
