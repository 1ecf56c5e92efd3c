package once_test

import (
	"fmt"
	"io"
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

// A child is a worker.
type child struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error
}

func startWorker(t *testing.T, dir, mode string, jobs int) *child {
	t.Helper()
	c := &child{cmd: exec.Command(os.Args[0]), done: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %d", workerEnv, dir, mode, jobs), "GORACE=atexit_sleep_ms=0")
	c.cmd.Stderr = os.Stderr
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.done)
		c.err = c.cmd.Wait()
	}()
	return c
}

func (c *child) wait() error {
	<-c.done
	return c.err
}

func (c *child) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// atWork waits until the child has begun one more run, and reports false if it ends before.
func (c *child) atWork(diary *os.File) bool {
	at, _ := diary.Seek(0, io.SeekEnd)
	mark := fmt.Sprintf("work %d\n", c.cmd.Process.Pid)
	for !c.ended() {
		text, err := io.ReadAll(io.NewSectionReader(diary, at, 1<<30))
		if err == nil && strings.Contains(string(text), mark) {
			return true
		}
		time.Sleep(time.Millisecond)
	}
	return false
}

// Real processes on a real file, killed and paused while they are at work: each job is done once but for runs after lapses,
// which are told; under Hold never twice; none is lost.
func TestKills(t *testing.T) {
	t.Parallel()
	const workers, jobs, kills, pauses = 4, 300, 24, 4
	dir := t.TempDir()
	d, err := openDiary(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.file.Close()
	diary, err := os.Open(d.file.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer diary.Close()
	children := make([]*child, workers)
	for i := range children {
		children[i] = startWorker(t, dir, "once", jobs)
	}
	killed, paused := 0, 0
	var asleep []*child
	for round := 0; killed < kills && round < 4*kills; round++ {
		i := round % workers
		c := children[i]
		if !c.atWork(diary) {
			if c.err != nil {
				t.Errorf("a worker has failed: %v", c.err)
			}
			children[i] = startWorker(t, dir, "once", jobs) // all was settled, or so it has heard
			continue
		}
		time.Sleep(rand.N(30 * time.Millisecond)) // the fault's moment, not a wait for a result
		if paused < pauses && round%4 == 3 {
			_ = c.cmd.Process.Signal(syscall.SIGSTOP)
			// Past its TTL, but no longer: it may have stopped inside a transaction, and then all others wait for it.
			time.AfterFunc(1200*time.Millisecond, func() { _ = c.cmd.Process.Signal(syscall.SIGCONT) })
			asleep = append(asleep, c)
			paused++
			children[i] = startWorker(t, dir, "once", jobs) // goes on in its place; it wakes up when its term is over
			continue
		}
		_ = c.cmd.Process.Kill()
		if c.wait() != nil { // else it was through already
			killed++
		}
		children[i] = startWorker(t, dir, "once", jobs)
	}
	for _, c := range append(children, asleep...) {
		if err := c.wait(); err != nil {
			t.Errorf("a worker has failed: %v", err)
		}
	}
	var all counts
	entries := readDiary(t, dir)
	twice := 0
	for i := range jobs {
		job := jobName(i)
		c := entries[job]
		if w := c.wrong(job); w != "" {
			t.Error(w)
		}
		all.effect, all.rerun, all.suspended = all.effect+c.effect, all.rerun+c.rerun, all.suspended+c.suspended
		twice += max(0, c.effect-1)
	}
	t.Logf("%d jobs, %d kills, %d pauses: %d runs told to follow a lapse, %d effects too many, all of these told; %d suspended",
		jobs, killed, paused, all.rerun, twice, all.suspended)
	if all.rerun == 0 || all.suspended == 0 || all.rerun+all.suspended < kills/4 {
		t.Error("too few workers were killed at work: this shows nothing")
	}
}

// The control: with a lock alone each of several deliveries runs, and nobody is told.
func TestKillsWithALockAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for range 2 {
		if err := startWorker(t, dir, "lock", 4).wait(); err != nil {
			t.Fatal(err)
		}
	}
	wrong := 0
	for i, entries := 0, readDiary(t, dir); i < 4; i++ {
		if entries[jobName(i)].wrong(jobName(i)) != "" {
			wrong++
		}
	}
	if wrong != 4 {
		t.Errorf("%d of 4 jobs were found to be wrong", wrong)
	}
}
