package proctree

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A root is a process of its own with a tree below it, as the guard is: orphans below it become its children. It is the
// test binary again, closes its standard output when it has no child left, and ends when its standard input does.
const rootRole = "role:root"

func TestMain(m *testing.M) {
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")) // or every root takes a second to exit
	if len(os.Args) > 1 && os.Args[1] == rootRole {
		os.Exit(playRoot(os.Args[2:]))
	}
	os.Exit(m.Run())
}

func playRoot(argv []string) int {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 98
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	if err := cmd.Start(); err != nil {
		return 97
	}
	go func() {
		for { // nobody here waits for anything else
			if _, err := unix.Wait4(-1, nil, 0, nil); errors.Is(err, unix.ECHILD) {
				_ = os.Stdout.Close()
				return
			}
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

type root struct {
	Process
	t     *testing.T
	empty chan struct{} // closed when the root has no child left, and so no descendant
}

// startRoot runs argv below a new root.
func startRoot(t *testing.T, argv ...string) *root {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, append([]string{rootRole}, argv...)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p, err := Find(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	r := &root{Process: p, t: t, empty: make(chan struct{})}
	go func() {
		defer close(r.empty)
		_, _ = io.Copy(io.Discard, out)
	}()
	t.Cleanup(func() {
		eventually(t, "nothing is left below the root", func() bool {
			_, _ = Kill(r.Process, nil)
			return r.isEmpty()
		})
		_ = in.Close()
		_ = cmd.Wait()
	})
	return r
}

func (r *root) isEmpty() bool {
	select {
	case <-r.empty:
		return true
	default:
		return false
	}
}

// list returns the descendants but those that are still the root itself, about to execute something else.
func (r *root) list() []Process {
	r.t.Helper()
	list, err := Descendants(r.Process, func(p Process) bool { return p.Name == r.Name })
	if err != nil {
		r.t.Fatal(err)
	}
	return list
}

// names waits until the descendants have these names, in any order, and returns them. So it waits until each has
// executed what it is to become.
func (r *root) names(want ...string) []Process {
	r.t.Helper()
	slices.Sort(want)
	var list []Process
	eventually(r.t, fmt.Sprintf("%q have started", want), func() bool {
		list = r.list()
		var got []string
		for _, p := range list {
			got = append(got, p.Name)
		}
		slices.Sort(got)
		return slices.Equal(got, want)
	})
	return list
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); ; <-tick.C {
		if ok() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("waited a minute in vain until %s", what)
		}
	}
}

func readFile(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return string(b)
}

// Children, sessions of their own, and daemons whose parents have ended are all found, parents first.
func TestDescendants(t *testing.T) {
	t.Parallel()
	root := startRoot(t, "sh", "-c", `sleep 1000 & setsid sleep 1001 & (setsid sleep 1002 &) ; setsid sh -c 'sleep 1003 & wait' & wait`)
	list := root.names("sh", "sh", "sleep", "sleep", "sleep", "sleep")
	seen := map[int]bool{root.PID: true}
	for _, p := range list {
		if !seen[p.PPID] {
			t.Errorf("process %v comes before its parent %d", p, p.PPID)
		}
		seen[p.PID] = true
	}
	for _, pids := range []func(int) ([]int, error){childrenFiles, scan} { // both ways to read the kernel's mind agree
		got, err := pids(root.PID)
		if err != nil {
			t.Fatal(err)
		}
		direct, err := Children(root.Process)
		if err != nil {
			t.Fatal(err)
		}
		var want []int
		for _, p := range direct {
			want = append(want, p.PID)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) || len(want) != 2 {
			t.Errorf("children of the root: %v, want %v", got, want)
		}
	}
	// Skipping one takes all below it out.
	rest, err := Descendants(root.Process, func(p Process) bool { return p.Name == "sh" && p.PPID != root.PID })
	if err != nil || len(rest) != 4 {
		t.Errorf("without the inner shell: %v, %v; want 4", rest, err)
	}
}

func TestSignal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script := `trap 'echo got >>"$0"' USR1; sleep 1000 & echo ready >>"$0"; while :; do wait; done`
	root := startRoot(t, "sh", "-c", `setsid sh -c "$1" "$0/a" & sh -c "$1" "$0/b" & wait`, dir, script)
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	eventually(t, "both are ready", func() bool { return readFile(a) == "ready\n" && readFile(b) == "ready\n" })
	list := root.names("sh", "sh", "sh", "sleep", "sleep")
	skipSleep := func(p Process) bool { return p.Name == "sleep" || p.PPID == root.PID }
	if n, err := Signal(root.Process, syscall.SIGUSR1, skipSleep); n != 0 || err != nil {
		t.Errorf("Signal with all skipped = %d, %v", n, err)
	}
	// The outer shell and the sleeps do not expect it, so the walk begins below the one and skips the others.
	var outer Process
	for _, p := range list {
		if p.PPID == root.PID && p.Name == "sh" && outer.PID == 0 {
			outer = p
		}
	}
	n, err := Signal(outer, syscall.SIGUSR1, func(p Process) bool { return p.Name == "sleep" })
	if n != 2 || err != nil {
		t.Errorf("Signal = %d, %v; want 2", n, err)
	}
	eventually(t, "both got it", func() bool { return readFile(a) == "ready\ngot\n" && readFile(b) == "ready\ngot\n" })
}

func TestKill(t *testing.T) {
	t.Parallel()
	root := startRoot(t, "sh", "-c", `trap "" TERM; sleep 1000 & setsid sleep 1001 & wait`)
	root.names("sh", "sleep", "sleep")
	s, err := Kill(root.Process, nil)
	if err != nil || len(s.Killed) != 3 || len(s.Failed) != 0 {
		t.Errorf("Kill = %+v, %v", s, err)
	}
	<-root.empty
	if s, err := Kill(root.Process, nil); err != nil || len(s.Killed) != 0 {
		t.Errorf("Kill of nothing = %+v, %v", s, err)
	}
}

// Something that is a new process every few milliseconds, its parent dead already, is caught.
func TestKillComet(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "hops")
	root := startRoot(t, "sh", "-c", `hop() { echo >>"$0"; (hop &) ; exit; } ; (hop &)`, file)
	eventually(t, "it flies", func() bool { return len(readFile(file)) > 20 })
	passes := 0
	eventually(t, "it is dead", func() bool {
		passes++
		if _, err := Kill(root.Process, nil); err != nil {
			t.Fatal(err)
		}
		return root.isEmpty()
	})
	t.Logf("%d passes, %d hops", passes, len(readFile(file)))
	hops := len(readFile(file))
	if s, err := Kill(root.Process, nil); err != nil || len(s.Killed) != 0 || len(readFile(file)) != hops {
		t.Errorf("it has come back: %+v, %v", s, err)
	}
}

// A parent that starts a dead child again does not get the chance. The control kills children first and shows the restart.
func TestKillSupervisor(t *testing.T) {
	t.Parallel()
	for _, naive := range []bool{false, true} {
		t.Run(fmt.Sprintf("naive=%v", naive), func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "starts")
			root := startRoot(t, "sh", "-c", `while :; do echo >>"$0"; sleep 1000; done`, file)
			list := root.names("sh", "sleep")
			if naive {
				if err := kill(list[1]); err != nil {
					t.Fatal(err)
				}
				eventually(t, "it is started again", func() bool { return len(readFile(file)) > 1 })
				return
			}
			if s, err := Kill(root.Process, nil); err != nil || len(s.Killed) != 2 {
				t.Errorf("Kill = %+v, %v", s, err)
			}
			<-root.empty
			if n := len(readFile(file)); n != 1 {
				t.Errorf("the child was started %d times", n)
			}
		})
	}
}

// Two that watch over each other, far apart in the walk, do not get the chance either: all are stopped before any is killed.
func TestKillWatchdog(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "alarm")
	root := startRoot(t, "sh", "-c", `
		sleep 1000 & a=$!
		n=0; while [ $n -lt 300 ]; do sleep 1000 & n=$((n+1)); done
		(echo ready >>"$0"; while kill -0 $a 2>/dev/null; do :; done; echo dead >>"$0"; exec sleep 1000) & wait`, file)
	root.names(append(slices.Repeat([]string{"sleep"}, 301), "sh", "sh")...)
	eventually(t, "the watchdog watches", func() bool { return readFile(file) == "ready\n" })
	if s, err := Kill(root.Process, nil); err != nil || len(s.Killed) != 303 {
		t.Errorf("Kill has hit %d, %v; want 303", len(s.Killed), err)
	}
	<-root.empty
	if got := readFile(file); got != "ready\n" {
		t.Errorf("the watchdog has seen the death: %q", got)
	}
}

// A process is never taken for an earlier one with its number.
func TestIdentity(t *testing.T) {
	t.Parallel()
	root := startRoot(t, "sleep", "1000")
	list := root.names("sleep")
	p, old := list[0], list[0]
	old.start--
	if p.Is(old) || !p.Is(list[0]) {
		t.Error("Is mixes processes up")
	}
	if err := kill(old); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("kill of an earlier process = %v", err)
	}
	oldRoot := root.Process
	oldRoot.start--
	if s, err := Kill(oldRoot, nil); !errors.Is(err, os.ErrProcessDone) || len(s.Killed) != 0 {
		t.Errorf("Kill below an earlier process = %+v, %v", s, err)
	}
	if got := root.list(); len(got) != 1 || !got[0].Is(p) {
		t.Errorf("the wrong process was killed: %v are left", got)
	}
	if _, err := Find(1 << 30); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("Find of no process: %v", err)
	}
	self, err := Self()
	if err != nil || self.PID != os.Getpid() || self.PPID != os.Getppid() {
		t.Errorf("Self = %+v, %v", self, err)
	}
}

// A refusal is reported, not passed over. As root nothing is refused, so the killer is another user.
func TestKillRefused(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	root := startRoot(t, "sleep", "1000")
	list := root.names("sleep")
	type result struct {
		s   Sweep
		err error
	}
	c := make(chan result)
	go func() { // on a thread of its own, thrown away afterwards, because credentials belong to threads
		runtime.LockOSThread()
		_, _, e := syscall.RawSyscall(syscall.SYS_SETRESUID, 65534, 65534, 65534)
		if e != 0 {
			c <- result{err: e}
			return
		}
		s, err := Kill(root.Process, nil)
		c <- result{s, err}
	}()
	r := <-c
	if r.err != nil || len(r.s.Killed) != 0 || len(r.s.Failed) != 1 || !errors.Is(r.s.Failed[0].Err, syscall.EPERM) {
		t.Errorf("Kill = %+v, %v; want one refusal", r.s, r.err)
	}
	if got := root.list(); len(got) != 1 || !got[0].Is(list[0]) {
		t.Errorf("it is dead: %v are left", got)
	}
}

func TestParseStat(t *testing.T) {
	line := func(name, state string, threads int) string {
		return fmt.Sprintf("42 (%s) %s 7 42 42 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 %d 0 12345 99 1\n", name, state, threads)
	}
	for _, tt := range []struct {
		in, name        string
		zombie, stopped bool
	}{
		{in: line("sh", "S", 1), name: "sh"},
		{in: line("a) R 1 (b", "S", 1), name: "a) R 1 (b"},
		{in: line("x y\n", "R", 3), name: "x y\n"},
		{in: line("vi", "T", 1), name: "vi", stopped: true},
		{in: line("traced", "t", 1), name: "traced", stopped: true},
		{in: line("dead", "Z", 1), name: "dead", zombie: true},
		{in: line("headless", "Z", 4), name: "headless"}, // its first thread has ended, the others work
	} {
		p, err := parseStat([]byte(tt.in))
		if want := (Process{PID: 42, PPID: 7, Name: tt.name, Zombie: tt.zombie, Stopped: tt.stopped, start: 12345}); err != nil || p != want {
			t.Errorf("parseStat(%q) = %+v, %v; want %+v", tt.in, p, err, want)
		}
	}
	for _, in := range []string{"", "42", "42 (sh", "42 (sh) S 1", ")(", strings.Replace(line("sh", "S", 1), "42", "x", 1)} {
		if p, err := parseStat([]byte(in)); err == nil {
			t.Errorf("parseStat(%q) = %+v, want an error", in, p)
		}
	}
}

func BenchmarkKillOfNothing(b *testing.B) {
	self, err := Self()
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := Kill(self, nil); err != nil {
			b.Fatal(err)
		}
	}
}
