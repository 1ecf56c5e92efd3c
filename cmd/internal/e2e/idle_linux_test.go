package e2e

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver/faultdriver"
	"github.com/holdlock/holdlock/sqlitehold"
)

// TestWaitingIsIdle counts what a waiter asks the store while another process holds the lock. It is woken by the release;
// what it asks before is a back stop against lost hints, every 1.5 to 3 seconds.
func TestWaitingIsIdle(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	holder, let := b.holder("job", "--ttl", "1h")
	defer holder.wait()
	defer let()
	inner, err := sqlitehold.NewDriver(b.db, nil)
	if err != nil {
		t.Fatal(err)
	}
	counting := faultdriver.New(inner, nil)
	client, err := holdlock.NewClient(counting, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Shutdown(context.Background())
	lock, err := client.NewLock("job", nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		_, err := lock.Acquire(ctx)
		ended <- err
	}()
	calls := func() int {
		n := 0
		for _, op := range []faultdriver.Op{faultdriver.Acquire, faultdriver.Watch, faultdriver.Renew, faultdriver.Release} {
			n += counting.Count(op)
		}
		return n
	}
	eventually(t, "it waits", func() bool { return counting.Count(faultdriver.Watch) > 0 && counting.Count(faultdriver.Acquire) > 1 })
	first, start := calls(), time.Now()
	<-time.After(4 * time.Second) // the time in which it is to do nothing
	took := time.Since(start)
	n := calls() - first
	if most := 1 + int(took/(1500*time.Millisecond)); n > most {
		t.Errorf("%d calls of the store in %v, want at most %d", n, took, most)
	}
	t.Logf("%d calls of the store in %v at rest", n, took.Round(time.Millisecond))
	cancel()
	<-ended
}

// activity is what a process has done so far.
type activity struct {
	cpu      time.Duration // of all its threads
	switches int           // times that a thread of it has gone to sleep: an upper limit of its wake-ups
}

func activityOf(pid int) (a activity) {
	for _, task := range tasks(pid) {
		run, _, _ := strings.Cut(read(task+"/schedstat"), " ")
		ns, _ := strconv.ParseInt(run, 10, 64)
		a.cpu += time.Duration(ns)
		for line := range strings.Lines(read(task + "/status")) {
			if v, ok := strings.CutPrefix(line, "voluntary_ctxt_switches:"); ok {
				n, _ := strconv.Atoi(strings.TrimSpace(v))
				a.switches += n
			}
		}
	}
	return a
}

// BenchmarkWaitingAtRest reports what `holdlock run --wait forever` and `flock` do per second while they wait.
func BenchmarkWaitingAtRest(b *testing.B) {
	x := newBox(b)
	_, let := x.holder("job", "--ttl", "1h")
	defer let()
	lock := x.path("flock")
	inner, inner2 := x.path("here"), x.path("go")
	holder := x.launch(x.program("flock", append([]string{lock}, direct("flag", inner, inner2)...)...))
	defer holder.wait()
	defer write(b, inner2, "")
	eventually(b, "flock holds", func() bool { return read(inner) != "" })
	waiters := map[string]*proc{
		"holdlock": x.start("run", "job", "--wait", "forever", "--", "true"),
		"flock":    x.launch(x.program("flock", lock, "true")),
	}
	waiters["holdlock"].waits()
	for b.Loop() {
		<-time.After(time.Second) // what it did at first
		before, start := map[string]activity{}, time.Now()
		for name, p := range waiters {
			before[name] = activityOf(p.pid())
		}
		<-time.After(6 * time.Second)
		seconds := time.Since(start).Seconds()
		for name, p := range waiters {
			now := activityOf(p.pid())
			b.ReportMetric(float64((now.cpu-before[name].cpu).Microseconds())/seconds, name+"-cpu-µs/s")
			b.ReportMetric(float64(now.switches-before[name].switches)/seconds, name+"-wakeups/s")
		}
	}
	b.ReportMetric(0, "ns/op")
	for _, p := range waiters {
		p.signal(15)
		p.wait()
	}
}

func tasks(pid int) (list []string) {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	for _, name := range entries(dir) {
		list = append(list, dir+"/"+name)
	}
	return list
}
