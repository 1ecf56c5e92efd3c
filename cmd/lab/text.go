package lab

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/holdlock/holdlock/cmd/lab/resource"
)

// cell is what stands in the matrix: runs, and what is not zero of the rest.
func (e *Experiment) cell() string {
	switch {
	case e.inapplicable:
		return "–"
	case e.NotRun != "":
		return "not run"
	}
	text := fmt.Sprint(e.Counts.Runs)
	for _, f := range figures(e.Counts) {
		if f.N > 0 {
			text += fmt.Sprintf(" %s%d", f.Sign, f.N)
		}
	}
	if e.Surprise != "" {
		text += " !"
	}
	return text
}

// A figure is one count with its names.
type figure struct {
	Sign, Name, Meaning string
	N                   int
	Bad                 bool // it is what a lock is there to prevent
}

// figures are all counts but jobs and runs.
func figures(c resource.Counts) []figure {
	return []figure{
		{"D", "double runs", "runs with an effect, beyond the first of a job", c.Double, true},
		{"O", "overlaps", "two runs of a job at work at the same time", c.Overlaps, true},
		{"G", "double grants", "overlaps whose two workers both had reason to believe that they hold the lock", c.Grants, true},
		{"S", "stale writes accepted", "writes of a run after a later one had begun", c.Accepted, true},
		{"F", "stale writes refused", "the same, refused by the resource", c.Refused, false},
		{"L", "stopped in time", "runs that ended without a (further) write because the lock, or the resource, said that it is lost", c.Stopped, false},
		{"N", "jobs that never ran", "jobs without any effect", c.Never, true},
	}
}

// WriteMatrix writes the matrix for people, what it means, and what was not run.
func (r *Report) WriteMatrix(w io.Writer) error {
	mechanisms, faults, at := r.grid()
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, f := range faults {
		fmt.Fprintf(t, "\t%s", f.ID)
	}
	for _, m := range mechanisms {
		fmt.Fprintf(t, "\n%s", m.ID)
		for _, f := range faults {
			text := ""
			if e := at[m.ID+"/"+f.ID]; e != nil {
				text = e.cell()
			}
			fmt.Fprintf(t, "\t%s", text)
		}
	}
	fmt.Fprintln(t)
	if err := t.Flush(); err != nil {
		return err
	}
	var sum resource.Counts
	for _, e := range r.Experiments {
		sum = sum.Plus(e.Counts)
	}
	fmt.Fprint(w, "\nIn a cell: how many runs began, and what is not 0 of the rest.\n")
	for _, f := range figures(sum) {
		if f.N > 0 {
			fmt.Fprintf(w, "  %s  %s: %s\n", f.Sign, f.Name, f.Meaning)
		}
	}
	for _, n := range r.notes() {
		fmt.Fprintln(w, n)
	}
	return nil
}

// grid returns the rows and columns that there are, and the experiments by MECHANISM/FAULT.
func (r *Report) grid() (mechanisms []Mechanism, faults []Fault, at map[string]*Experiment) {
	at = map[string]*Experiment{}
	has := map[string]bool{}
	for i := range r.Experiments {
		e := &r.Experiments[i]
		at[e.Mechanism.ID+"/"+e.Fault.ID] = e
		has[e.Mechanism.ID], has[e.Fault.ID] = true, true
	}
	for _, m := range Mechanisms() {
		if has[m.ID] {
			mechanisms = append(mechanisms, m)
		}
	}
	for _, f := range Faults() {
		if has[f.ID] {
			faults = append(faults, f)
		}
	}
	return mechanisms, faults, at
}

// notes say what is behind the cells without counts, and what is not as it must be.
func (r *Report) notes() (notes []string) {
	why := map[string][]string{} // the experiments by what they have in common
	var order []string
	for _, e := range r.Experiments {
		if e.NotRun == "" {
			continue
		}
		text := "not run: " + e.NotRun
		if e.inapplicable {
			text = "– " + e.NotRun
		}
		if why[text] == nil {
			order = append(order, text)
		}
		why[text] = append(why[text], e.Mechanism.ID+"/"+e.Fault.ID)
	}
	for _, text := range order {
		list := why[text]
		if len(list) > 4 {
			list = append(list[:3:3], fmt.Sprintf("and %d more", len(list)-3))
		}
		notes = append(notes, fmt.Sprintf("%s (%s)", text, strings.Join(list, ", ")))
	}
	for _, e := range r.Experiments {
		if e.Surprise != "" {
			notes = append(notes, fmt.Sprintf("! %s/%s: not as it must be: %s", e.Mechanism.ID, e.Fault.ID, e.Surprise))
		}
		for _, c := range e.Cases {
			if c.Repeated > 0 {
				notes = append(notes, fmt.Sprintf("%s/%s, %s: repeated %d times with twice the expiry, because the machine was too slow", e.Mechanism.ID, e.Fault.ID, c.Title, c.Repeated))
			}
		}
	}
	return notes
}

// Surprises returns how many experiments did not come out as they must.
func (r *Report) Surprises() (n int) {
	for _, e := range r.Experiments {
		if e.Surprise != "" {
			n++
		}
	}
	return n
}

// Ran returns how many experiments were run.
func (r *Report) Ran() (n int) {
	for _, e := range r.Experiments {
		if e.NotRun == "" {
			n++
		}
	}
	return n
}

// WriteTimelines writes who believed what, who wrote, and what was refused, case by case.
func (r *Report) WriteTimelines(w io.Writer) error {
	for _, e := range r.Experiments {
		if e.NotRun != "" {
			continue
		}
		for _, c := range e.Cases {
			fmt.Fprintf(w, "\n%s, %s: %s\n", e.Mechanism.Title, e.Fault.Title, c.Title)
			t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
			for _, ev := range c.Events {
				fmt.Fprintf(t, "  %s\t%s\t%s\n", millis(ev.At), ev.Who, ev.words())
			}
			if err := t.Flush(); err != nil {
				return err
			}
			fmt.Fprintf(w, "  = %s\n", c.Counts)
		}
	}
	return nil
}

// millis is a time of a timeline.
func millis(d time.Duration) string { return fmt.Sprintf("%7.1f ms", d.Seconds()*1000) }

// words are what happened, for people.
func (e Event) words() string {
	text, known := map[string]string{
		Happens: "", RolledBack: "", "ok": "asks its lock: still held", "granted": "holds the lock", "held": "is skipped", "already": "need not run it",
		"unavailable": "gets no answer to build on", "lost": "asks its lock: lost", Stale: "WRITES, though a later run has begun: accepted",
		IsRefused: "writes: REFUSED", Waits: "waits", Asks: "asks for the lock", GivesUp: "stops", WasKilled: "is killed", Stopped: "is paused",
		Continued: "goes on", Begins: "begins the job", Writes: "writes: accepted", Ends: "is through", "failed": "fails",
	}[e.What]
	if !known {
		text = e.What
	}
	if e.What == "granted" && e.Until > 0 {
		switch {
		case e.Until == resource.Always:
			text += " as long as its transaction lasts"
		default:
			text += fmt.Sprintf(", until %s unless renewed", strings.TrimSpace(millis(e.Until)))
		}
	}
	switch {
	case e.Text == "":
		return text
	case text == "":
		return e.Text
	}
	return text + " (" + e.Text + ")"
}
