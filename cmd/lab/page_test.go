package lab

import (
	"os"
	"strings"
	"testing"
)

// docs is the page with the lab's results.
const docs = "../../docs/where-redlock-falls-short.md"

// The matrix on the page is the one that comes out, for one trial and for five: TestMatrix compares the same table with what
// is counted.
func TestPage(t *testing.T) {
	page, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	for _, full := range []bool{false, true} {
		trials := shortPace.trials
		if full {
			trials = fullPace.trials
		}
		var r Report
		for _, m := range Mechanisms() {
			for _, f := range Faults() {
				e := Experiment{Mechanism: m, Fault: f, NotRun: notApplicable(m.ID, f.ID), Trials: trials, Counts: expected()[m.ID][f.ID].Times(trials)}
				e.inapplicable = e.NotRun != ""
				r.Experiments = append(r.Experiments, e)
			}
		}
		var matrix strings.Builder
		if err := r.WriteMatrix(&matrix); err != nil {
			t.Fatal(err)
		}
		var want strings.Builder
		for line := range strings.Lines(matrix.String()) {
			want.WriteString(strings.TrimRight(line, " \n") + "\n")
		}
		if !strings.Contains(string(page), want.String()) {
			t.Errorf("the page does not show this matrix; run make docs/lab:\n%s", want.String())
		}
	}
}
