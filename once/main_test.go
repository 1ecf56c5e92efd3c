package once_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/faultdriver"
	"github.com/holdlock/holdlock/memhold"
	"github.com/holdlock/holdlock/once"
)

func TestMain(m *testing.M) {
	if args := os.Getenv(workerEnv); args != "" {
		os.Exit(work(args)) // a process that TestKills has started
	}
	goleak.VerifyTestMain(m)
}

// A worker is one process: a client on a driver whose calls can go wrong, and what its observer was told.
type worker struct {
	t      *testing.T
	drv    *faultdriver.Driver
	client *holdlock.Client

	mu     sync.Mutex
	events []holdlock.Event
}

func (w *worker) Observe(e holdlock.Event) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, e)
}

func (w *worker) told(kind holdlock.EventKind) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

const ttl = 10 * time.Second

func newWorker(t *testing.T, drv driver.Driver) *worker {
	t.Helper()
	w := &worker{t: t, drv: faultdriver.New(drv, nil)}
	var err error
	if w.client, err = holdlock.NewClient(w.drv, &holdlock.ClientOptions{Observer: w, CallTimeout: time.Second}); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *worker) lock(name string, opts holdlock.LockOptions) *holdlock.Lock {
	w.t.Helper()
	opts.TTL = ttl
	l, err := w.client.NewLock(name, &opts)
	if err != nil {
		w.t.Fatal(err)
	}
	return l
}

func (w *worker) job(key string) *holdlock.Lock {
	return w.lock("charge", holdlock.LockOptions{}).For(key)
}

// dead is a script under which nothing of a process reaches the store any more.
func dead(faultdriver.Call) faultdriver.Fault { return faultdriver.Fault{Drop: true} }

// only makes a fault happen to calls of one kind.
func only(op faultdriver.Op, f faultdriver.Fault) faultdriver.Script {
	return func(c faultdriver.Call) faultdriver.Fault {
		if c.Op == op {
			return f
		}
		return faultdriver.Fault{}
	}
}

func (w *worker) stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := w.client.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, holdlock.ErrShutdown) {
		w.t.Errorf("Shutdown: %v", err)
	}
}

// virtual runs f in virtual time with two workers on one store.
func virtual(t *testing.T, f func(t *testing.T, a, b *worker)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := memhold.NewStore()
		a := newWorker(t, memhold.NewDriver(&memhold.Options{Store: store}))
		b := newWorker(t, memhold.NewDriver(&memhold.Options{Store: store}))
		defer a.stop()
		defer b.stop()
		f(t, a, b)
	})
}

// ok is a job that succeeds with a result.
func ok(result string) func(context.Context, *once.Run) ([]byte, error) {
	return func(context.Context, *once.Run) ([]byte, error) { return []byte(result), nil }
}

// never is a job that must not run.
func never(t *testing.T) func(context.Context, *once.Run) ([]byte, error) {
	return func(_ context.Context, run *once.Run) ([]byte, error) {
		t.Errorf("run number %d of a job that must not run", run.Number)
		return nil, nil
	}
}

// wants checks an outcome.
func wants(t *testing.T, what string, out once.Outcome, err error, status once.Status, want error) {
	t.Helper()
	if out.Status != status || !errors.Is(err, want) || (err == nil) != (want == nil) {
		t.Errorf("%s: %v, %v; want %v, %v", what, out.Status, err, status, want)
	}
}

// die lets a worker begin the job and die at work, and returns when its term is over.
func (w *worker) die(l *holdlock.Lock, opts *once.Options) {
	w.t.Helper()
	died := errors.New("died")
	out, err := once.Do(context.Background(), l, opts, func(context.Context, *once.Run) ([]byte, error) {
		w.drv.SetScript(dead)
		return nil, died
	})
	wants(w.t, "a worker that dies", out, err, once.Failed, died)
	time.Sleep(2 * ttl)
}
