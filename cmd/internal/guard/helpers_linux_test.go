package guard

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdlock/holdlock/cmd/internal/proctree"
	"github.com/holdlock/holdlock/internal/bootclock"
)

const (
	long   = time.Hour       // a deadline that does not come
	enough = 4 * time.Minute // a wait that only a failure uses up

	// margin is how late the end of work may be. On an idle machine it is early, by the lead; this is for machines so busy
	// that a process waits seconds for its turn. The controls exceed it.
	margin = 5 * time.Second
)

// eventually waits until ok is true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(enough); ; <-tick.C {
		if ok() {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("waited %v in vain until %s", enough, what)
		}
	}
}

func testExe(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return exe
}

// A mini is a running mini holdlock.
type mini struct {
	t   *testing.T
	cmd *exec.Cmd
	part
	end chan struct{} // closed when it has ended
}

// startMini starts the process with the given role, "holdlock" or "naive". Whatever is left of it at the end of the test is
// killed. edit may change the command that starts it.
func startMini(t *testing.T, role string, p part, edit func(*exec.Cmd)) *mini {
	t.Helper()
	if p.Log == "" {
		dir := t.TempDir()
		p.Log, p.Result, p.Control = filepath.Join(dir, "log"), filepath.Join(dir, "result"), filepath.Join(dir, "control")
	}
	if err := syscall.Mkfifo(p.Control, 0o666); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	m := &mini{t: t, part: p, cmd: exec.Command(testExe(t), "role:"+role, string(b)), end: make(chan struct{})}
	m.cmd.Stderr = os.Stderr
	if edit != nil {
		edit(m.cmd)
	}
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	root, err := proctree.Find(m.cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = m.cmd.Wait()
		close(m.end)
	}()
	t.Cleanup(func() {
		m.tellOnFailure()
		if all, err := proctree.Descendants(root, nil); err == nil {
			_ = m.cmd.Process.Kill()
			for _, p := range all {
				_ = syscall.Kill(p.PID, syscall.SIGKILL)
			}
		}
		<-m.end
	})
	return m
}

// tellOnFailure shows what the mini holdlock has noted, but for most of its renewals.
func (m *mini) tellOnFailure() {
	if !m.t.Failed() {
		return
	}
	log := readFile(m.Log)
	m.t.Logf("now %d; holdlock has noted:\n...%s%s", bootclock.Now(), log[max(0, len(log)-500):], readFile(m.Result))
}

// number waits for a line "WORD NUMBER" in the log and returns the last such number.
func (m *mini) number(word string) int {
	m.t.Helper()
	var n int
	eventually(m.t, "the log says "+word, func() bool {
		for line := range strings.Lines(readFile(m.Log)) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), word+" "); ok {
				n, _ = strconv.Atoi(v)
			}
		}
		return n != 0
	})
	return n
}

// tell sends a line to the Control of the mini holdlock.
func (m *mini) tell(line string) {
	m.t.Helper()
	appendLine(m.Control, line)
}

// rest stops the renewals and returns the deadline that stays.
func (m *mini) rest() time.Duration {
	m.t.Helper()
	m.tell("rest")
	m.logged("rests")
	return time.Duration(m.number("deadline"))
}

// logged waits for a line in the log.
func (m *mini) logged(line string) {
	m.t.Helper()
	eventually(m.t, "the log says "+line, func() bool { return hasLine(m.Log, line) })
}

func (m *mini) signal(sig syscall.Signal) {
	m.t.Helper()
	if err := m.cmd.Process.Signal(sig); err != nil {
		m.t.Fatal(err)
	}
}

// wait returns what the mini holdlock reports, and its exit code.
func (m *mini) wait() (outcome, int) {
	m.t.Helper()
	select {
	case <-m.end:
	case <-time.After(enough):
		m.t.Fatal("holdlock does not end")
	}
	var o outcome
	if err := json.Unmarshal([]byte(readFile(m.Result)), &o); err != nil {
		m.t.Fatalf("result: %v", err)
	}
	return o, m.cmd.ProcessState.ExitCode()
}

func readFile(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return string(b)
}

func hasLine(file, want string) bool {
	for line := range strings.Lines(readFile(file)) {
		if line == want+"\n" {
			return true
		}
	}
	return false
}

// stamps returns the last stamp of each process that has written to file.
func stamps(file string) map[int]time.Duration {
	last := make(map[int]time.Duration)
	for line := range strings.Lines(readFile(file)) {
		a, b, _ := strings.Cut(strings.TrimSpace(line), " ")
		pid, err1 := strconv.Atoi(a)
		at, err2 := strconv.ParseInt(b, 10, 64)
		if err1 == nil && err2 == nil {
			last[pid] = time.Duration(at)
		}
	}
	return last
}

// A process is watched without looking into /proc: many looks at a dying process there slow down whoever reaps it, on a
// busy machine by seconds.
type process struct {
	pid, fd int
}

// watch returns the process with the given number. Whatever is left of it at the end of the test is killed.
func watch(t *testing.T, pid int) process {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("process %d: %v", pid, err)
	}
	t.Cleanup(func() {
		_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		_ = unix.Close(fd)
	})
	return process{pid, fd}
}

// alive reports whether the process has not ended.
func (p process) alive() bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, 0)
	return n == 0 && err == nil || errors.Is(err, unix.EINTR)
}

func anyAlive(list []process) bool {
	for _, p := range list {
		if p.alive() {
			return true
		}
	}
	return false
}

// writers waits until n processes write stamps to file, and returns them.
func writers(t *testing.T, file string, n int) []process {
	t.Helper()
	eventually(t, strconv.Itoa(n)+" processes write", func() bool { return len(stamps(file)) == n })
	var list []process
	for pid := range stamps(file) {
		list = append(list, watch(t, pid))
	}
	return list
}

// latest returns the last stamp of all.
func latest(file string) time.Duration {
	var last time.Duration
	for _, at := range stamps(file) {
		last = max(last, at)
	}
	return last
}

// startShort starts c with a deadline that is moved until the command writes stamps, and returns the one that stays. So the
// test depends neither on a fast start nor on a slow one.
func startShort(t *testing.T, c Config, stampFile string, ttl time.Duration) (*Guard, time.Duration) {
	t.Helper()
	deadline := bootclock.Now() + ttl
	c.Deadline = deadline
	g := start(t, c)
	eventually(t, "the command works", func() bool {
		deadline = bootclock.Now() + ttl
		g.SetDeadline(deadline)
		return len(stamps(stampFile)) > 0
	})
	return g, deadline
}

// run runs argv in this process and returns how it ended.
func run(t *testing.T, c Config) Result {
	t.Helper()
	return finish(t, start(t, c))
}

// start starts c in this process, with everything that it leaves out.
func start(t *testing.T, c Config) *Guard {
	t.Helper()
	if c.Deadline == 0 {
		c.Deadline = bootclock.Now() + long
	}
	if c.Env == nil {
		c.Env = os.Environ()
	}
	if c.Grace == 0 {
		c.Grace = 5 * time.Second
	}
	g, err := Start(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(g.KillAll)
	return g
}

func finish(t *testing.T, g *Guard) Result {
	t.Helper()
	select {
	case <-g.Done():
	case <-time.After(enough):
		t.Fatal("the command does not end")
	}
	return g.Wait()
}
