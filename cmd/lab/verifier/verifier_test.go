package verifier

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/holdlock/holdlock/cmd/lab/resource"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// record has a resource log entries, and returns its counts and the log as it stands in the file.
func record(t *testing.T, entries []resource.Entry) (resource.Counts, []resource.Entry) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "log")
	r, err := resource.Open(path, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		r.Import(e)
	}
	counts, err := r.Close()
	if err != nil {
		t.Fatal(err)
	}
	log, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	return counts, log
}

func entry(what resource.What, worker string, at, until time.Duration) resource.Entry {
	return resource.Entry{What: what, Job: "j", Worker: worker, At: at, Until: until}
}

func ended(worker, how string, at time.Duration) resource.Entry {
	e := entry(resource.End, worker, at, 0)
	e.Ended = how
	return e
}

func refused(worker string, at time.Duration) resource.Entry {
	e := entry(resource.Write, worker, at, 0)
	e.Refused = true
	return e
}

// What is counted, by example. Both countings say the same.
func TestCounts(t *testing.T) {
	const job, begin, write = resource.Job, resource.Begin, resource.Write
	for name, c := range map[string]struct {
		log  []resource.Entry
		want resource.Counts
	}{
		"never": {[]resource.Entry{entry(job, "", 1, 0)}, resource.Counts{Jobs: 1, Never: 1}},
		"once": {
			[]resource.Entry{entry(job, "", 1, 0), entry(begin, "A", 2, 9), entry(write, "A", 3, 9), entry(write, "A", 4, 9), ended("A", resource.Done, 5)},
			resource.Counts{Jobs: 1, Runs: 1},
		},
		"one after the other": {
			[]resource.Entry{
				entry(job, "", 1, 0), entry(begin, "A", 2, 9), entry(write, "A", 3, 9), ended("A", resource.Done, 4),
				entry(begin, "B", 5, 9), entry(write, "B", 6, 9), ended("B", resource.Done, 7),
			}, resource.Counts{Jobs: 1, Runs: 2, Double: 1},
		},
		"two holders": {
			[]resource.Entry{entry(job, "", 1, 0), entry(begin, "A", 2, 9), entry(begin, "B", 3, 9), entry(write, "A", 4, 9), entry(write, "B", 5, 9)},
			resource.Counts{Jobs: 1, Runs: 2, Double: 1, Overlaps: 1, Grants: 1, Accepted: 1},
		},
		"one of them knew that it was late": {
			[]resource.Entry{entry(job, "", 1, 0), entry(begin, "A", 2, 3), entry(begin, "B", 3, 9), entry(write, "A", 4, 3), entry(write, "B", 5, 9)},
			resource.Counts{Jobs: 1, Runs: 2, Double: 1, Overlaps: 1, Accepted: 1},
		},
		"it stopped": {
			[]resource.Entry{entry(job, "", 1, 0), entry(begin, "A", 2, 3), entry(begin, "B", 3, 9), ended("A", resource.Lost, 4), entry(write, "B", 5, 9)},
			resource.Counts{Jobs: 1, Runs: 2, Stopped: 1},
		},
		"it was refused": {
			[]resource.Entry{entry(job, "", 1, 0), entry(begin, "A", 2, 3), entry(begin, "B", 3, 9), refused("A", 4), ended("A", resource.Lost, 5), entry(write, "B", 6, 9)},
			resource.Counts{Jobs: 1, Runs: 2, Overlaps: 1, Refused: 1, Stopped: 1},
		},
		"killed": {
			[]resource.Entry{entry(job, "", 1, 0), entry(begin, "A", 2, 3), entry(begin, "B", 3, 9), entry(write, "B", 6, 9)},
			resource.Counts{Jobs: 1, Runs: 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			counts, log := record(t, c.log)
			if counts != c.want {
				t.Errorf("the resource counts %s, want %s", counts, c.want)
			}
			if got := Count(log); got != c.want {
				t.Errorf("the verifier counts %s, want %s", got, c.want)
			}
			if err := Verify(log, false, nil, counts); err != nil {
				t.Error(err)
			}
		})
	}
}

// On random logs both countings agree. They are written in different ways, so that one mistake is not made twice.
func TestAgree(t *testing.T) {
	seen := resource.Counts{}
	for seed := range uint64(400) {
		counts, log := record(t, random(rand.New(rand.NewPCG(seed, 0))))
		if err := Verify(log, false, nil, counts); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		seen = seen.Plus(counts)
	}
	for _, n := range []int{seen.Double, seen.Overlaps, seen.Grants, seen.Accepted, seen.Refused, seen.Stopped, seen.Never} {
		if n == 0 {
			t.Errorf("the random logs do not have everything: %s", seen)
		}
	}
}

// random makes a log that can be true.
func random(r *rand.Rand) (log []resource.Entry) {
	type state struct{ begun, ended bool }
	runs := map[string]*state{}
	at := time.Duration(0)
	add := func(e resource.Entry) {
		at += time.Duration(1 + r.IntN(3))
		e.At = at
		if r.IntN(2) == 0 {
			e.Until = at + time.Duration(r.IntN(8)) - 2
		}
		log = append(log, e)
	}
	for j := range 2 {
		add(resource.Entry{What: resource.Job, Job: fmt.Sprint(j)})
	}
	for range 5 + r.IntN(25) {
		job, worker := fmt.Sprint(r.IntN(2)), string(rune('A'+r.IntN(4)))
		s := runs[job+worker]
		switch {
		case s == nil:
			runs[job+worker] = &state{begun: true}
			add(resource.Entry{What: resource.Begin, Job: job, Worker: worker})
		case s.ended:
		case r.IntN(3) == 0:
			s.ended = true
			add(resource.Entry{What: resource.End, Job: job, Worker: worker, Ended: []string{resource.Done, resource.Lost, resource.Failed}[r.IntN(3)]})
		default:
			add(resource.Entry{What: resource.Write, Job: job, Worker: worker, Refused: r.IntN(4) == 0})
		}
	}
	return log
}

// A log that cannot be true, a count that is not in it, and an answer that was not logged are noticed.
func TestNoticed(t *testing.T) {
	good := []resource.Entry{
		{What: resource.Job, Job: "j"},
		{What: resource.Begin, Job: "j", Worker: "A", At: 1, Token: 5},
		{What: resource.Begin, Job: "j", Worker: "B", At: 2, Token: 6},
		{What: resource.Write, Job: "j", Worker: "B", At: 3, Token: 6},
		{What: resource.Write, Job: "j", Worker: "A", At: 4, Token: 5, Refused: true, Seen: 6},
		{What: resource.End, Job: "j", Worker: "A", At: 5, Ended: resource.Lost},
	}
	acks := []Ack{{"j", "B", resource.Write, false}, {"j", "A", resource.Write, true}}
	counts, log := record(t, good)
	if err := Verify(log, true, acks, counts); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(log []resource.Entry, acks []Ack, c *resource.Counts) []resource.Entry{
		"the resource has counted": func(log []resource.Entry, _ []Ack, c *resource.Counts) []resource.Entry { c.Double++; return log },
		"its number is": func(log []resource.Entry, _ []Ack, _ *resource.Counts) []resource.Entry {
			return append(log[:4:4], log[5:]...)
		},
		"is older than": func(log []resource.Entry, _ []Ack, _ *resource.Counts) []resource.Entry { log[3].At = 1; return log },
		"has not begun": func(log []resource.Entry, _ []Ack, _ *resource.Counts) []resource.Entry {
			log[3].Worker = "C"
			return log
		},
		"has begun before": func(log []resource.Entry, _ []Ack, _ *resource.Counts) []resource.Entry {
			log[2].Worker = "A"
			return log
		},
		"the run has ended": func(log []resource.Entry, _ []Ack, _ *resource.Counts) []resource.Entry {
			return append(log, resource.Entry{Seq: 7, What: resource.Write, Job: "j", Worker: "A", At: 6, Token: 5, Refused: true})
		},
		"no such job": func(log []resource.Entry, _ []Ack, _ *resource.Counts) []resource.Entry { log[4].Job = "k"; return log },
		"that is not in the resource's log": func(log []resource.Entry, acks []Ack, _ *resource.Counts) []resource.Entry {
			acks[1].Refused = false
			return log
		},
		"token 5 after 6, refused: false": func(log []resource.Entry, _ []Ack, _ *resource.Counts) []resource.Entry {
			log[4].Refused = false
			return log
		},
		"token 6 after 6, refused: true": func(log []resource.Entry, _ []Ack, _ *resource.Counts) []resource.Entry {
			log[3].Refused = true
			return log
		},
		"token 0 after": func(log []resource.Entry, _ []Ack, _ *resource.Counts) []resource.Entry { log[1].Token = 0; return log },
	} {
		t.Run(want, func(t *testing.T) {
			c, a := counts, append([]Ack(nil), acks...)
			spoiled := spoil(append([]resource.Entry(nil), log...), a, &c)
			if err := Verify(spoiled, true, a, c); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		})
	}
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("{\"seq\":1}\n{\"seq\":"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("a damaged log: %v", err)
	}
}
