package watermillonce_test

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
)

// A diary is a file to which many processes add lines, each in one write, so that nothing is lost when they are killed.
type diary struct{ file *os.File }

func openDiary(dir string) (diary, error) {
	f, err := os.OpenFile(filepath.Join(dir, "diary"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	return diary{f}, err
}

// An entry is one line.
type entry struct {
	kind  string
	job   string
	token holdlock.Token // of the run; of "later" and "acked" the number of the copy
	pid   int
	at    int64 // µs
	run   int   // its number; of "later" and "acked" when the message was sent to come back, if it was
}

// The kinds of entries.
const (
	ready  = "ready"  // a worker, in all of its seats
	began  = "began"  // a run
	effect = "effect" // it has taken effect
	ended  = "ended"  // it is recorded as done
	lost   = "lost"   // it was told that it had lost its lease
	rerun  = "rerun"  // the event: this run follows a lapse
	cut    = "cut"    // the run has cut the connection that its message came by
	later  = "later"  // a copy is sent to come back later
	acked  = "acked"  // a copy is acknowledged, since its job is done

	miscounted = "miscounted" // a run whose count of lapses is wrong
)

func (d diary) note(kind, job string, token holdlock.Token, run int) {
	fmt.Fprintf(d.file, "%s %s %d %d %d %d\n", kind, job, token, os.Getpid(), time.Now().UnixMicro(), run)
}

// Observe implements holdlock.Observer.
func (d diary) Observe(e holdlock.Event) {
	if e.Kind == holdlock.Rerun {
		d.note(rerun, e.Key, e.Token, e.Job.Runs)
	}
}

func readDiary(t *testing.T, dir string) (entries []entry) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "diary"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if !strings.HasSuffix(line, "\n") {
			break // it is being written
		}
		f := strings.Fields(line)
		if len(f) != 6 {
			t.Fatalf("the diary has %q", line)
		}
		e := entry{kind: f[0], job: f[1]}
		token, err1 := strconv.ParseUint(f[2], 10, 64)
		pid, err2 := strconv.Atoi(f[3])
		at, err3 := strconv.ParseInt(f[4], 10, 64)
		run, err4 := strconv.Atoi(f[5])
		if err := errors.Join(err1, err2, err3, err4); err != nil {
			t.Fatalf("the diary has %q: %v", line, err)
		}
		e.token, e.pid, e.at, e.run = holdlock.Token(token), pid, at, run
		entries = append(entries, e)
	}
	return entries
}

func count(entries []entry, kind string) (n int) {
	for _, e := range entries {
		if e.kind == kind {
			n++
		}
	}
	return n
}

// run is what the diary tells of one run.
type run struct {
	pid, number               int
	effect, told, ended, lost bool
}

// A verdict sums up a diary.
type verdict struct {
	jobs, effects int
	reruns        int // runs that were told to follow a lapse
	between       int // runs that lapsed with their effect: killed, or paused, between effect and record
	wrong         []string
}

// judge finds what must not be, of jobs that all succeed. dead are the processes that were killed:
//
//   - a job without an effect: it was skipped and lost;
//   - a run that follows another one and was not told to follow a lapse: nobody reported the lapse, or it was done already;
//   - a lapse of a process that was neither killed nor told that it lost its lease;
//   - a run that tells of a lapse although none was before it;
//   - effects that are not accounted for by lapses.
func judge(entries []entry, jobs []string, dead map[int]bool) (v verdict) {
	blame := func(format string, args ...any) { v.wrong = append(v.wrong, fmt.Sprintf(format, args...)) }
	runs := map[string]map[holdlock.Token]*run{}
	for _, e := range entries {
		switch e.kind {
		case began, effect, ended, lost, rerun:
		case miscounted:
			blame("%s: a run was told of %d lapses", e.job, e.run)
			continue
		default:
			continue
		}
		if runs[e.job] == nil {
			runs[e.job] = map[holdlock.Token]*run{}
		}
		r := runs[e.job][e.token]
		if r == nil {
			r = &run{pid: e.pid, number: e.run}
			runs[e.job][e.token] = r
		}
		r.effect = r.effect || e.kind == effect
		r.told = r.told || e.kind == rerun
		r.ended = r.ended || e.kind == ended
		r.lost = r.lost || e.kind == lost
	}
	for _, job := range jobs {
		v.jobs++
		var ordered []*run
		var effects, told, between int
		tokens := make([]holdlock.Token, 0, len(runs[job]))
		for token := range runs[job] {
			tokens = append(tokens, token)
		}
		slices.SortFunc(tokens, cmp.Compare[holdlock.Token])
		for i, token := range tokens {
			r := runs[job][token]
			ordered = append(ordered, r)
			if r.effect {
				effects++
			}
			if r.told {
				told++
			}
			if r.told && r.number == 1 {
				blame("%s: its first run was told to follow a lapse", job)
			}
			if i == 0 {
				continue // if it is told, the run before was killed before it could note anything
			}
			before := ordered[i-1]
			switch {
			case before.ended:
				blame("%s: run %d began although run %d is recorded as done", job, r.number, before.number)
			case !r.told:
				blame("%s: run %d follows a lapse, and that was not told", job, r.number)
			case !dead[before.pid] && !before.lost:
				blame("%s: run %d has lapsed, and its process was not killed", job, before.number)
			}
			if before.effect {
				between++
			}
		}
		if effects == 0 {
			blame("%s: it was skipped and lost", job)
			continue
		}
		if effects != 1+between {
			blame("%s: its effect is there %d times, and %d runs have lapsed with it", job, effects, between)
		}
		if last := ordered[len(ordered)-1]; told != last.number-1 {
			blame("%s: %d runs lapsed, and %d runs were told so", job, last.number-1, told)
		}
		v.effects, v.reruns, v.between = v.effects+effects, v.reruns+told, v.between+between
	}
	return v
}

// tooSoon counts the messages that came back sooner than their twins allow: twice a second. A message that has come back carries the time
// at which it was sent to; a process that dies between sending it and acknowledging the old one leaves two.
func tooSoon(entries []entry) (soon int, shortest time.Duration) {
	shortest = time.Hour
	for _, e := range entries {
		if e.kind != later && e.kind != acked || e.run == 0 {
			continue
		}
		gap := time.Duration(e.at-int64(e.run)) * time.Microsecond
		shortest = min(shortest, gap)
		if gap < 499*time.Millisecond { // the broker counts whole milliseconds
			soon++
		}
	}
	return soon, shortest
}

// tooOften finds the copies that met a running twin more than twice a second, after the first time. It counts what was sent to come back, of
// workers that neither die nor lose their connections: these leave two messages of a copy.
func tooOften(entries []entry) (wrong []string) {
	type meetings struct {
		n     int
		first int64
	}
	of := map[string]meetings{}
	for _, e := range entries {
		if e.kind != later {
			continue
		}
		name := fmt.Sprintf("copy %d of job %s", e.token, e.job)
		m := of[name]
		if m.n == 0 {
			m.first = e.at
		}
		m.n++
		of[name] = m
		took := time.Duration(e.at-m.first) * time.Microsecond
		if int64(m.n) > 1+int64(took/(499*time.Millisecond)) { // the broker counts whole milliseconds
			wrong = append(wrong, fmt.Sprintf("%s: %d times within %s", name, m.n, took))
		}
	}
	return wrong
}
