//go:build unix

package asynqonce

import (
	"context"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/holdlock/holdlock/internal/testenv"
)

// twins runs a job until its duplicate has been handed out so many times, or more often than twice a second and once, and says whether that
// was so. asynq keeps no count of tasks that come back without a failure, so the deliveries are counted where it hands them out.
func twins(t *testing.T, change func(*asynq.Config), times int) (often bool) {
	t.Helper()
	b := start(t)
	cfg := quick()
	jobs, err := New(b.locks, &cfg, &Options{Redis: b.at(), Key: PayloadKey})
	if err != nil {
		t.Fatal(err)
	}
	change(&cfg)
	var deliveries tally
	running, finish := make(chan struct{}, 2), make(chan struct{})
	mux := asynq.NewServeMux()
	mux.Use(deliveries.deliveries, jobs.Middleware)
	mux.HandleFunc(kind, func(context.Context, *asynq.Task) error {
		running <- struct{}{}
		<-finish
		return nil
	})
	server := asynq.NewServer(b.at(), cfg)
	if err := server.Start(mux); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.Shutdown()
		_ = jobs.Close()
	})
	b.enqueue("job")
	<-running
	begin := time.Now()
	twin := b.enqueue("job", asynq.MaxRetry(1))
	var n int
	var took time.Duration
	testenv.Eventually(t, "the duplicate came", func() bool {
		n = deliveries.of(twin.ID)
		took = time.Since(begin)
		often = often || n > 1+int(2*took.Seconds())
		return often || n >= times
	})
	info, err := b.look.GetTaskInfo("default", twin.ID)
	if err != nil || info.Retried != 0 {
		t.Errorf("the duplicate: %+v, %v", info, err)
	}
	t.Logf("delivered %d times while its twin ran for %.1f s", n, took.Seconds())
	close(finish)
	b.drained(0)
	if len(running) > 0 {
		t.Error("the job ran twice")
	}
	return often
}

// A duplicate comes back at most twice a second while its twin runs. Without the pause it comes back more often than that.
func TestARunningTwinComesBackTwiceASecond(t *testing.T) {
	t.Parallel()
	t.Run("paused", func(t *testing.T) {
		t.Parallel()
		if twins(t, func(*asynq.Config) {}, 4) {
			t.Error("the duplicate came back too often")
		}
	})
	t.Run("control", func(t *testing.T) {
		t.Parallel()
		always := func(cfg *asynq.Config) { cfg.RetryDelayFunc = quick().RetryDelayFunc }
		if !twins(t, always, 1<<30) { // until it is seen
			t.Error("without the pause nothing is seen")
		}
	})
}
