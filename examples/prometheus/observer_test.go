package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/holdtest"
)

// Each kind of event is made to happen once, or as often as said, and the metrics must say so.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		observer, err := NewObserver(reg)
		if err != nil {
			t.Fatal(err)
		}
		locks := holdtest.NewClient(t, &holdlock.ClientOptions{Observer: observer})
		l, err := locks.NewLock("job", &holdlock.LockOptions{TTL: 30 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		work := func(d time.Duration) func(context.Context, *holdlock.Lease) error {
			return func(ctx context.Context, _ *holdlock.Lease) error {
				select {
				case <-time.After(d):
				case <-ctx.Done():
				}
				return nil
			}
		}
		do := func(key string, d time.Duration, want error) {
			t.Helper()
			if err := l.For(key).Do(t.Context(), work(d)); !errors.Is(err, want) {
				t.Errorf("key %s: %v, want %v", key, err, want)
			}
		}

		do("1", 25*time.Second, nil) // renewed twice
		locks.HoldByAnother("job", "2")
		do("2", 0, holdlock.ErrHeld)
		locks.SetStore(holdtest.Down)
		do("3", 0, holdlock.ErrUnreachable)
		locks.SetStore(holdtest.Up)

		time.AfterFunc(time.Second, func() { locks.SetStore(holdtest.Down) }) // renewals fail until trust ends
		do("4", time.Hour, holdlock.ErrLost)
		locks.SetStore(holdtest.Up)

		expired, err := l.For("5").TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		locks.Expire("job", "5")
		_ = expired.Release(t.Context())
		do("5", 0, nil) // is told of the lapse

		lease, err := l.For("6").TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := locks.Break(t.Context(), "job", "6", lease.Token(), holdlock.BreakOptions{By: "test"}); err != nil {
			t.Fatal(err)
		}
		<-lease.Done()
		synctest.Wait() // the work is told first, the observer then
		_ = lease.Release(t.Context())

		lease, err = l.For("7").TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		const held = `
# HELP holdlock_holding Leases held now.
# TYPE holdlock_holding gauge
holdlock_holding{lock="job"} 1
`
		if err := testutil.GatherAndCompare(reg, strings.NewReader(held), "holdlock_holding"); err != nil {
			t.Error(err)
		}
		if err := lease.Release(t.Context()); err != nil {
			t.Error(err)
		}

		const want = `
# HELP holdlock_breaks_total Terms that this program broke.
# TYPE holdlock_breaks_total counter
holdlock_breaks_total{lock="job"} 1
# HELP holdlock_grants_total Leases that began.
# TYPE holdlock_grants_total counter
holdlock_grants_total{lock="job"} 6
# HELP holdlock_holding Leases held now.
# TYPE holdlock_holding gauge
holdlock_holding{lock="job"} 0
# HELP holdlock_lapses_total Terms before ours that ended without a release: possible double runs.
# TYPE holdlock_lapses_total counter
holdlock_lapses_total{ending="lapsed",lock="job"} 1
# HELP holdlock_losses_total Leases of ours that ended before their release: possible double runs.
# TYPE holdlock_losses_total counter
holdlock_losses_total{lock="job",reason="broken"} 1
holdlock_losses_total{lock="job",reason="paused"} 1
holdlock_losses_total{lock="job",reason="unreachable"} 1
# HELP holdlock_renewals_total Renewals that succeeded.
# TYPE holdlock_renewals_total counter
holdlock_renewals_total{lock="job"} 2
# HELP holdlock_skips_total Attempts that found the lock held by someone else.
# TYPE holdlock_skips_total counter
holdlock_skips_total{lock="job"} 1
# HELP holdlock_store_failures_total Attempts that failed because of the store: the job did not run.
# TYPE holdlock_store_failures_total counter
holdlock_store_failures_total{lock="job"} 1
`
		if err := testutil.GatherAndCompare(reg, strings.NewReader(want),
			"holdlock_breaks_total", "holdlock_grants_total", "holdlock_holding", "holdlock_lapses_total",
			"holdlock_losses_total", "holdlock_renewals_total", "holdlock_skips_total", "holdlock_store_failures_total",
		); err != nil {
			t.Error(err)
		}
		for name, least := range map[string]float64{ // retries and jitter decide how many
			"holdlock_renewal_failures_total": 2, "holdlock_unreleased_total": 1,
		} {
			if got := sum(t, reg, name); got < least {
				t.Errorf("%s is %v, want at least %v", name, got, least)
			}
		}
		if got := sum(t, reg, "holdlock_hold_seconds"); got != 6 {
			t.Errorf("%v leases in the histogram of holds, want 6", got)
		}
		if got := sum(t, reg, "holdlock_wait_seconds"); got != 6 {
			t.Errorf("%v leases in the histogram of waits, want 6", got)
		}
	})
}

// sum adds up a counter, or the observations of a histogram, over its labels. The labels must not hold keys.
func sum(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	total := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			total += m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
			for _, label := range m.GetLabel() {
				if label.GetName() == "lock" && label.GetValue() != "job" {
					t.Errorf("%s has the label %v", name, label)
				}
			}
		}
	}
	return total
}

func TestRegisteredOnce(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	if _, err := NewObserver(reg); err != nil {
		t.Fatal(err)
	}
	if _, err := NewObserver(reg); err == nil {
		t.Error("a second observer on the same registry is not refused")
	}
}
