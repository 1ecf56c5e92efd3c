package guard

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdlock/holdlock/internal/bootclock"
)

// An asker asks inside the command how much time is left.
type asker struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Scanner
}

// startAsker runs a mini holdlock whose command answers.
func startAsker(t *testing.T, p part) (*mini, *asker) {
	t.Helper()
	a := &asker{t: t}
	p.Argv = []string{testExe(t), "role:remaining"}
	m := startMini(t, "holdlock", p, func(c *exec.Cmd) {
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		a.in, a.out = in, bufio.NewScanner(out)
	})
	return m, a
}

// ask returns the answer, or the error in words.
func (a *asker) ask() (time.Duration, string) {
	a.t.Helper()
	if _, err := io.WriteString(a.in, "?\n"); err != nil {
		a.t.Fatal(err)
	}
	if !a.out.Scan() {
		a.t.Fatal("no answer")
	}
	if n, err := strconv.ParseInt(a.out.Text(), 10, 64); err == nil {
		return time.Duration(n), ""
	}
	return 0, a.out.Text()
}

// The command is told the time until TERM, also while holdlock is stopped, and 0 once TERM is out.
func TestRemaining(t *testing.T) {
	t.Parallel()
	m, a := startAsker(t, part{TTL: 2 * time.Hour, Grace: time.Hour})
	check := func(when string) {
		t.Helper()
		limit := time.Duration(m.number("deadline")) - time.Hour // TERM comes an hour before the deadline
		before := bootclock.Now()
		got, errText := a.ask()
		if errText != "" {
			t.Fatalf("%s: %s", when, errText)
		}
		if most := limit - before; got > most || got < most-time.Minute {
			t.Errorf("%s: %v left, want a little less than %v", when, got, most)
		}
	}
	check("at the start")
	m.signal(syscall.SIGSTOP)
	check("while holdlock is stopped")
	m.signal(syscall.SIGCONT)
	m.tell("3h")
	eventually(t, "the renewal is seen", func() bool { d, _ := a.ask(); return d > time.Hour })
	check("after a renewal")
	m.tell("end")
	m.logged("ending asked")
	if got, errText := a.ask(); got != 0 || errText != "" {
		t.Errorf("after TERM: %v left, %s; want 0", got, errText)
	}
	before := m.number("deadline")
	m.tell("4h")
	eventually(t, "there is another renewal", func() bool { return m.number("deadline") > before })
	if got, errText := a.ask(); got != 0 || errText != "" {
		t.Errorf("after TERM and a renewal: %v left, %s; want 0", got, errText)
	}
	m.tell("killall")
	m.wait()
}

// The time runs out by itself, whoever is stopped.
func TestRemainingRunsOut(t *testing.T) {
	t.Parallel()
	m, a := startAsker(t, part{TTL: 8 * time.Second, Grace: 200 * time.Millisecond})
	if got, errText := a.ask(); got == 0 {
		t.Fatalf("nothing left at the start (%s)", errText)
	}
	for _, pid := range []int{m.number("guard"), m.cmd.Process.Pid} {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the deadline is near", func() bool {
		return bootclock.Now() > time.Duration(m.number("deadline"))-250*time.Millisecond
	})
	if got, errText := a.ask(); got != 0 || errText != "" {
		t.Errorf("%v left, %s; want 0", got, errText)
	}
}

func TestRemainingFailsClosed(t *testing.T) {
	t.Parallel()
	b, err := newBoard()
	if err != nil {
		t.Fatal(err)
	}
	b.set(bootclock.Now() + time.Hour)
	if d, err := Remaining(b.env); err != nil || d > time.Hour || d < 50*time.Minute {
		t.Fatalf("the test is no good: Remaining = %v, %v", d, err)
	}
	path, id, _ := strings.Cut(b.env, "#")
	self := os.Getpid()
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	other, err := newBoard()
	if err != nil {
		t.Fatal(err)
	}
	otherPath, _, _ := strings.Cut(other.env, "#")
	big := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(big, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, env := range map[string]string{
		"not set":               "",
		"no id":                 path,
		"wrong id":              path + "#" + strings.Repeat("0", 32),
		"short id":              path + "#00",
		"another guard's board": otherPath + "#" + id,
		"not a board":           fmt.Sprintf("/proc/%d/fd/%d#%s", self, null.Fd(), id),
		"no descriptor":         fmt.Sprintf("/proc/%d/fd/99999#%s", self, id),
		"no process":            "/proc/999999999/fd/3#" + id,
		"another file":          big + "#" + id,
		"a detour":              "/proc/" + strconv.Itoa(self) + "/fd/../../../etc/passwd#" + id,
		"a number in disguise":  "/proc/+" + strings.TrimPrefix(b.env, "/proc/"),
	} {
		if d, err := Remaining(env); err == nil {
			t.Errorf("%s: Remaining(%q) = %v, want an error", name, env, d)
		}
	}
	b.set(-5)
	if d, err := Remaining(b.env); err != nil || d != 0 {
		t.Errorf("Remaining = %v, %v; want 0", d, err)
	}
}

// After the guard's death there is nothing to rely on.
func TestRemainingWithoutGuard(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "env")
	r := run(t, Config{Argv: []string{"sh", "-c", `printf %s "$` + LeaseEnv + `" >"$0"`, out}})
	if r.ExitCode() != 0 {
		t.Fatalf("result %+v", r)
	}
	env := readFile(out)
	if !strings.HasPrefix(env, "/proc/") {
		t.Fatalf("the test is no good: the lease is %q", env)
	}
	if d, err := Remaining(env); err == nil {
		t.Errorf("Remaining = %v, want an error", d)
	}
}
