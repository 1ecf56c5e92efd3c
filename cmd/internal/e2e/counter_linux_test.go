package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// stepRole adds one to a counter: step JOURNAL COUNTER ID. The counter file holds "COUNT ID", the ID of its last writer, and
// is replaced by rename. So of a step that was killed at any point it can be told whether it has counted: whoever reads
// next finds its ID or does not.
func stepRole(args []string) int {
	j, counter, id := openJournal(args[0]), args[1], args[2]
	j.add("S", id)
	count, last := counterOf(counter)
	j.add("R", id, count, last)
	for range 2 + rand.IntN(6) {
		time.Sleep(time.Millisecond) // the work; without a lock others get in here
		j.add("H", id)
	}
	count++
	next := counter + "." + id
	if err := os.WriteFile(next, fmt.Appendf(nil, "%d %s", count, id), 0o644); err != nil {
		return 95
	}
	if err := os.Rename(next, counter); err != nil {
		return 95
	}
	j.add("E", id, count)
	return 0
}

func counterOf(path string) (count int, last string) {
	first, last, _ := strings.Cut(read(path), " ")
	count, _ = strconv.Atoi(first)
	if last == "" {
		last = "-"
	}
	return count, last
}

// A section is what the journal tells of one step.
type section struct {
	id          string
	token       uint64
	start, last time.Duration // the first and the last thing it did
	line        int           // of its start in the journal
	ended       bool          // it has written E; otherwise it was killed
	read        int           // the count that it has read; -1 if it has not
	readFrom    string        // and by whom it was written
	count       int           // what it has written, if it ended
}

// A verdict is what is wrong with a run of steps.
type verdict struct {
	sections              []*section
	overlaps, order, lost []string
	committed             int // steps whose addition is in the final count
}

// judge reads the journal of many steps and the final counter.
func judge(journal, counter string) verdict {
	var v verdict
	byID := make(map[string]*section)
	var current *section
	for i, e := range journalOf(journal) {
		s := byID[e.name]
		if e.kind == "S" {
			s = &section{id: e.name, token: e.token, start: e.at, line: i, read: -1}
			byID[e.name] = s
			if current != nil {
				// By the clock: this one began before the last sign of life of the one before.
				if e.at <= current.last {
					v.overlaps = append(v.overlaps, fmt.Sprintf("%s began %v before the last act of %s", s.id, current.last-e.at, current.id))
				}
				if e.token <= current.token {
					v.order = append(v.order, fmt.Sprintf("%s has token %d, and %s before it had %d", s.id, e.token, current.id, current.token))
				}
			}
			v.sections = append(v.sections, s)
			current = s
		}
		if s != current { // by the order of the lines, which needs no clock
			v.overlaps = append(v.overlaps, fmt.Sprintf("%s acted (%s) after %s had begun", s.id, e.kind, current.id))
		}
		s.last = max(s.last, e.at)
		switch e.kind {
		case "R":
			s.read, _ = strconv.Atoi(e.extra[0])
			s.readFrom = e.extra[1]
		case "E":
			s.ended = true
			s.count, _ = strconv.Atoi(e.extra[0])
		}
	}
	v.chain(counter)
	return v
}

// chain checks that each step has read what the one before has written, and counts the additions. After a step that was
// killed there are two states that the next one may find.
func (v *verdict) chain(counter string) {
	type state struct {
		count int
		last  string
	}
	possible := []state{{0, "-"}}
	find := func(got state, who string) {
		for i, s := range possible {
			if s == got {
				if i > 0 {
					v.committed++ // by the one that was killed
				}
				possible = []state{got}
				return
			}
		}
		v.lost = append(v.lost, fmt.Sprintf("%s found %v, want one of %v", who, got, possible))
		possible = []state{got}
	}
	for _, s := range v.sections {
		if s.read < 0 {
			continue // killed before it had read: it has written nothing
		}
		find(state{s.read, s.readFrom}, s.id)
		if !s.ended {
			possible = append(possible, state{s.read + 1, s.id})
			continue
		}
		v.committed++
		if s.count != s.read+1 {
			v.lost = append(v.lost, fmt.Sprintf("%s read %d and wrote %d", s.id, s.read, s.count))
		}
		possible = []state{{s.count, s.id}}
	}
	count, last := counterOf(counter)
	find(state{count, last}, "the end")
	if count != v.committed {
		v.lost = append(v.lost, fmt.Sprintf("the counter is %d after %d additions", count, v.committed))
	}
}

// count runs steps from many processes at once: workers × steps of them. For kills of them holdlock is killed while its
// step is at work, and with kills some more are killed at any moment, most of them while they wait.
func count(t *testing.T, workers, steps, kills int) {
	b := newBox(t)
	journal, counter := b.path("journal"), b.path("counter")
	began := follow(t, journal)
	var killed, strays, lost, done atomic.Int64
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			mine, hit := kills/workers, 0
			if w < kills%workers {
				mine++
			}
			for i := range steps {
				id := fmt.Sprintf("%d.%d", w, i)
			again:
				// The kills are spread over the steps; one that comes too late is made up for by the next step.
				victim := hit < min(mine, (i+1)*(mine+1)/steps)
				flags := []string{"run", "--wait", "forever", "--ttl", "1s", "counter"}
				if victim && rand.IntN(2) == 0 {
					flags = append(flags, "--grace", "0s") // KILL without TERM
				}
				p := b.start(append(append(flags, "--"), role("step", journal, counter, id)...)...)
				if victim {
					select {
					case <-began(id):
					case <-p.done:
					}
					time.Sleep(rand.N(12 * time.Millisecond)) // the fault's moment, not a wait for a result
					_ = p.cmd.Process.Kill()
				}
				stray := !victim && kills > 0 && rand.IntN(15) == 0
				if stray {
					time.Sleep(rand.N(100 * time.Millisecond))
					_ = p.cmd.Process.Kill()
				}
				switch r := p.wait(); {
				case r.code == 0:
					done.Add(1)
				case victim && r.code == 128+int(syscall.SIGKILL):
					killed.Add(1)
					hit++
				case stray && r.code == 128+int(syscall.SIGKILL):
					strays.Add(1)
				case r.code == 70: // this machine has stood still for the better part of a second: a loss, and told as such
					lost.Add(1)
					id += "+"
					goto again
				default:
					t.Errorf("step %s ended with %d: %s", id, r.code, r.err)
				}
			}
		})
	}
	wg.Wait()
	eventually(t, "nothing runs", func() bool { return len(b.marked()) == 0 })

	v := judge(journal, counter)
	for _, list := range [][]string{v.overlaps, v.order, v.lost} {
		for _, s := range list {
			t.Error(s)
		}
	}
	final, _ := counterOf(counter)
	ended := 0
	for _, s := range v.sections {
		if s.ended {
			ended++
		}
	}
	if int(killed.Load()) != kills || int(done.Load()+killed.Load()+strays.Load()) != workers*steps || ended < int(done.Load()) {
		t.Errorf("%d steps done and %d killed, %d came to their end; want %d killed and all others done", done.Load(), killed.Load(), ended, kills)
	}
	if kills == 0 && lost.Load() == 0 && final != workers*steps {
		t.Errorf("the counter is %d, want %d", final, workers*steps)
	}
	if int(lost.Load()) > workers*steps/4 {
		t.Errorf("%d leases were lost", lost.Load())
	}
	t.Logf("%d steps, %d holders and %d others killed, %d leases lost: %d sections, %d of them cut short, counter %d, overlaps %d, tokens out of order %d",
		workers*steps, killed.Load(), strays.Load(), lost.Load(), len(v.sections), len(v.sections)-ended, final, len(v.overlaps), len(v.order))
}

// follow tells when a step has begun: it returns a channel that is closed then.
func follow(t *testing.T, journal string) func(id string) <-chan struct{} {
	var mu sync.Mutex
	known := make(map[string]chan struct{})
	channel := func(id string) chan struct{} {
		mu.Lock()
		defer mu.Unlock()
		if known[id] == nil {
			known[id] = make(chan struct{})
		}
		return known[id]
	}
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop) })
	go func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		var f *os.File
		var rest string
		buf := make([]byte, 64<<10)
		for {
			select {
			case <-stop:
				if f != nil {
					f.Close()
				}
				return
			case <-tick.C:
			}
			if f == nil {
				f, _ = os.Open(journal)
				continue
			}
			n, _ := f.Read(buf)
			rest += string(buf[:n])
			for {
				line, after, ok := strings.Cut(rest, "\n")
				if !ok {
					break
				}
				rest = after
				if id, ok := strings.CutPrefix(line, "S "); ok {
					id, _, _ = strings.Cut(id, " ")
					close(channel(id))
				}
			}
		}
	}()
	return func(id string) <-chan struct{} { return channel(id) }
}

func TestCounter(t *testing.T) {
	t.Parallel()
	count(t, 10, 20, 0)
}

func TestCounterWithKills(t *testing.T) {
	t.Parallel()
	count(t, 10, 20, 10)
}

// TestCounterWithoutLock is the negative control: the same steps without holdlock overlap and lose additions.
func TestCounterWithoutLock(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	journal, counter := b.path("journal"), b.path("counter")
	var wg sync.WaitGroup
	for w := range 10 {
		wg.Go(func() {
			for i := range 5 {
				argv := role("step", journal, counter, fmt.Sprintf("%d.%d", w, i))
				if r := b.launch(b.program(argv[0], argv[1:]...)).wait(); r.code != 0 {
					t.Errorf("step: %+v", r)
				}
			}
		})
	}
	wg.Wait()
	v := judge(journal, counter)
	if len(v.overlaps) == 0 || len(v.lost) == 0 || len(v.order) == 0 {
		t.Errorf("overlaps %d, lost %d, out of order %d: the test would not notice a lock that does nothing",
			len(v.overlaps), len(v.lost), len(v.order))
	}
}
