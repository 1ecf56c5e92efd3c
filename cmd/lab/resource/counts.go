package resource

import "fmt"

// Counts are the figures of one experiment. A run overlaps a later run of the same job if it does something after that one
// has begun. Ending without having done anything more does not count as doing something.
type Counts struct {
	Jobs     int `json:"jobs"`
	Runs     int `json:"runs"`                  // that began
	Double   int `json:"double_runs"`           // runs with an effect, beyond the first of each job
	Overlaps int `json:"overlaps"`              // pairs of runs of one job that were at work at the same time
	Grants   int `json:"double_grants"`         // pairs of those that both had reason to believe that they hold the lock
	Accepted int `json:"stale_writes_accepted"` // writes of a run after a later one had begun
	Refused  int `json:"stale_writes_refused"`
	Stopped  int `json:"stopped_in_time"` // runs that ended because their lock said that it is lost, or the fence did
	Never    int `json:"never_ran"`       // jobs without any effect
}

// Plus adds counts.
func (c Counts) Plus(o Counts) Counts {
	return Counts{
		c.Jobs + o.Jobs, c.Runs + o.Runs, c.Double + o.Double, c.Overlaps + o.Overlaps, c.Grants + o.Grants,
		c.Accepted + o.Accepted, c.Refused + o.Refused, c.Stopped + o.Stopped, c.Never + o.Never,
	}
}

// Times multiplies counts.
func (c Counts) Times(n int) Counts {
	sum := Counts{}
	for range n {
		sum = sum.Plus(c)
	}
	return sum
}

// String names what is not zero.
func (c Counts) String() string {
	text := count(c.Jobs, "job", "jobs") + ", " + count(c.Runs, "run", "runs")
	for _, one := range []struct {
		n         int
		one, many string
	}{
		{c.Double, "double run", "double runs"},
		{c.Overlaps, "overlap", "overlaps"},
		{c.Grants, "double grant", "double grants"},
		{c.Accepted, "stale write accepted", "stale writes accepted"},
		{c.Refused, "stale write refused", "stale writes refused"},
		{c.Stopped, "stopped in time", "stopped in time"},
		{c.Never, "never ran", "never ran"},
	} {
		if one.n > 0 {
			text += ", " + count(one.n, one.one, one.many)
		}
	}
	return text
}

func count(n int, one, many string) string {
	if n == 1 {
		many = one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// tally counts while entries come.
type tally struct {
	counts Counts
	jobs   map[string]*job
}

type job struct {
	runs    []*run // in the order in which they began
	effects int
}

type run struct {
	worker   string
	begun    Entry
	wrote    bool
	overlaps map[*run]bool // later ones; true if both believed
}

func (t *tally) add(e Entry) {
	if e.What == Job {
		if t.jobs == nil {
			t.jobs = map[string]*job{}
		}
		t.jobs[e.Job] = &job{}
		t.counts.Jobs++
		t.counts.Never++
		return
	}
	j := t.jobs[e.Job]
	if e.What == Begin {
		if !e.Refused {
			t.counts.Runs++
			j.runs = append(j.runs, &run{worker: e.Worker, begun: e, overlaps: map[*run]bool{}})
		}
		return
	}
	var r *run
	var later []*run
	for i, one := range j.runs {
		if one.worker == e.Worker {
			r, later = one, j.runs[i+1:]
		}
	}
	if r == nil {
		return // its begin was refused
	}
	if e.What == Write || e.Ended == Done {
		for _, s := range later {
			both := e.Believed() && s.begun.Believed()
			counted, known := r.overlaps[s]
			if !known {
				t.counts.Overlaps++
			}
			if both && !counted {
				t.counts.Grants++
			}
			r.overlaps[s] = both || counted
		}
	}
	switch {
	case e.What == Write && e.Refused:
		t.counts.Refused++
	case e.What == Write:
		if len(later) > 0 {
			t.counts.Accepted++
		}
		t.effect(j, r)
	case e.Ended == Lost:
		t.counts.Stopped++
	}
}

func (t *tally) effect(j *job, r *run) {
	if r.wrote {
		return
	}
	r.wrote = true
	if j.effects++; j.effects == 1 {
		t.counts.Never--
	} else {
		t.counts.Double++
	}
}
