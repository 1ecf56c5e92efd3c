package holdlock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/memhold"
)

// slowRecorder takes as long as it is given, or some time if that is less.
type slowRecorder struct {
	holdlock.Recorder
	takes time.Duration
	err   error
}

func (s *slowRecorder) Start(driver.Ledger, string) error { return nil }

func (s *slowRecorder) Stop(ctx context.Context) error {
	select {
	case <-ctx.Done():
		s.err = ctx.Err()
	case <-time.After(s.takes):
	}
	return s.err
}

// A Shutdown whose context ends gives the recorder a moment more, also if it had ended before, and not the time of a call.
func TestShutdownIsNotHeldUpByCounts(t *testing.T) {
	for name, c := range map[string]struct {
		takes, given, most time.Duration
		fails              bool
	}{
		"quick":           {100 * time.Millisecond, time.Minute, 100 * time.Millisecond, false},
		"slow":            {3 * time.Second, time.Minute, 3 * time.Second, false},
		"hangs":           {time.Hour, time.Minute, 5 * time.Second, true},
		"hangs, late":     {time.Hour, time.Second, 1500 * time.Millisecond, true},
		"quick, too late": {100 * time.Millisecond, 0, 100 * time.Millisecond, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rec := &slowRecorder{takes: c.takes}
				client, err := holdlock.NewClient(memhold.NewDriver(nil), &holdlock.ClientOptions{Recorder: rec})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), c.given)
				defer cancel()
				start := time.Now()
				err = client.Shutdown(ctx)
				if took := time.Since(start); took != c.most || (err != nil) != c.fails || (rec.err != nil) != c.fails {
					t.Errorf("it took %v, %v; want %v", took, err, c.most)
				}
			})
		})
	}
}
