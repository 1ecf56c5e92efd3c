package lab

import (
	"fmt"
	"slices"
	"strings"

	"github.com/holdlock/holdlock/cmd/lab/worker"
)

// A Mechanism is one row of the matrix.
type Mechanism struct {
	ID    string `json:"id"`
	Title string `json:"title"`
}

// A Fault is one column.
type Fault struct {
	ID    string `json:"id"`
	Title string `json:"title"`
	Text  string `json:"text"` // what happens

	cases []schedule
	// ofServers says that the fault hits the servers, so each case needs servers of its own.
	ofServers bool
}

// Mechanisms returns all mechanisms.
func Mechanisms() []Mechanism {
	return []Mechanism{
		{worker.NoLock, "no lock"},
		{worker.Naive, "naive lock"},
		{worker.Redis, "one Redis"},
		{worker.NoRule, "Redlock 5, nodes rejoin at once"},
		{worker.Redlock, "Redlock 5"},
		{worker.Fenced, "Redlock 5 with fence"},
		{worker.Postgres, "PostgreSQL, in the transaction"},
	}
}

// The faults.
const (
	Duplicate    = "duplicate"
	Late         = "late"
	Killed       = "killed"
	Paused       = "paused"
	Slow         = "slow"
	StaleRelease = "stale-release"
	Empty        = "empty"
	Failover     = "failover"
)

// Faults returns all faults.
func Faults() []Fault {
	return []Fault{
		{ID: Duplicate, Title: "none", Text: "no fault: the job is delivered twice at the same time", cases: []schedule{{"delivered twice", duplicate}}},
		{ID: Late, Title: "late duplicate", Text: "the job is delivered again when its first run is over", cases: []schedule{{"delivered again", late}}},
		{ID: Killed, Title: "worker killed", Text: "a worker is killed at work", cases: []schedule{
			{"killed before its write, delivered again", killedBefore},
			{"killed after its write, delivered again", killedAfter},
			{"killed after its twin was skipped", killedUnasked},
		}},
		{ID: Paused, Title: "worker paused", Text: "a worker is stopped until its lock has passed on, and then goes on", cases: []schedule{
			{"asks again before it writes", pausedChecks},
			{"was past its check", pausedBlind},
		}},
		{ID: Slow, Title: "slower than expiry", Text: "a job takes longer than its lock, which is not renewed", cases: []schedule{
			{"asks before it writes", slowChecks},
			{"does not ask", slowBlind},
		}},
		{ID: StaleRelease, Title: "stale release", Text: "a worker gives up; its release comes when its lock has passed on", cases: []schedule{
			{"released late", staleRelease},
		}},
		{ID: Empty, Title: "store restarted", Text: "the store's nodes (of five: three) are killed and start again, without data where they keep none", ofServers: true, cases: []schedule{
			{"restarted under a holder", emptied},
		}},
		{ID: Failover, Title: "failover", Text: "the primary fails before it has replicated, and a replica takes over", ofServers: true, cases: []schedule{
			{"failed over under a holder", failedOver},
		}},
	}
}

// notApplicable says why a fault cannot hit a mechanism; "" if it can.
func notApplicable(mechanism, fault string) string {
	switch {
	case mechanism == worker.NoRule && fault != Empty:
		return "as Redlock 5"
	case mechanism == worker.NoLock && (fault == Empty || fault == Failover):
		return "there is no store"
	case mechanism == worker.NoLock && fault == StaleRelease:
		return "there is nothing to release"
	case fault == Failover && mechanism == worker.Postgres:
		return "lock and data are in one database and fail over together"
	case fault == Failover && mechanism != worker.Naive && mechanism != worker.Redis:
		return "its nodes have no replicas"
	}
	return ""
}

// pair is one experiment.
type pair struct {
	mechanism Mechanism
	fault     Fault
}

// choose returns the experiments that scenarios name: FAULT, MECHANISM or MECHANISM/FAULT. None names all.
func choose(scenarios []string) ([]pair, error) {
	wanted := func(m, f string) bool {
		return len(scenarios) == 0 || slices.Contains(scenarios, m) || slices.Contains(scenarios, f) || slices.Contains(scenarios, m+"/"+f)
	}
	known := map[string]bool{}
	var all []pair
	for _, m := range Mechanisms() {
		for _, f := range Faults() {
			known[m.ID], known[f.ID], known[m.ID+"/"+f.ID] = true, true, true
			if wanted(m.ID, f.ID) {
				all = append(all, pair{m, f})
			}
		}
	}
	for _, s := range scenarios {
		if !known[s] {
			return nil, &UnknownError{s}
		}
	}
	return all, nil
}

// UnknownError says that there is no such scenario.
type UnknownError struct{ Scenario string }

// Error lists those that there are.
func (e *UnknownError) Error() string {
	var faults, mechanisms []string
	for _, f := range Faults() {
		faults = append(faults, f.ID)
	}
	for _, m := range Mechanisms() {
		mechanisms = append(mechanisms, m.ID)
	}
	return fmt.Sprintf("there is no scenario %q: name a fault (%s), a mechanism (%s), or MECHANISM/FAULT",
		e.Scenario, strings.Join(faults, ", "), strings.Join(mechanisms, ", "))
}
