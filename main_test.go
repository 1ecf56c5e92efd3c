package holdlock_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/memhold"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hooked is a driver whose calls a test can bend. A nil hook passes the call through.
type hooked struct {
	*memhold.Driver
	acquire func(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error)
	renew   func(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error)
	release func(ctx context.Context, req *driver.ReleaseRequest) error
	calls   atomic.Int64
}

// Traits do not promise what a hook may break. Without FIFO there is no line: waiters are hinted, and poll.
func (h *hooked) Traits() driver.Traits {
	t := h.Driver.Traits()
	t.Prompt, t.FIFO = false, false
	return t
}

func (h *hooked) Acquire(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	h.calls.Add(1)
	if h.acquire != nil {
		return h.acquire(ctx, req)
	}
	return h.Driver.Acquire(ctx, req)
}

func (h *hooked) Renew(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
	h.calls.Add(1)
	if h.renew != nil {
		return h.renew(ctx, req)
	}
	return h.Driver.Renew(ctx, req)
}

func (h *hooked) RenewBatch(ctx context.Context, reqs []*driver.RenewRequest) []driver.RenewResult {
	out := make([]driver.RenewResult, len(reqs))
	for i, req := range reqs {
		out[i].Grant, out[i].Err = h.Renew(ctx, req)
	}
	return out
}

func (h *hooked) Release(ctx context.Context, req *driver.ReleaseRequest) error {
	h.calls.Add(1)
	if h.release != nil {
		return h.release(ctx, req)
	}
	return h.Driver.Release(ctx, req)
}

// events collects what an Observer is told.
type events struct {
	mu  sync.Mutex
	all []holdlock.Event
}

func (e *events) Observe(ev holdlock.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, ev)
}

func (e *events) of(kind holdlock.EventKind) []holdlock.Event {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []holdlock.Event
	for _, ev := range e.all {
		if ev.Kind == kind {
			out = append(out, ev)
		}
	}
	return out
}

// rig is a client on a bendable driver, and a second, plain client on the same store: the rival.
type rig struct {
	t      *testing.T
	drv    *hooked
	client *holdlock.Client
	rival  *holdlock.Client
	events *events
}

// virtual runs f in virtual time on a fresh store, and shuts both clients down at its end.
func virtual(t *testing.T, f func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		store := memhold.NewStore()
		r := &rig{t: t, drv: &hooked{Driver: memhold.NewDriver(&memhold.Options{Store: store})}, events: &events{}}
		var err error
		if r.client, err = holdlock.NewClient(r.drv, &holdlock.ClientOptions{Label: "ours", Observer: r.events}); err != nil {
			t.Fatal(err)
		}
		if r.rival, err = memhold.Open(&memhold.Options{Store: store, Client: holdlock.ClientOptions{Label: "rival"}}); err != nil {
			t.Fatal(err)
		}
		f(t, r)
		for _, c := range []*holdlock.Client{r.client, r.rival} {
			ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
			if err := c.Shutdown(ctx); err != nil && !errors.Is(err, holdlock.ErrShutdown) {
				t.Errorf("Shutdown: %v", err)
			}
			cancel()
		}
	})
}

func (r *rig) lock(c *holdlock.Client, opts holdlock.LockOptions) *holdlock.Lock {
	r.t.Helper()
	l, err := c.NewLock("job", &opts)
	if err != nil {
		r.t.Fatal(err)
	}
	return l
}

// remaining is how long the store keeps the key from others.
func (r *rig) remaining() time.Duration {
	r.t.Helper()
	info, ok, err := r.rival.Inspect(r.t.Context(), "job", "")
	if err != nil {
		r.t.Fatal(err)
	}
	if !ok {
		return 0
	}
	return info.FreeIn
}

func wantIs(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error is %v, want %v", what, err, want)
	}
	for _, other := range []error{
		holdlock.ErrHeld, holdlock.ErrLost, holdlock.ErrUnreachable, holdlock.ErrUnknown, holdlock.ErrRefused,
		holdlock.ErrInvalid, holdlock.ErrShort, holdlock.ErrReleased, holdlock.ErrShutdown,
	} {
		if other != want && errors.Is(want, other) == false && errors.Is(err, other) {
			t.Errorf("%s: error %v is also %v: two meanings", what, err, other)
		}
	}
}

func wantReason(t *testing.T, err error, want holdlock.LossReason) {
	t.Helper()
	var lost *holdlock.LostError
	if !errors.As(err, &lost) {
		t.Errorf("error is %v, want a LostError", err)
	} else if lost.Reason != want {
		t.Errorf("reason is %q (%v), want %q", lost.Reason, err, want)
	}
}
