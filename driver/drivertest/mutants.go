package drivertest

import (
	"slices"
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
// have to fail. It takes a few seconds in real time.
func RunMutants(t *testing.T, h Harness) {
	cases := map[string]testCase{}
	for _, tc := range allCases() {
		cases[tc.name] = tc
	}
	// Most mutants are given away by a wrong answer, and some by something that does not come. There is no need to wait for
	// that as long as for a slow store.
	h.Patience = 400 * time.Millisecond
	for _, m := range Mutants() {
		t.Run(m.Name, func(t *testing.T) {
			t.Parallel()
			for _, name := range m.Cases {
				tc, ok := cases[name]
				if !ok {
					t.Fatalf("there is no case %q", name)
				}
				failures, applies := h.mutate(t, tc, m)
				switch {
				case !applies:
					t.Logf("%s: the store lacks what the fault is in", name)
				case len(failures) == 0:
					t.Errorf("%s does not notice", name)
				default:
					t.Logf("%s: %s", name, failures[0])
				}
			}
		})
	}
}

// mutate runs one case on a mutant and returns its failures. applies is false if the store lacks what the fault is in.
func (h Harness) mutate(t *testing.T, tc testCase, m Mutant) (failures []string, applies bool) {
	applies = true
	wrap := func(d driver.Driver) driver.Driver {
		applies = m.Needs == nil || m.Needs(d)
		return m.Wrap(d)
	}
	rec := &recorder{}
	h.run(t, tc, wrap, rec)
	return rec.failures, applies
}

// Mutants returns the faults that RunMutants tries. They work on top of any driver.
func Mutants() []Mutant {
	return slices.Concat(
		exclusionMutants(), tokenMutants(), matchMutants(), retryMutants(), waitMutants(), boundedMutants(), answerMutants(),
		listMutants(),
	)
}
