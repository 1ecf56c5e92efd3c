//go:build unix

package lab

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock/cmd/lab/worker"
	"github.com/holdlock/holdlock/internal/testenv"
)

// run runs experiments. What could not be run fails the test.
func run(t *testing.T, opts *Options) *Report {
	t.Helper()
	testenv.Need(t, "redis-server")
	r, err := Run(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range r.Experiments {
		if e.NotRun != "" && !e.inapplicable {
			if e.Surprise != "" || os.Getenv("CI") == "true" || os.Getenv("HOLDLOCK_TEST_REQUIRE") != "" {
				t.Errorf("%s/%s was not run: %s", e.Mechanism.ID, e.Fault.ID, e.NotRun)
			} else {
				t.Logf("NOT TESTED: %s/%s: %s", e.Mechanism.ID, e.Fault.ID, e.NotRun)
			}
		}
	}
	return r
}

// The matrix comes out as it must, one mechanism at a time.
func TestMatrix(t *testing.T) {
	for _, m := range Mechanisms() {
		t.Run(m.ID, func(t *testing.T) {
			t.Parallel()
			r := run(t, &Options{Scenarios: []string{m.ID}, Seed: 1})
			for _, e := range r.Experiments {
				if e.NotRun != "" {
					continue
				}
				if e.Surprise != "" {
					t.Errorf("%s: %s", e.Fault.ID, e.Surprise)
				}
				for _, why := range wrong(&e) {
					t.Errorf("%s: %s", e.Fault.ID, why)
				}
				for _, c := range e.Cases {
					if c.Repeated > 0 {
						t.Logf("%s, %s: repeated %d times", e.Fault.ID, c.Title, c.Repeated)
					}
				}
			}
			t.Logf("%d experiments in %v", r.Ran(), r.Took.Round(time.Millisecond))
		})
	}
}

// wrong says which of the results that a correct lab must reproduce an experiment does not show. It does not look at the
// table of expected counts.
func wrong(e *Experiment) (why []string) {
	m, f, c := e.Mechanism.ID, e.Fault.ID, e.Counts
	check := func(holds bool, what string) {
		if !holds {
			why = append(why, what+", not: "+c.String())
		}
	}
	lock := m != worker.NoLock
	unfenced := slices.Contains([]string{worker.Naive, worker.Redis, worker.Redlock}, m)
	oneServer := m == worker.Naive || m == worker.Redis
	switch {
	case m == worker.Postgres:
		check(c.Double == 0 && c.Overlaps == 0 && c.Accepted == 0, "in the transaction nothing has two effects")
		check(c.Never == 0, "in the transaction every job has run")
	case !lock && f == Duplicate:
		check(c.Double == c.Jobs && c.Overlaps == c.Jobs, "without a lock duplicates run twice")
	case lock && f == Duplicate:
		check(c.Runs == c.Jobs && c.Double == 0, "with a lock duplicates are skipped")
	case f == Late:
		check(c.Double > 0, "no lock knows that a job is done")
	case f == Killed:
		check(c.Double > 0, "no lock knows that a job was done by one that was killed")
		check(!lock || c.Never > 0, "a job is not run whose twin was skipped")
	case f == StaleRelease && m == worker.Naive:
		check(c.Double > 0, "a stale release leads to double runs")
	case f == StaleRelease:
		check(c.Double == 0 && c.Grants == 0, "a release ends its own term only")
	case f == Paused && unfenced:
		check(c.Accepted > 0, "a stale write is accepted without a fence")
	case f == Paused && m == worker.Fenced:
		check(c.Accepted == 0 && c.Refused > 0, "with a fence it is refused")
	case f == Failover && oneServer:
		check(c.Grants > 0, "a failover forgets the lock")
	case f == Empty && (oneServer || m == worker.NoRule):
		check(c.Grants > 0, "a restart forgets the lock")
	case f == Empty && (m == worker.Redlock || m == worker.Fenced):
		check(c.Grants == 0 && c.Runs == 1, "nodes that have restarted abstain")
		abstained := slices.ContainsFunc(e.Cases[0].Events, func(ev Event) bool { return ev.What == worker.Unavailable })
		check(abstained, "somebody asked them, and was told so")
	}
	if m == worker.Redis || m == worker.Redlock {
		if f == Paused || f == Slow {
			check(c.Stopped > 0, "the lock stops who asks it")
		}
	}
	return why
}

// A mechanism that is in truth another one is noticed, by both sets of asserts. These are the mutants of the lab.
func TestSwapped(t *testing.T) {
	for _, c := range []struct{ mechanism, by, fault string }{
		{worker.Naive, worker.NoLock, Duplicate},
		{worker.Redis, worker.NoLock, Duplicate},
		{worker.Redlock, worker.NoLock, Duplicate},
		{worker.Fenced, worker.NoLock, Duplicate},
		{worker.Postgres, worker.NoLock, Duplicate},
		{worker.Redis, worker.NoLock, Paused},
		{worker.Fenced, worker.NoLock, Paused},
		{worker.Postgres, worker.NoLock, Killed},
		{worker.Postgres, worker.Redis, Late},
		{worker.Redis, worker.Naive, StaleRelease},
		{worker.Redis, worker.Naive, Paused},
		{worker.Fenced, worker.Redlock, Paused},
		{worker.Redlock, worker.NoRule, Empty},
		{worker.NoLock, worker.Redis, Duplicate},
	} {
		t.Run(c.mechanism+" is "+c.by+", "+c.fault, func(t *testing.T) {
			t.Parallel()
			r := run(t, &Options{Scenarios: []string{c.mechanism + "/" + c.fault}, swap: map[string]string{c.mechanism: c.by}})
			e := &r.Experiments[0]
			if e.Surprise == "" {
				t.Errorf("the table does not notice it: %s", e.Counts)
			}
			if len(wrong(e)) == 0 {
				t.Errorf("the rules do not notice it: %s", e.Counts)
			}
		})
	}
}

// Where the machine is too slow for the locks, cases are repeated, and what comes out is the same.
func TestTooSlow(t *testing.T) {
	t.Parallel()
	hurried := &pace{trials: 1, brief: 100 * time.Millisecond, long: 100 * time.Millisecond}
	r := run(t, &Options{Scenarios: []string{"redis", "naive"}, pace: hurried})
	repeated := 0
	for _, e := range r.Experiments {
		if e.Surprise != "" {
			t.Errorf("%s/%s: %s %s", e.Mechanism.ID, e.Fault.ID, e.Surprise, e.NotRun)
		}
		for _, c := range e.Cases {
			repeated += c.Repeated
		}
	}
	t.Logf("%d cases were repeated", repeated)
}

// A case that is void is repeated with twice the expiry, three times.
func TestRepeated(t *testing.T) {
	l := &laboratory{pace: pace{brief: 1, long: 10}}
	for void := range repeats + 2 {
		var seen []pace
		err := l.repeated(&part{}, func(p pace, try int) error {
			if try != len(seen) {
				t.Errorf("try %d is called %d", len(seen), try)
			}
			if seen = append(seen, p); len(seen) <= void {
				return errVoid
			}
			return nil
		})
		if gaveUp := errors.Is(err, errVoid); gaveUp != (void > repeats) || !gaveUp && err != nil {
			t.Errorf("%d void tries: %v", void, err)
		}
		if want := min(void, repeats) + 1; len(seen) != want {
			t.Errorf("%d void tries: %d tries, want %d", void, len(seen), want)
		}
		if last := seen[len(seen)-1]; last.brief != 1<<(len(seen)-1) || last.long != 10<<(len(seen)-1) {
			t.Errorf("try %d has the pace %+v", len(seen), last)
		}
	}
}

func TestScenarios(t *testing.T) {
	for name, want := range map[string]int{
		"": len(Mechanisms()) * len(Faults()), Paused: len(Mechanisms()), worker.Redis: len(Faults()), worker.Redis + "/" + Paused: 1,
	} {
		var names []string
		if name != "" {
			names = []string{name}
		}
		if got, err := choose(names); err != nil || len(got) != want {
			t.Errorf("%q: %d experiments, want %d: %v", name, len(got), want, err)
		}
	}
	for _, name := range []string{"pause", "redis/", "/", "paused/redis"} {
		var unknown *UnknownError
		if _, err := Run(context.Background(), &Options{Scenarios: []string{name}}); !errors.As(err, &unknown) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// Every experiment that can be run has an expected result, and no other has.
func TestExpectedIsComplete(t *testing.T) {
	want := expected()
	for _, m := range Mechanisms() {
		for _, f := range Faults() {
			if _, known := want[m.ID][f.ID]; known != (notApplicable(m.ID, f.ID) == "") {
				t.Errorf("%s/%s: expected: %v, not applicable: %q", m.ID, f.ID, known, notApplicable(m.ID, f.ID))
			}
		}
	}
}

// An experiment that fails is told as such; the others are run.
func TestFailed(t *testing.T) {
	testenv.Need(t, "redis-server")
	r, err := Run(t.Context(), &Options{Scenarios: []string{"no-lock/late", "redis/late"}, swap: map[string]string{worker.Redis: "nothing"}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Ran() != 1 || r.Surprises() != 1 {
		t.Errorf("%d ran, %d surprises", r.Ran(), r.Surprises())
	}
	for _, e := range r.Experiments {
		if failed := e.Surprise != ""; failed != (e.Mechanism.ID == worker.Redis) || failed && !strings.Contains(e.NotRun, `there is no mechanism "nothing"`) {
			t.Errorf("%s: %q, %q", e.Mechanism.ID, e.NotRun, e.Surprise)
		}
	}
}
