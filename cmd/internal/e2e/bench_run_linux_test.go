package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/cmd/internal/guard"
	"github.com/holdlock/holdlock/internal/bootclock"
	"github.com/holdlock/holdlock/sqlitehold"
)

// The stages of a run, in order. Each is the time since the one before.
var stages = []string{
	"process start", "open the store", "acquire", "start the guard", "guard starts the command", "command and guard end",
	"release", "close the store", "process exit",
}

// stagesRole does what `holdlock run` does, and tells when each stage was over: stages FILE COMMAND ARG….
func stagesRole(args []string) int {
	at := []time.Duration{bootclock.Now()}
	done := func() { at = append(at, bootclock.Now()) }
	drv, err := sqlitehold.NewDriver(args[0], nil)
	if err != nil {
		return 95
	}
	client, err := holdlock.NewClient(drv, nil)
	if err != nil {
		return 95
	}
	lock, err := client.NewLock("job", nil)
	if err != nil {
		return 95
	}
	done()
	lease, err := lock.TryAcquire(context.Background())
	if err != nil {
		return 94
	}
	done()
	g, err := guard.Start(guard.Config{
		Argv: args[1:], Env: os.Environ(), Deadline: bootclock.Now() + 27*time.Second, Grace: 5 * time.Second,
		Payload: []byte("{}"), ReapOrphans: true,
	})
	if err != nil {
		return 93
	}
	done()
	<-g.Started()
	done()
	g.Wait()
	done()
	if err := lease.Release(context.Background()); err != nil {
		return 92
	}
	done()
	if err := client.Shutdown(context.Background()); err != nil {
		return 91
	}
	done()
	for _, t := range at {
		fmt.Print(int64(t), " ")
	}
	return 0
}

// timed runs a command to its end and returns how long that took, by the clock of the stages, and when it began.
func timed(b *testing.B, cmd *exec.Cmd) (took, began time.Duration) {
	b.Helper()
	began = bootclock.Now()
	if err := cmd.Run(); err != nil {
		b.Fatalf("%v: %v", cmd.Args, err)
	}
	return bootclock.Now() - began, began
}

// BenchmarkRun compares `holdlock run x -- true` with `flock f true`: the ratio of the medians of seven interleaved rounds.
// The log says where the time goes.
func BenchmarkRun(b *testing.B) {
	x := newBox(b)
	kinds := map[string][]string{
		"holdlock run": {holdlockPath, "run", "x", "--", "true"},
		"flock":        {"flock", x.path("f"), "true"},
		"true":         {"true"},
		"version":      {holdlockPath, "version"},
	}
	order := []string{"holdlock run", "flock", "true", "version"}
	for b.Loop() {
		p50 := map[string][]time.Duration{}
		parts := make([][]time.Duration, len(stages))
		for range 7 {
			round := map[string][]time.Duration{}
			for range 15 {
				for _, kind := range order {
					took, _ := timed(b, x.program(kinds[kind][0], kinds[kind][1:]...))
					round[kind] = append(round[kind], took)
				}
				argv := direct("stages", x.path("stages.db"), "true")
				cmd := x.program(argv[0], argv[1:]...)
				var out strings.Builder
				cmd.Stdout = &out
				took, began := timed(b, cmd)
				last := began
				for i, f := range strings.Fields(out.String()) {
					ns, err := strconv.ParseInt(f, 10, 64)
					if err != nil {
						b.Fatal(err)
					}
					parts[i] = append(parts[i], time.Duration(ns)-last)
					last = time.Duration(ns)
				}
				parts[len(stages)-1] = append(parts[len(stages)-1], began+took-last)
			}
			for kind, list := range round {
				p50[kind] = append(p50[kind], median(list))
			}
		}
		us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
		run, floor := median(p50["holdlock run"]), median(p50["flock"])
		b.ReportMetric(float64(run)/float64(floor), "ratio")
		b.ReportMetric(us(run), "holdlock-p50-µs")
		b.ReportMetric(us(floor), "flock-p50-µs")
		// Ten lines at most, or they are cut off unless -v is given.
		var table strings.Builder
		fmt.Fprintf(&table, "medians in µs: holdlock run x -- true %.0f, flock f true %.0f, true %.0f, holdlock version %.0f\n",
			us(run), us(floor), us(median(p50["true"])), us(median(p50["version"])))
		fmt.Fprintln(&table, "the same steps in a program of their own:")
		for i, name := range stages {
			fmt.Fprintf(&table, "%26s %6.0f", name, us(median(parts[i])))
			if i%2 == 1 || i == len(stages)-1 {
				fmt.Fprintln(&table)
			}
		}
		b.Log(table.String())
	}
	b.ReportMetric(0, "ns/op")
}
