package main

import (
	"context"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

// Workers are this test binary.
func TestMain(m *testing.M) {
	if os.Getenv(workerVariable) != "" {
		if err := work(os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func testServer(t *testing.T) *server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if slices.Contains(strings.Split(os.Getenv("HOLDLOCK_TEST_REQUIRE"), ","), "redis") {
			t.Fatal("redis-server is not installed")
		}
		t.Skip("SKIPPED: redis-server is not installed")
	}
	s, err := startServer()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.stop)
	return s
}

// A tiny round of everything, so that what is compared works: every contestant is measured in every scenario that is
// meant for it, all figures are there, and nobody holds the key at the same time as another.
func TestEveryContestantWorks(t *testing.T) {
	s := testServer(t)
	p := plan{
		rounds: 1, window: 50 * time.Millisecond, callers: []int{1, 4}, waiters: []int{8}, idle: 8,
		leases: 20, ttl: 600 * time.Millisecond, keep: time.Second,
	}
	r, err := measure(t.Context(), s, p, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range contestants() {
		for _, n := range p.callers {
			got := r.pairs[n][c.name]
			if len(got) != 1 || got[0].perSecond <= 0 || got[0].p50 <= 0 {
				t.Errorf("%d callers, %s: %+v", n, c.name, got)
			}
		}
	}
	for name, got := range r.lines[8] {
		if len(got) != 1 || got[0].perSecond <= 0 || got[0].overlaps > 0 || got[0].requests < 1 {
			t.Errorf("line, %s: %+v", name, got)
		}
	}
	if len(r.lines[8]) != 10 || len(r.idle) != 10 || len(r.leases) != 4 {
		t.Errorf("readings: %d of the line, %d idle, %d of leases", len(r.lines[8]), len(r.idle), len(r.leases))
	}
	for name, got := range r.leases {
		if len(got) != 1 || got[0].Bytes == 0 || got[0].Commands <= 0 {
			t.Errorf("leases, %s: %+v", name, got)
		}
	}
	if len(r.failed) > 0 {
		t.Errorf("not measured: %q", r.failed)
	}
	page := r.markdown("a test")
	for _, c := range append(contestants(), waitingFloors()...) {
		if !strings.Contains(page, c.name) {
			t.Errorf("the page says nothing of %s", c.name)
		}
	}
	if strings.Contains(page, "NaN") || strings.Contains(page, "Inf") {
		t.Errorf("the page has figures that are none:\n%s", page)
	}
}

// The two bare scripts must do what holdlock does: what the first one takes is taken, and the second one frees it.
func TestBareScriptsLock(t *testing.T) {
	s := testServer(t)
	ctx := context.Background()
	o := setup{ttl: 30 * time.Second}
	ours, err := openHoldlock(recommended(s.addr), o)
	if err != nil {
		t.Fatal(err)
	}
	defer ours.close()
	for _, name := range []string{scriptsName, scriptsRueidisName} {
		c, _ := named(name)
		l, err := c.open(s.addr, o)
		if err != nil {
			t.Fatal(err)
		}
		defer l.close()
		unlock, err := l.lock(ctx, "bench/k")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		if _, err := ours.lock(short, "bench/k"); err != nil {
			t.Logf("%s: held as it should be: %v", name, err)
		}
		cancel()
		if err := unlock(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Turns are put in order by the clock that all processes share, and two holders at once are seen.
func TestJudgeTurns(t *testing.T) {
	ms := int64(time.Millisecond)
	r := judgeTurns([]turn{
		{Waiter: 1, Asked: 0, Got: 3 * ms, Releasing: 4 * ms},
		{Waiter: 0, Asked: 0, Got: 1 * ms, Releasing: 2 * ms},
		{Waiter: 1, Asked: 4 * ms, Got: 6 * ms, Releasing: 9 * ms},
		{Waiter: 0, Asked: 3 * ms, Got: 8 * ms, Releasing: 10 * ms}, // while 1 has it
	}, 3)
	if r.overlaps != 1 || r.self != 1.0/3 || r.fewest != 0 || r.most != 2 || r.unfair != 1 {
		t.Errorf("%+v", r)
	}
	if r.p50 < 990*time.Microsecond || r.p50 > 1010*time.Microsecond {
		t.Errorf("hand-over %v, want 1 ms", r.p50)
	}
}

// BenchmarkPair is for profiles of a single caller, and for its processor time, which is less disturbed by what else the
// machine does than the time it takes; the figures that are compared come from go run.
func BenchmarkPair(b *testing.B) {
	s, err := startServer()
	if err != nil {
		b.Skip(err)
	}
	defer s.stop()
	for _, c := range contestants() {
		b.Run(c.name, func(b *testing.B) {
			l, err := c.open(s.addr, setup{ttl: 30 * time.Second})
			if err != nil {
				b.Fatal(err)
			}
			defer l.close()
			ctx := context.Background()
			b.ReportAllocs()
			client := processorTime()
			server, _ := s.cpu(ctx)
			for b.Loop() {
				unlock, err := l.lock(ctx, "k")
				if err == nil {
					err = unlock()
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			serverEnd, _ := s.cpu(ctx)
			b.ReportMetric(float64((processorTime()-client).Nanoseconds())/float64(b.N), "client-ns/op")
			b.ReportMetric(float64((serverEnd-server).Nanoseconds())/float64(b.N), "server-ns/op")
		})
	}
}
