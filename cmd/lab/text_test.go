package lab

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock/cmd/lab/resource"
	"github.com/holdlock/holdlock/cmd/lab/worker"
)

// report is a small one with everything that can stand in a report.
func report() *Report {
	c := Case{Title: "a <case>", Job: "job-1", Repeated: 2, Counts: resource.Counts{Jobs: 1, Runs: 2, Accepted: 1}, Events: []Event{
		{At: 1e6, Who: "A", What: Asks},
		{At: 2e6, Who: "A", What: worker.Granted, Until: 900e6},
		{At: 3e6, Who: "A", What: Begins},
		{At: 4e6, Who: "A", What: Stopped},
		{At: 1100e6, Who: "A", What: Continued},
		{At: 1101e6, Who: "A", What: Stale},
		{At: 1102e6, Who: "A", What: Releases, Text: "too late"},
		{At: 1103e6, Who: "lab", What: Happens, Text: "the server is killed"},
	}}
	return &Report{Seed: 3, Took: time.Second, Experiments: []Experiment{
		{Mechanism: Mechanism{ID: worker.Redis, Title: "one Redis"}, Fault: Fault{ID: Paused, Title: "worker paused"}, Counts: c.Counts, Cases: []Case{c}},
		{Mechanism: Mechanism{ID: worker.Redis, Title: "one Redis"}, Fault: Fault{ID: Slow}, Counts: resource.Counts{Runs: 9}, Surprise: "counted <9>"},
		{Mechanism: Mechanism{ID: worker.NoLock, Title: "no lock"}, Fault: Fault{ID: Paused}, NotRun: "redis-server was not found"},
		{Mechanism: Mechanism{ID: worker.NoLock, Title: "no lock"}, Fault: Fault{ID: Slow}, NotRun: "there is no store", inapplicable: true},
	}}
}

func TestText(t *testing.T) {
	var out bytes.Buffer
	r := report()
	if err := r.WriteMatrix(&out); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteTimelines(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\nno-lock   not run   –\n", "\nredis     2 S1      9 !\n", "S  stale writes accepted", "not run: redis-server was not found (no-lock/paused)",
		"– there is no store (no-lock/slow)", "! redis/slow: not as it must be: counted <9>", "repeated 2 times", "\none Redis, worker paused: a <case>\n",
		"   1101.0 ms  A    WRITES, though a later run has begun: accepted\n", "A    releases (too late)\n", "lab  the server is killed\n",
		"A    holds the lock, until 900.0 ms unless renewed\n", "  = 1 job, 2 runs, 1 stale write accepted\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the text lacks %q", want)
		}
	}
	if strings.Contains(out.String(), "double") {
		t.Error("a sign is explained that does not occur")
	}
	if t.Failed() {
		t.Log(out.String())
	}
	if r.Ran() != 2 || r.Surprises() != 1 {
		t.Errorf("%d ran, %d surprises", r.Ran(), r.Surprises())
	}
}

func TestHTML(t *testing.T) {
	var out bytes.Buffer
	if err := report().WriteHTML(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"a &lt;case&gt;", `class="surprise" title="counted &lt;9&gt;"`, "not run: redis-server was not found", `href="#redis-paused"`, `id="redis-paused"`,
		"1 stale writes accepted", `class="bad"`, "Seed 3",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
}

// The bars of a drawing: belief ends when trust does, which lies between two events.
func TestDraw(t *testing.T) {
	d := draw(report().Experiments[0].Cases[0])
	y := func(i int) int { return topHeight + rowHeight*i + rowHeight/2 }
	got := map[string][2]int{}
	for _, b := range d.Bars {
		got[b.Kind] = [2]int{b.Y, b.Y + b.H}
	}
	belief := got["belief"]
	if belief[0] != y(1) || belief[1] <= y(3) || belief[1] >= y(4) {
		t.Errorf("belief is drawn from %d to %d; the rows are at %d, %d, …", belief[0], belief[1], y(0), y(1))
	}
	if got["pause"] != [2]int{y(3), y(4)} || got["job"] != [2]int{y(2), y(7)} {
		t.Errorf("%v", got)
	}
	if len(d.Lanes) != 2 || len(d.Rows) != 8 {
		t.Errorf("%d lanes, %d rows", len(d.Lanes), len(d.Rows))
	}
}
