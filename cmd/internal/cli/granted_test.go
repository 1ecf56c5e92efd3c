package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/memhold"
	"github.com/holdlock/holdlock/once"
)

// atGrant sends a signal in the moment of each grant, and returns from it when somebody has taken notice.
type atGrant struct{ signals chan os.Signal }

func (a atGrant) Observe(e holdlock.Event) {
	if e.Kind != holdlock.Granted {
		return
	}
	a.signals <- syscall.SIGTERM
	for len(a.signals) > 0 {
		<-time.After(time.Millisecond)
	}
}

// A signal in the moment of the grant: nothing is run, and so the next one finds the job and the lock as if nobody had asked for them.
func TestSignalAtTheGrant(t *testing.T) {
	t.Parallel()
	store := memhold.NewStore()
	open := func(o holdlock.Observer) *holdlock.Client {
		c, err := memhold.Open(&memhold.Options{Store: store, Client: holdlock.ClientOptions{Observer: o}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Shutdown(context.Background()) })
		return c
	}
	for name, job := range map[string]*once.Options{"lock": nil, "job/1": {Keep: time.Hour, OnLapse: once.Hold, MaxRuns: 1}} {
		signals := make(chan os.Signal, 1)
		r := &runCmd{Lock: name, TTL: 30 * time.Second, MinHold: time.Hour, MaxHold: span(holdlock.Forever)}
		ours := &session{g: &globals{stdout: io.Discard, stderr: io.Discard}, r: r, job: job, signals: signals, client: open(atGrant{signals})}
		next := &session{g: ours.g, r: r, job: job, client: open(nil)}
		var err error
		for _, s := range []*session{ours, next} {
			if s.lock, err = r.declare(s.client); err != nil {
				t.Fatal(err)
			}
		}
		_, err = ours.acquire(0)
		var ended *exitError
		if !errors.As(err, &ended) || ended.code != 128+15 {
			t.Errorf("%s: %v, want that a signal has ended it", name, err)
		}
		lease, err := next.acquire(0)
		if err != nil {
			t.Errorf("%s: the next one: %v", name, err)
			continue
		}
		if j := lease.Job(); job != nil && (j.Runs != 1 || j.Before != 0) {
			t.Errorf("%s: the next run is %+v, want the first", name, j)
		}
		_ = lease.Release(context.Background())
	}
}
