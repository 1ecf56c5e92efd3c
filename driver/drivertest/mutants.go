package drivertest

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// A Mutant is a fault that stores have, as a change to a driver that works.
type Mutant struct {
	// Name says what it does wrong.
	Name string
	// Cases are the subtests of Run that must notice, each on its own. The number in front is the rule it breaks.
	Cases []string
	// Wrap makes a good driver faulty.
	Wrap func(driver.Driver) driver.Driver
	// Needs says whether a store has what the fault is in. Nil means that every store has.
	Needs func(driver.Driver) bool
}

// RunMutants checks that the suite is not blind on this store: for each of Mutants, the subtests that are named for it
// have to fail. It takes some seconds in real time, most of which it waits.
func RunMutants(t *testing.T, h Harness) {
	// Most mutants are given away by a wrong answer, and some by something that does not come. There is no need to wait for
	// that as long as for a slow store.
	h.Patience = 400 * time.Millisecond
	cases := map[string]testCase{}
	for _, tc := range allCases() {
		cases[tc.name] = tc
	}
	trials := map[string][]*trial{}
	places := make(chan struct{}, 8)
	var wg sync.WaitGroup
	for _, m := range Mutants() {
		for _, name := range m.Cases {
			tr := &trial{tc: cases[name], mutant: m}
			trials[m.Name] = append(trials[m.Name], tr)
			if h.Virtual {
				tr.run(t, h) // bubbles of one test cannot run together, and are quick
				continue
			}
			places <- struct{}{}
			wg.Go(func() {
				defer func() { <-places }()
				tr.run(t, h)
			})
		}
	}
	wg.Wait()
	for _, m := range Mutants() {
		t.Run(m.Name, func(t *testing.T) {
			for _, tr := range trials[m.Name] {
				tr.report(t)
			}
		})
	}
}

// A trial is one case on one mutant.
type trial struct {
	tc       testCase
	mutant   Mutant
	failures recorder
	lacking  atomic.Bool // the store lacks what the fault is in
}

func (tr *trial) run(t *testing.T, h Harness) {
	tries := 1
	if !h.Virtual {
		tries = 12 // a term that has run out before the case got to use it, on a busy machine, hides what is wrong with it
	}
	for range tries {
		h.run(t, tr.tc, func(d driver.Driver) driver.Driver {
			if tr.mutant.Needs != nil && !tr.mutant.Needs(d) || !able(d, tr.tc.name) {
				tr.lacking.Store(true)
			}
			return tr.mutant.Wrap(d)
		}, &tr.failures)
		if len(tr.failures.failures) > 0 || tr.lacking.Load() {
			return
		}
	}
}

// able says whether a store has what a case is about: without it the case passes, whatever else is wrong.
func able(d driver.Driver, name string) bool {
	switch rule, _, _ := strings.Cut(name, "/"); rule {
	case "R11":
		return has[driver.Journal](d)
	case "R12":
		return has[driver.Ledger](d)
	default:
		return true
	}
}

func (tr *trial) report(t *testing.T) {
	t.Helper()
	failures := tr.failures.failures
	switch {
	case tr.lacking.Load():
		t.Logf("%s: the store lacks what the fault is in", tr.tc.name)
	case len(failures) == 0:
		t.Errorf("%s does not notice", tr.tc.name)
	case strings.HasPrefix(failures[0], noStore):
		t.Errorf("%s: %s", tr.tc.name, failures[0])
	default:
		t.Logf("%s: %s", tr.tc.name, failures[0])
	}
}

// Mutants returns the faults that RunMutants tries. They work on top of any driver.
func Mutants() []Mutant {
	return slices.Concat(
		exclusionMutants(), tokenMutants(), matchMutants(), retryMutants(), waitMutants(), queueMutants(), boundedMutants(),
		answerMutants(), listMutants(), lossMutants(), claimMutants(), recordMutants(), journalMutants(), ledgerMutants(),
	)
}
