package once_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// counts is what the diary tells of one job.
type counts struct{ effect, rerun, suspended int }

func readDiary(t *testing.T, dir string) map[string]counts {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, "diary"))
	if err != nil {
		t.Fatal(err)
	}
	jobs := map[string]counts{}
	for line := range strings.Lines(string(text)) {
		kind, job, _ := strings.Cut(strings.TrimSpace(line), " ")
		c := jobs[job]
		switch kind {
		case "effect":
			c.effect++
		case "rerun":
			c.rerun++
		case "suspended":
			c.suspended++
		}
		jobs[job] = c
	}
	return jobs
}

// wrong says what is wrong with one job.
func (c counts) wrong(job string) string {
	switch {
	case c.effect > 1+c.rerun:
		return fmt.Sprintf("%s: its effect is there %d times, and %d runs were told to follow a lapse", job, c.effect, c.rerun)
	case strings.HasPrefix(job, "hold") && (c.effect > 1 || c.rerun > 0):
		return fmt.Sprintf("%s: its effect is there %d times after %d reruns, and it was to be held", job, c.effect, c.rerun)
	case c.effect == 0 && c.suspended == 0:
		return job + ": it was skipped and lost"
	}
	return ""
}

func startWorker(t *testing.T, dir, mode string, jobs int) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %d", workerEnv, dir, mode, jobs), "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// Real processes on a real file, killed and paused at any moment, many of them at work: each job is done once but for runs
// after lapses, which are told; under Hold never twice; none is lost.
func TestKills(t *testing.T) {
	t.Parallel()
	const workers, jobs, kills, pauses = 4, 400, 40, 6
	dir := t.TempDir()
	running := make([]*exec.Cmd, workers)
	for i := range running {
		running[i] = startWorker(t, dir, "once", jobs)
	}
	ended := func(i int) error {
		err := running[i].Wait()
		running[i] = nil
		return err
	}
	killed, paused := 0, 0
	var asleep *exec.Cmd // is not killed meanwhile
	var wake <-chan time.Time
	for round := 0; killed < kills && round < 20*kills; round++ {
		i := rand.IntN(workers)
		switch {
		case running[i] == nil:
			running[i] = startWorker(t, dir, "once", jobs)
			continue
		case running[i] == asleep:
		case asleep == nil && paused < pauses && round%4 == 0:
			asleep, wake = running[i], time.After(1200*time.Millisecond) // past its TTL
			_ = asleep.Process.Signal(syscall.SIGSTOP)
			paused++
		default:
			_ = running[i].Process.Kill()
			if ended(i) != nil { // else it was through already
				killed++
			}
		}
		select {
		case <-wake:
			_ = asleep.Process.Signal(syscall.SIGCONT)
			asleep, wake = nil, nil
		case <-time.After(rand.N(80 * time.Millisecond)): // the fault's moment, not a wait for a result
		}
	}
	if asleep != nil {
		_ = asleep.Process.Signal(syscall.SIGCONT)
	}
	for i := range running {
		if running[i] == nil {
			running[i] = startWorker(t, dir, "once", jobs)
		}
	}
	for i := range running {
		if err := ended(i); err != nil {
			t.Errorf("worker %d: %v", i, err)
		}
	}
	var all counts
	diary := readDiary(t, dir)
	if len(diary) != jobs {
		t.Errorf("there are %d jobs in the diary, want %d", len(diary), jobs)
	}
	twice := 0
	for job, c := range diary {
		if w := c.wrong(job); w != "" {
			t.Error(w)
		}
		all.effect, all.rerun, all.suspended = all.effect+c.effect, all.rerun+c.rerun, all.suspended+c.suspended
		twice += max(0, c.effect-1)
	}
	t.Logf("%d jobs, %d kills, %d pauses: %d runs told to follow a lapse, %d effects too many, all of these told; %d suspended",
		jobs, killed, paused, all.rerun, twice, all.suspended)
	if all.rerun == 0 || all.suspended == 0 {
		t.Error("too few workers were killed at work: this shows nothing")
	}
}

// The control: with a lock alone each of several deliveries runs, and nobody is told.
func TestKillsWithALockAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for range 2 {
		if err := startWorker(t, dir, "lock", 4).Wait(); err != nil {
			t.Fatal(err)
		}
	}
	wrong := 0
	for job, c := range readDiary(t, dir) {
		if c.wrong(job) != "" {
			wrong++
		}
	}
	if wrong != 4 {
		t.Errorf("%d of 4 jobs were found to be wrong", wrong)
	}
}
