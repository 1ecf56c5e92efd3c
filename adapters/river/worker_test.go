//go:build unix

package riverlock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/once"
	"github.com/holdlock/holdlock/pghold"
)

// workerEnv makes a process of this test a worker: "MODE DIRECTORY URL".
const workerEnv = "RIVERLOCK_TEST_WORKER"

// args are those of the jobs.
type args struct {
	Job  string `json:"job"`
	Hang bool   `json:"hang,omitempty"` // the first run of it stands still until its process is killed
	N    int    `json:"n"`              // tells two River jobs of one job apart
}

func (args) Kind() string { return "work" }

// byJob is the key of a River job.
func byJob(row *rivertype.JobRow) (string, error) {
	a, err := argsOf(row)
	return a.Job, err
}

// A diary is a file to which many processes add lines, each in one write.
type diary struct{ file *os.File }

func openDiary(dir string) (diary, error) {
	f, err := os.OpenFile(filepath.Join(dir, "diary"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	return diary{f}, err
}

func (d diary) note(kind string, what ...any) {
	_, _ = io.WriteString(d.file, kind+" "+fmt.Sprintln(what...))
}

// Observe implements holdlock.Observer: a successor tells of a lapse.
func (d diary) Observe(e holdlock.Event) {
	if e.Kind == holdlock.Rerun {
		d.note("rerun", e.Key)
	}
}

// jobWorker does the jobs. Their effect is a row in the ledger if there is a transaction, and otherwise a line in the diary.
type jobWorker struct {
	river.WorkerDefaults[args]

	dir  string
	bare *pgxpool.Pool // nil, or where the effect is in both places and under no lock
	diary
}

func (w *jobWorker) Work(ctx context.Context, job *river.Job[args]) error {
	w.note("begin", job.Args.Job, os.Getpid())
	if job.Args.Hang {
		f, err := os.OpenFile(filepath.Join(w.dir, "hung-"+job.Args.Job), os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil {
			f.Close()
			w.note("hangs", job.Args.Job)
			<-ctx.Done()
			return ctx.Err()
		}
	}
	pause := func() error {
		select {
		case <-time.After(20*time.Millisecond + rand.N(20*time.Millisecond)):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err := pause(); err != nil {
		return err
	}
	const pay = `INSERT INTO ledger VALUES ($1)`
	if tx := Tx(ctx); tx != nil {
		if _, err := tx.Exec(ctx, pay, job.Args.Job); err != nil {
			return err
		}
	} else {
		w.note("effect", job.Args.Job)
	}
	if w.bare != nil {
		if _, err := w.bare.Exec(ctx, pay, job.Args.Job); err != nil {
			return err
		}
	}
	return pause()
}

// deliveries notes each delivery of a River job, and when it was put off, outside of the middleware under test.
func deliveries(d diary) rivertype.WorkerMiddleware {
	return river.WorkerMiddlewareFunc(func(ctx context.Context, job *rivertype.JobRow, doInner func(context.Context) error) error {
		d.note("delivery", job.ID, time.Now().UnixMilli(), "come")
		err := doInner(ctx)
		var snooze *rivertype.JobSnoozeError
		if errors.As(err, &snooze) {
			d.note("delivery", job.ID, time.Now().UnixMilli(), "off")
		}
		return err
	})
}

const leaseTTL = 2 * time.Second

// middleware returns the middleware of a mode, and what ends it.
func middleware(ctx context.Context, mode, url string, pool *pgxpool.Pool, d diary) (rivertype.WorkerMiddleware, func(), error) {
	lock := func(c *holdlock.Client, err error) (*holdlock.Lock, func(), error) {
		if err != nil {
			return nil, nil, err
		}
		l, err := c.NewLock("work", &holdlock.LockOptions{TTL: leaseTTL, DoubleRun: holdlock.Costly})
		return l, func() { _ = c.Shutdown(context.Background()) }, err
	}
	client := holdlock.ClientOptions{Observer: d, CallTimeout: 20 * time.Second}
	switch mode {
	case "tx":
		l, end, err := lock(pghold.OpenTransactions(nil))
		if err != nil {
			return nil, nil, err
		}
		m, err := InTx(pool, l, byJob, nil)
		return m, end, err
	case "lease":
		l, end, err := lock(pghold.Open(ctx, url, &pghold.LeaseOptions{Client: client}))
		if err != nil {
			return nil, nil, err
		}
		m, err := Once(l, byJob, &OnceOptions{Once: once.Options{OnLapse: once.Rerun}})
		return m, end, err
	case "bare":
		return river.WorkerMiddlewareFunc(func(ctx context.Context, _ *rivertype.JobRow, doInner func(context.Context) error) error {
			return doInner(ctx)
		}), func() {}, nil
	case "naive": // what is usually written: a lock, and who does not get it has nothing to do
		l, end, err := lock(pghold.Open(ctx, url, &pghold.LeaseOptions{Client: client}))
		return river.WorkerMiddlewareFunc(func(ctx context.Context, job *rivertype.JobRow, doInner func(context.Context) error) error {
			key, err := byJob(job)
			if err != nil {
				return err
			}
			err = l.For(key).Do(ctx, func(ctx context.Context, _ *holdlock.Lease) error { return doInner(ctx) })
			if errors.Is(err, holdlock.ErrHeld) {
				return nil
			}
			return err
		}), end, err
	}
	return nil, nil, fmt.Errorf("mode %q", mode)
}

// work is a worker process. It works jobs until it is told to end, or killed.
func work(spec string) error {
	var mode, dir, url string
	if _, err := fmt.Sscan(spec, &mode, &dir, &url); err != nil {
		return err
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(3) // who has started us is gone
	}()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	d, err := openDiary(dir)
	if err != nil {
		return err
	}
	pool, err := newPool(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	m, end, err := middleware(ctx, mode, url, pool, d)
	if err != nil {
		return err
	}
	defer end()
	w := &jobWorker{dir: dir, diary: d}
	if mode == "bare" {
		w.bare = pool
	}
	client, err := newClient(pool, w, deliveries(d), m)
	if err != nil {
		return err
	}
	if err := client.Start(context.Background()); err != nil {
		return err
	}
	<-ctx.Done()
	return client.Stop(context.Background())
}

func newPool(ctx context.Context, url string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 8
	return pgxpool.NewWithConfig(ctx, config)
}

// clientID is what River notes with the jobs that a process works.
func clientID(pid int) string { return fmt.Sprint("process ", pid) }

// newClient returns a River client that works quickly and takes over soon from workers that were killed.
func newClient(pool *pgxpool.Pool, w river.Worker[args], middlewares ...rivertype.WorkerMiddleware) (*river.Client[pgx.Tx], error) {
	workers := river.NewWorkers()
	river.AddWorker(workers, w)
	config := &river.Config{
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 4}}, Workers: workers,
		FetchCooldown: 20 * time.Millisecond, FetchPollInterval: 200 * time.Millisecond,
		JobTimeout: 20 * time.Second, RescueStuckJobsAfter: 25 * time.Second,
		ID:     clientID(os.Getpid()),
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError + 1})),
	}
	for _, m := range middlewares {
		config.Middleware = append(config.Middleware, m)
	}
	return river.NewClient(riverpgxv5.New(pool), config)
}
