package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const (
	enough  = 60 * time.Second // a wait that only a failure uses up
	markVar = "HOLDLOCK_E2E_MARK"
)

// A box is the world of one test: a directory, a store in it, and a mark by which all that it starts is found again.
type box struct {
	t     testing.TB
	dir   string
	db    string // the store's file
	spool string // where what could not be counted waits, beside the box
	mark  string
	env   []string
	n     atomic.Int64 // processes started
}

var boxes atomic.Int64

// newBox makes a box. When the test has ended, nothing with its mark may be running.
func newBox(t testing.TB) *box {
	t.Helper()
	dir := t.TempDir()
	b := &box{t: t, dir: dir, db: filepath.Join(dir, "locks.db"), spool: t.TempDir()}
	b.mark = fmt.Sprintf("%s=%d-%d", markVar, os.Getpid(), boxes.Add(1))
	b.env = []string{
		b.mark, "PATH=" + os.Getenv("PATH"), "HOME=" + dir, "USER=tester", "LC_ALL=C.UTF-8",
		"HOLDLOCK_STORE=sqlite:" + b.db, "HOLDLOCK_SPOOL=" + b.spool, // not in dir, which tests compare
		"GORACE=atexit_sleep_ms=0", // or each of our own processes would take a second to end under the race detector
	}
	t.Cleanup(b.nothingLeft)
	return b
}

// makeStore makes the file in which locks are, with nothing held in it: those who only look do not make it.
func (b *box) makeStore() {
	b.t.Helper()
	if r := b.run("run", "first", "--", "true"); r.code != 0 {
		b.t.Fatalf("run: %+v", r)
	}
}

// path returns the path of a file in the box.
func (b *box) path(name string) string { return filepath.Join(b.dir, name) }

// marked returns the processes of the box that live, as "PID COMMAND LINE". Zombies have no environment and do not count.
func (b *box) marked() map[int]string {
	found := make(map[int]string)
	all, err := os.ReadDir("/proc")
	if err != nil {
		b.t.Fatal(err)
	}
	for _, e := range all {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		env, err := os.ReadFile("/proc/" + e.Name() + "/environ")
		if err != nil || !slices.Contains(strings.Split(string(env), "\x00"), b.mark) {
			continue
		}
		line, _ := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		found[pid] = string(bytes.ReplaceAll(line, []byte{0}, []byte{' '}))
	}
	return found
}

// nothingLeft fails the test if a process of the box is still running, and kills it.
func (b *box) nothingLeft() {
	b.t.Helper()
	// What was killed a moment ago may need one to vanish.
	if poll(5*time.Second, func() bool { return len(b.marked()) == 0 }) {
		return
	}
	for pid, line := range b.marked() {
		b.t.Errorf("left running: %d %s", pid, line)
		_ = syscall.Kill(pid, syscall.SIGCONT)
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// command prepares holdlock with the box's environment.
func (b *box) command(args ...string) *exec.Cmd { return b.program(holdlockPath, args...) }

// program prepares any program with the box's environment.
func (b *box) program(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.Env = slices.Clone(b.env)
	cmd.Dir = b.dir
	return cmd
}

// setenv changes the environment of a command that was not started yet.
func setenv(cmd *exec.Cmd, settings ...string) {
	for _, s := range settings {
		name, _, _ := strings.Cut(s, "=")
		cmd.Env = slices.DeleteFunc(cmd.Env, func(v string) bool { return strings.HasPrefix(v, name+"=") })
		if s != name { // a bare name removes it
			cmd.Env = append(cmd.Env, s)
		}
	}
}

// A proc is a started process whose output goes to files, so that nobody waits for a grandchild to close a pipe.
type proc struct {
	t    testing.TB
	cmd  *exec.Cmd
	out  string // path
	err  string // path
	done chan struct{}
}

// launch starts cmd. It is killed at the end of the test if it still runs then.
func (b *box) launch(cmd *exec.Cmd) *proc {
	b.t.Helper()
	base := b.path(fmt.Sprintf("proc%d", b.n.Add(1)))
	p := &proc{t: b.t, cmd: cmd, out: base + ".out", err: base + ".err", done: make(chan struct{})}
	for path, to := range map[string]*io.Writer{p.out: &cmd.Stdout, p.err: &cmd.Stderr} {
		file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			b.t.Fatal(err)
		}
		defer file.Close()
		if *to == nil {
			*to = file
		}
	}
	if err := cmd.Start(); err != nil {
		b.t.Fatal(err)
	}
	go func() {
		_ = cmd.Wait()
		close(p.done)
	}()
	b.t.Cleanup(func() {
		select {
		case <-p.done:
		default:
			_ = cmd.Process.Signal(syscall.SIGCONT)
			_ = cmd.Process.Kill()
			<-p.done
		}
	})
	return p
}

// start starts holdlock.
func (b *box) start(args ...string) *proc {
	b.t.Helper()
	return b.launch(b.command(args...))
}

// run runs holdlock to its end.
func (b *box) run(args ...string) result {
	b.t.Helper()
	return b.start(args...).wait()
}

// A result is how a process ended.
type result struct {
	code     int // as a shell gives it
	out, err string
}

func (p *proc) pid() int { return p.cmd.Process.Pid }

func (p *proc) stdout() string { return read(p.out) }
func (p *proc) stderr() string { return read(p.err) }

// wait returns when the process has ended.
func (p *proc) wait() result {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(enough):
		p.t.Fatalf("%v does not end; stdout %q, stderr %q", p.cmd.Args, p.stdout(), p.stderr())
	}
	return result{code: exitCode(p.cmd.ProcessState), out: p.stdout(), err: p.stderr()}
}

func (p *proc) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *proc) signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Fatal(err)
	}
}

// waits waits until holdlock waits in line for a lock: until it has opened the socket by which it is woken.
func (p *proc) waits() {
	p.t.Helper()
	eventually(p.t, "it waits for the lock", func() bool {
		if p.ended() {
			p.t.Fatalf("%v has ended with %d: %s", p.cmd.Args, exitCode(p.cmd.ProcessState), p.stderr())
		}
		return listens(p.pid())
	})
}

// listens says whether the process has a socket of holdlock's.
func listens(pid int) bool {
	var inodes []string
	for line := range strings.Lines(read("/proc/net/unix")) {
		if f := strings.Fields(line); len(f) == 8 && strings.HasPrefix(f[7], "@holdlock-") {
			inodes = append(inodes, "socket:["+f[6]+"]")
		}
	}
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, _ := os.ReadDir(dir)
	return slices.ContainsFunc(fds, func(e os.DirEntry) bool {
		to, _ := os.Readlink(filepath.Join(dir, e.Name()))
		return slices.Contains(inodes, to)
	})
}

func exitCode(s *os.ProcessState) int {
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return s.ExitCode()
}

// guardOf returns the PID of the guard of a holdlock process.
func guardOf(t testing.TB, holdlock int) int {
	t.Helper()
	var guard int
	eventually(t, "there is a guard", func() bool {
		for _, pid := range children(holdlock) {
			if strings.HasPrefix(read(fmt.Sprintf("/proc/%d/cmdline", pid)), "lease-guard\x00") {
				guard = pid
				return true
			}
		}
		return false
	})
	return guard
}

// children returns the direct children of a process.
func children(pid int) []int {
	var list []int
	tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	for _, task := range tasks {
		for _, f := range strings.Fields(read(fmt.Sprintf("/proc/%d/task/%s/children", pid, task.Name()))) {
			if n, err := strconv.Atoi(f); err == nil {
				list = append(list, n)
			}
		}
	}
	return list
}

// entries returns the names in a directory.
func entries(dir string) (names []string) {
	list, _ := os.ReadDir(dir)
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// read returns what is in a file, and "" if there is none.
func read(path string) string {
	b, _ := os.ReadFile(path)
	return string(b)
}

func write(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// poll waits until ok is true, at most for limit. It looks less and less often, because some of the looks are at all
// processes of the machine.
func poll(limit time.Duration, ok func() bool) bool {
	pause := time.Millisecond
	for end := time.Now().Add(limit); !ok(); pause = min(pause*5/4, 50*time.Millisecond) {
		if time.Now().After(end) {
			return false
		}
		<-time.After(pause)
	}
	return true
}

// eventually waits until ok is true.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	if !poll(enough, ok) {
		t.Fatalf("waited %v in vain until %s", enough, what)
	}
}

// contains fails the test unless text contains every part.
func contains(t testing.TB, what, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%s lacks %q: %q", what, p, text)
		}
	}
}
