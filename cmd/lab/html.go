package lab

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/holdlock/holdlock/cmd/lab/resource"
)

//go:embed report.html
var page string

// WriteHTML writes one page with the matrix and all timelines. It needs nothing else: no script, no font, no network.
func (r *Report) WriteHTML(w io.Writer) error {
	t, err := template.New("report").Funcs(template.FuncMap{
		"figures": figures, "draw": draw, "ms": func(d time.Duration) string { return strings.TrimSpace(millis(d)) },
		"seconds": func(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) },
	}).Parse(page)
	if err != nil {
		return err
	}
	mechanisms, faults, at := r.grid()
	return t.Execute(w, struct {
		*Report
		Mechanisms []Mechanism
		Faults     []Fault
		Notes      []string
		Zero       resource.Counts
		At         func(mechanism, fault string) *Experiment
	}{r, mechanisms, faults, r.notes(), resource.Counts{}, func(m, f string) *Experiment { return at[m+"/"+f] }})
}

// Applies says whether the fault can hit the mechanism at all.
func (e *Experiment) Applies() bool { return !e.inapplicable }

// A drawing is a timeline: time goes down, one row for each event, so that milliseconds and seconds both can be read. A lane is
// a worker, or the lab.
type drawing struct {
	Width, Height int
	Lanes         []lane
	Bars          []bar
	Rows          []row
}

type lane struct {
	X    int
	Name string
}

// A bar is a span of time in a lane.
type bar struct {
	X, Y, W, H  int
	Kind, Title string
}

type row struct {
	X, Y       int
	Kind, Mark string
	Time, Text string
	TextX      int
}

const (
	rowHeight = 20
	laneWidth = 46
	timeWidth = 86
	topHeight = 30
)

func draw(c Case) drawing {
	lanes := map[string]int{}
	var d drawing
	for _, e := range c.Events {
		if _, ok := lanes[e.Who]; !ok {
			x := timeWidth + laneWidth*len(lanes) + laneWidth/2
			lanes[e.Who] = x
			d.Lanes = append(d.Lanes, lane{x, e.Who})
		}
	}
	right := timeWidth + laneWidth*len(lanes) + 10
	d.Width, d.Height = right+640, topHeight+rowHeight*len(c.Events)+10
	y := func(i int) int { return topHeight + rowHeight*i + rowHeight/2 }
	for i, e := range c.Events {
		d.Rows = append(d.Rows, row{
			X: lanes[e.Who], Y: y(i), Kind: kinds[e.What], Mark: marks[e.What], Time: strings.TrimSpace(millis(e.At)), Text: e.words(), TextX: right,
		})
	}
	for _, l := range d.Lanes {
		d.Bars = append(d.Bars, spans(c.Events, l.Name, l.X, y)...)
	}
	slices.SortStableFunc(d.Bars, func(a, b bar) int { return b.W - a.W }) // the wide ones lie below
	return d
}

var kinds = map[string]string{
	Writes: "good", Stale: "bad", IsRefused: "refused", Happens: "fault", WasKilled: "fault", Stopped: "fault", Continued: "fault",
}

var marks = map[string]string{WasKilled: "✕", IsRefused: "✕", Happens: "⚡"}

// spans are the bars of one lane: while the worker had reason to believe that it holds the lock, while it was at the job, and
// while it was stopped.
func spans(events []Event, who string, x int, y func(int) int) (bars []bar) {
	last := len(events) - 1
	open := map[string]int{}
	until := time.Duration(0)
	closeBar := func(kind string, end, width int) {
		if from, ok := open[kind]; ok {
			bars = append(bars, bar{x - width/2, from, width, max(2, end-from), kind, titles[kind]})
			delete(open, kind)
		}
	}
	const beliefWidth, jobWidth, pauseWidth = 26, 10, 18
	for i, e := range events {
		if e.Who != who {
			continue
		}
		switch e.What {
		case "granted":
			open["belief"], until = y(i), e.Until
		case Begins:
			open["job"] = y(i)
		case Ends, GivesUp:
			closeBar("job", y(i), jobWidth)
		case Releases, "lost", "failed":
			closeBar("belief", min(y(i), place(events, until, y)), beliefWidth)
		case Stopped:
			open["pause"] = y(i)
		case Continued:
			closeBar("pause", y(i), pauseWidth)
		case WasKilled:
			closeBar("job", y(i), jobWidth)
			closeBar("belief", y(i), beliefWidth)
		}
		if e.Until > until && e.What != Releases {
			until = e.Until // it was renewed
		}
	}
	closeBar("belief", min(y(last), place(events, until, y)), beliefWidth)
	closeBar("job", y(last), jobWidth)
	closeBar("pause", y(last), pauseWidth)
	return bars
}

var titles = map[string]string{"belief": "had reason to believe that it holds the lock", "job": "at the job", "pause": "paused"}

// place is where a moment is on the drawing: between the events before and after it.
func place(events []Event, at time.Duration, y func(int) int) int {
	if at == resource.Always {
		return y(len(events) - 1)
	}
	for i, e := range events {
		if e.At < at {
			continue
		}
		if i == 0 {
			return y(0)
		}
		before := events[i-1].At
		return y(i-1) + int(float64(rowHeight)*float64(at-before)/float64(max(1, e.At-before)))
	}
	return y(len(events) - 1)
}
