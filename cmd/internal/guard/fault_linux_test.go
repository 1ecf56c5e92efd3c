package guard

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdlock/holdlock/cmd/internal/proctree"
	"github.com/holdlock/holdlock/internal/bootclock"
)

// Holdlock alone is stopped, and the work is over at the deadline all the same.
func TestHoldlockStopped(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "stamps")
	m := startMini(t, "holdlock", part{
		Argv: []string{testExe(t), "role:tree", file},
		TTL:  4 * time.Second, Renew: 100 * time.Millisecond, Grace: 500 * time.Millisecond,
	}, nil)
	work := writers(t, file, 4)
	m.signal(syscall.SIGSTOP)
	eventually(t, "holdlock is stopped", func() bool { return state(m.cmd.Process.Pid) == "T" })
	deadline := time.Duration(m.number("deadline"))
	eventually(t, "the work is dead", func() bool { return !anyAlive(work) })
	if over := latest(file) - deadline; over > margin {
		t.Errorf("worked on for %v after the deadline", over)
	}
	if s := state(m.cmd.Process.Pid); s != "T" {
		t.Fatalf("the test is no good: holdlock is in state %s, not stopped", s)
	}
	m.signal(syscall.SIGCONT)
	r, code := m.wait()
	if r.Ended != Deadline || code != 137 || r.Killed != 4 || len(r.Unkillable) > 0 {
		t.Errorf("holdlock then reports %+v, exit code %d", r, code)
	}
}

// The control: without a guard the stopped process ends nothing, and the work goes on.
func TestHoldlockStoppedNaive(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "stamps")
	m := startMini(t, "naive", part{Argv: []string{testExe(t), "role:tree", file}, TTL: 2 * time.Second}, nil)
	writers(t, file, 4)
	m.signal(syscall.SIGSTOP)
	deadline := time.Duration(m.number("deadline"))
	eventually(t, "it works on after the deadline and the margin", func() bool { return latest(file) > deadline+margin })
}

// Holdlock is killed. Children, sessions of their own and daemons die too, before the lease is given back.
func TestHoldlockKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, released := filepath.Join(dir, "stamps"), filepath.Join(dir, "released")
	m := startMini(t, "holdlock", part{
		Argv: []string{testExe(t), "role:tree", file}, TTL: long, Grace: 300 * time.Millisecond, Payload: released,
	}, nil)
	work := writers(t, file, 4)
	m.signal(syscall.SIGKILL)
	eventually(t, "the lease is given back", func() bool { return strings.HasSuffix(readFile(released), "\n") })
	if anyAlive(work) {
		t.Error("the lease was given back while work was alive")
	}
	at, err := strconv.ParseInt(strings.TrimSpace(readFile(released)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if last := latest(file); last > time.Duration(at) {
		t.Errorf("a write %v after the lease was given back", last-time.Duration(at))
	}
}

// The control: the usual death signal reaches the direct child alone.
func TestHoldlockKilledNaive(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "stamps")
	m := startMini(t, "naive", part{Argv: []string{testExe(t), "role:tree", file}, TTL: long}, nil)
	work := writers(t, file, 4)
	m.signal(syscall.SIGKILL)
	<-m.end
	command := m.number("started")
	eventually(t, "the direct child is dead", func() bool {
		for _, p := range work {
			if p.pid == command && p.alive() {
				return false
			}
		}
		return true
	})
	before := latest(file)
	eventually(t, "the others work on", func() bool { return latest(file) > before+100*time.Millisecond })
}

// If holdlock dies just before the deadline, the deadline counts, not the grace.
func TestHoldlockKilledNearDeadline(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "stamps")
	m := startMini(t, "holdlock", part{
		Argv: []string{testExe(t), "role:tree", file}, TTL: 6 * time.Second, Renew: 100 * time.Millisecond, Grace: 3 * time.Second,
	}, nil)
	work := writers(t, file, 4)
	deadline := m.rest()
	m.logged("ending deadline")
	m.signal(syscall.SIGKILL)
	eventually(t, "the work is dead", func() bool { return !anyAlive(work) })
	if over := latest(file) - deadline; over > margin {
		t.Errorf("worked on for %v after the deadline", over)
	}
}

// After a normal end nobody gives the lease back but holdlock.
func TestNotOrphaned(t *testing.T) {
	t.Parallel()
	released := filepath.Join(t.TempDir(), "released")
	m := startMini(t, "holdlock", part{Argv: []string{"true"}, TTL: long, Payload: released}, nil)
	if _, code := m.wait(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if readFile(released) != "" {
		t.Error("the guard gave the lease back")
	}
}

// The guard is killed: the kernel kills the command, and holdlock the others, which are now its children.
func TestGuardKilled(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "stamps")
	m := startMini(t, "holdlock", part{Argv: []string{testExe(t), "role:tree", file}, TTL: long, Grace: time.Second}, nil)
	work := writers(t, file, 4)
	if err := syscall.Kill(m.number("guard"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r, code := m.wait()
	if anyAlive(work) {
		t.Error("work is alive after holdlock has said that it ended")
	}
	if r.Ended != GuardLost || code != 137 || r.Killed < 3 || len(r.Unkillable) > 0 {
		t.Errorf("result %+v, exit code %d", r, code)
	}
}

// With holdlock stopped the death of the guard still ends the command: the kernel sees to it.
func TestGuardKilledWhileHoldlockStopped(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "stamps")
	m := startMini(t, "holdlock", part{Argv: []string{testExe(t), "role:stamp", file, "stubborn"}, TTL: long}, nil)
	work := writers(t, file, 1)
	m.signal(syscall.SIGSTOP)
	eventually(t, "holdlock is stopped", func() bool { return state(m.cmd.Process.Pid) == "T" })
	if err := syscall.Kill(m.number("guard"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the work is dead", func() bool { return !anyAlive(work) })
	m.signal(syscall.SIGCONT)
	if r, code := m.wait(); r.Ended != GuardLost || code != 137 {
		t.Errorf("result %+v, exit code %d", r, code)
	}
}

// When holdlock was executed by a shell in its own place, the children of that shell are not ours to end.
func TestGuardKilledSparesEarlierChildren(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, other := filepath.Join(dir, "stamps"), filepath.Join(dir, "other")
	m := startMini(t, "holdlock", part{Argv: []string{testExe(t), "role:stamp", file}, TTL: long}, func(c *exec.Cmd) {
		script := `"$1" role:stamp "$2" & while ! test -s "$2"; do sleep 0.01; done; shift 2; exec "$@"`
		c.Args = append([]string{"sh", "-c", script, "sh", c.Path, other}, c.Args...)
		c.Path = "/bin/sh"
	})
	sibling := writers(t, other, 1)
	work := writers(t, file, 1)
	if err := syscall.Kill(m.number("guard"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	r, _ := m.wait()
	if anyAlive(work) || r.Ended != GuardLost {
		t.Errorf("work alive: %v, result %+v", anyAlive(work), r)
	}
	if !anyAlive(sibling) {
		t.Error("an earlier child was killed")
	}
}

// The whole process group of holdlock is killed or stopped (`kill -9 %1`): the guard is not in it.
func TestGroupSignalled(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGSTOP} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "stamps")
			m := startMini(t, "holdlock", part{
				Argv: []string{testExe(t), "role:tree", file}, TTL: 4 * time.Second, Renew: 100 * time.Millisecond, Grace: 300 * time.Millisecond,
			}, func(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} })
			work := writers(t, file, 4)
			guard := m.number("guard")
			if err := syscall.Kill(-m.cmd.Process.Pid, sig); err != nil {
				t.Fatal(err)
			}
			if s := state(guard); s == "T" || s == "Z" || s == "" {
				t.Errorf("the guard is in state %q", s)
			}
			eventually(t, "the work is dead", func() bool { return !anyAlive(work) })
			if over := latest(file) - time.Duration(m.number("deadline")); over > margin {
				t.Errorf("worked on for %v after the deadline", over)
			}
		})
	}
}

// The guard is stopped: holdlock does its work, at the deadline or when asked to.
func TestGuardStopped(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, control string
		ttl, renew    time.Duration
	}{
		{name: "deadline", control: "rest", ttl: 3 * time.Second, renew: 100 * time.Millisecond},
		{name: "end", control: "end", ttl: long},
		{name: "kill", control: "killall", ttl: long},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			file := filepath.Join(dir, "stamps")
			m := startMini(t, "holdlock", part{
				Argv: []string{testExe(t), "role:tree", file}, TTL: tt.ttl, Renew: tt.renew, Grace: 200 * time.Millisecond,
			}, nil)
			work := writers(t, file, 4)
			if err := syscall.Kill(m.number("guard"), syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the guard is stopped", func() bool { return state(m.number("guard")) == "T" })
			m.tell(tt.control)
			limit := bootclock.Now() + 200*time.Millisecond
			if tt.control == "rest" {
				limit = m.rest()
			}
			r, code := m.wait()
			if anyAlive(work) {
				t.Error("work is alive after holdlock has said that it ended")
			}
			if over := latest(file) - limit; over > margin {
				t.Errorf("worked on for %v too long", over)
			}
			if r.Ended != GuardLost || code != 137 || len(r.Unkillable) > 0 {
				t.Errorf("result %+v, exit code %d", r, code)
			}
		})
	}
}

// fakeGuard starts a process that does not do the work of a guard, with a child, as holdlock sees it after the deadline 1000.
func fakeGuard(t *testing.T) (s *supervision, guard, child process) {
	t.Helper()
	cmd := exec.Command("sh", "-c", "sleep 1000 & exec sleep 2000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	guard = watch(t, cmd.Process.Pid)
	root, err := proctree.Find(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	var below []proctree.Process
	eventually(t, "the child runs", func() bool {
		below, err = proctree.Children(root)
		return err == nil && len(below) == 1 && below[0].Name == "sleep"
	})
	return &supervision{
		Guard: &Guard{proc: cmd.Process, deadline: 1000},
		work:  &tree{root: root}, hit: make(map[proctree.Identity]bool),
	}, guard, watch(t, below[0].PID)
}

// A guard that runs but does nothing: its descendants die at the deadline, it itself only after its time to report.
func TestGuardHangs(t *testing.T) {
	t.Parallel()
	s, guard, child := fakeGuard(t)
	if next := s.secondLine(999); next != 1000 || !child.alive() {
		t.Errorf("before the deadline: look again at %d, child alive: %v", next, child.alive())
	}
	s.secondLine(1000)
	eventually(t, "the child is dead", func() bool { return !child.alive() })
	s.secondLine(1000 + guardTimeout - 1)
	if !guard.alive() {
		t.Error("the guard was killed before its time")
	}
	s.secondLine(1000 + guardTimeout)
	eventually(t, "the guard is dead", func() bool { return !guard.alive() })
}

// A guard that is stopped need not be given time to report.
func TestStoppedGuardIsKilledAtOnce(t *testing.T) {
	t.Parallel()
	s, guard, child := fakeGuard(t)
	if err := syscall.Kill(guard.pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the guard is stopped", func() bool { return state(guard.pid) == "T" })
	s.secondLine(1000)
	eventually(t, "both are dead", func() bool { return !child.alive() && !guard.alive() })
}

// A number that is not that of a child is not taken for the guard's: nothing below it is ours to kill.
func TestForeignGuardNumber(t *testing.T) {
	t.Parallel()
	own, err := ownTree()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := own.below(os.Getppid()); err == nil {
		t.Error("the parent was taken for a guard")
	}
}

// The guard is deaf to what people, terminals and systems send.
func TestGuardShrugsOff(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "signals")
	m := startMini(t, "holdlock", part{Argv: []string{testExe(t), "role:signals", file}, TTL: long, Grace: time.Minute}, nil)
	eventually(t, "the command is ready", func() bool { return hasLine(file, "ready") })
	guard := m.number("guard")
	for _, n := range deafTo {
		if err := syscall.Kill(guard, n); err != nil {
			t.Fatal(err)
		}
	}
	m.signal(syscall.SIGUSR1) // through the guard to the command
	eventually(t, "the command gets a signal through the guard", func() bool { return hasLine(file, "user defined signal 1") })
	if s := state(guard); s == "T" {
		t.Error("the guard is stopped")
	}
	if got := readFile(file); got != "ready\nuser defined signal 1\n" {
		t.Errorf("the command got %q", got)
	}
	m.signal(syscall.SIGTERM)
	if r, code := m.wait(); code != 3 || r.Ended != "" {
		t.Errorf("result %+v, exit code %d", r, code)
	}
}

// What only looks like a holdlock killing everything: the name of the guard does not match.
func TestGuardName(t *testing.T) {
	t.Parallel()
	m := startMini(t, "holdlock", part{Argv: []string{"sleep", "1000"}, TTL: long}, nil)
	dir := "/proc/" + strconv.Itoa(m.number("guard"))
	if got := readFile(dir + "/comm"); got != guardName+"\n" {
		t.Errorf("the guard shows as %q", got)
	}
	want := guardName + "\x00of\x00" + strconv.Itoa(m.cmd.Process.Pid) + "\x00"
	if got := readFile(dir + "/cmdline"); got != want {
		t.Errorf("the guard's arguments are %q, want %q", got, want)
	}
}

// Started by hand the guard says what it is and ends.
func TestGuardByHand(t *testing.T) {
	t.Parallel()
	cmd := exec.Command(testExe(t))
	cmd.Args = []string{guardName}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState.ExitCode() != exitUsage || !strings.Contains(string(out), "holdlock run") {
		t.Errorf("it ended with %v and said %q", err, out)
	}
}
