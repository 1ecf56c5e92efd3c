package ledger

import (
	"context"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver/faultdriver"
	"github.com/holdlock/holdlock/memhold"
)

// extra counts all that it is told, and allocates: what TestCost has to notice.
type extra struct {
	*Recorder
	seen []*holdlock.Event
	ask  func()
}

// Observe implements holdlock.Observer.
func (e *extra) Observe(ev holdlock.Event) {
	e.seen = append(e.seen, &ev)
	e.ask()
	e.Recorder.Observe(ev)
}

// What is counted costs a lock no request and no allocation, neither when it is taken nor when it is given back.
func TestCost(t *testing.T) {
	ops := []faultdriver.Op{faultdriver.Acquire, faultdriver.Release, faultdriver.Enqueue, faultdriver.UpdateRecords, faultdriver.ReadRecords, faultdriver.Inspect}
	measure := func(rec func(d *faultdriver.Driver) holdlock.Recorder) (requests int, allocs float64) {
		d := faultdriver.New(memhold.NewDriver(nil), nil)
		opts := &holdlock.ClientOptions{}
		if rec != nil {
			opts.Recorder = rec(d)
		}
		c, err := holdlock.NewClient(d, opts)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Shutdown(context.Background())
		l, err := c.NewLock("a", nil)
		if err != nil {
			t.Fatal(err)
		}
		do := func() {
			if err := l.Do(t.Context(), func(context.Context, *holdlock.Lease) error { return nil }); err != nil {
				t.Error(err)
			}
		}
		do() // the first time makes what is kept
		allocs = testing.AllocsPerRun(500, do)
		for _, op := range ops {
			requests += d.Count(op)
		}
		return requests, allocs
	}
	none, least := measure(nil)
	hourly := &Options{Every: time.Hour}
	if n, allocs := measure(func(*faultdriver.Driver) holdlock.Recorder { return New(hourly) }); n != none || allocs > least {
		t.Errorf("with a recorder: %d requests and %v allocations a run, without %d and %v", n, allocs, none, least)
	}
	n, allocs := measure(func(d *faultdriver.Driver) holdlock.Recorder {
		return &extra{New(hourly), nil, func() { _, _, _ = d.Inspect(context.Background(), "a") }}
	})
	if n <= none || allocs <= least {
		t.Errorf("control: a recorder that asks and allocates costs %d requests and %v allocations, and without it is %d and %v", n, allocs, none, least)
	}
}
