package guard

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A terminal is the user's end of a pseudo-terminal on which a program runs as session leader.
type terminal struct {
	t      *testing.T
	master *os.File
	cmd    *exec.Cmd

	mu  sync.Mutex
	out strings.Builder // all that it has shown
	pos int             // what expect has passed
}

// openTerminal runs argv on a new terminal.
func openTerminal(t *testing.T, argv ...string) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var n uint32
	var ierr error
	if err := raw.Control(func(fd uintptr) {
		if ierr = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); ierr == nil {
			n, ierr = unix.IoctlGetUint32(int(fd), unix.TIOCGPTN)
		}
	}); err != nil || ierr != nil {
		t.Fatal(err, ierr)
	}
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer slave.Close()
	term := &terminal{t: t, master: master, cmd: exec.Command(argv[0], argv[1:]...)}
	term.cmd.Stdin, term.cmd.Stdout, term.cmd.Stderr = slave, slave, slave
	term.cmd.Env = append(os.Environ(), "PS1=$ ", "TERM=dumb", "HISTFILE=")
	term.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := term.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for buf := make([]byte, 4096); ; {
			n, err := master.Read(buf)
			term.mu.Lock()
			term.out.Write(buf[:n])
			term.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = term.cmd.Process.Kill()
		_ = term.cmd.Wait()
		_ = master.Close() // hangs up: HUP to whatever is left
		<-read
		if t.Failed() {
			t.Logf("the terminal shows:\n%s", term.out.String())
		}
	})
	return term
}

// keys types.
func (term *terminal) keys(s string) {
	term.t.Helper()
	if _, err := term.master.WriteString(s); err != nil {
		term.t.Fatal(err)
	}
}

// expect waits until the terminal shows s after what was expected before.
func (term *terminal) expect(s string) {
	term.t.Helper()
	eventually(term.t, fmt.Sprintf("the terminal shows %q", s), func() bool {
		term.mu.Lock()
		defer term.mu.Unlock()
		i := strings.Index(term.out.String()[term.pos:], s)
		if i < 0 {
			return false
		}
		term.pos += i + len(s)
		return true
	})
}

// onTerminal writes a script that runs the mini holdlock, so that a user can type its name.
func onTerminal(t *testing.T, p part) (m *mini, script string) {
	t.Helper()
	dir := t.TempDir()
	p.Log, p.Result = filepath.Join(dir, "log"), filepath.Join(dir, "result")
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	script = filepath.Join(dir, "run")
	text := "#!/bin/sh\nexec '" + testExe(t) + "' role:holdlock '" + strings.ReplaceAll(string(b), "'", `'\''`) + "'\n"
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	m = &mini{t: t, part: p}
	t.Cleanup(m.tellOnFailure)
	return m, script
}

// holdlockPID is the parent of the guard.
func (m *mini) holdlockPID() int {
	m.t.Helper()
	_, rest, _ := strings.Cut(readFile(fmt.Sprintf("/proc/%d/status", m.number("guard"))), "\nPPid:\t")
	var pid int
	_, _ = fmt.Sscan(rest, &pid)
	return pid
}

func interactiveShell(t *testing.T) *terminal {
	t.Helper()
	term := openTerminal(t, "bash", "--norc", "--noprofile", "--noediting", "-i")
	term.expect("$ ")
	return term
}

// Under a shell with job control the command reads the terminal, ^Z stops it with holdlock, fg brings both back.
func TestJobControl(t *testing.T) {
	t.Parallel()
	m, script := onTerminal(t, part{
		Argv: []string{"sh", "-c", `echo first; read x; echo "got $x"; read y; echo "then $y"; exit 6`}, TTL: long, Grace: time.Minute,
	})
	term := interactiveShell(t)
	term.keys(script + "\n")
	term.expect("first\r\n")
	term.keys("hello\n")
	term.expect("got hello")
	holdlock, guard, command := m.holdlockPID(), m.number("guard"), m.number("started")
	term.keys("\x1a")
	term.expect("Stopped")
	for who, pid := range map[string]int{"holdlock": holdlock, "the command": command} {
		eventually(t, who+" is stopped", func() bool { return state(pid) == "T" })
	}
	if s := state(guard); s == "T" {
		t.Error("the guard is stopped")
	}
	term.expect("$ ")
	term.keys("fg\n")
	eventually(t, "holdlock goes on", func() bool { return state(holdlock) != "T" })
	term.keys("again\n")
	term.expect("then again")
	term.expect("$ ")
	term.keys("echo code=$?\n")
	term.expect("code=6")
}

// ^Z does not hold the lease for ever: the guard ends the stopped command in time, and fg shows it.
func TestSuspendedByTheUser(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "stamps")
	m, script := onTerminal(t, part{
		Argv: []string{testExe(t), "role:tree", file}, TTL: 5 * time.Second, Renew: 100 * time.Millisecond, Grace: 400 * time.Millisecond,
	})
	term := interactiveShell(t)
	term.keys(script + "\n")
	work := writers(t, file, 4)
	holdlock := m.holdlockPID()
	term.keys("\x1a")
	term.expect("Stopped")
	deadline := time.Duration(m.number("deadline"))
	eventually(t, "the work is dead", func() bool { return !anyAlive(work) })
	if over := latest(file) - deadline; over > margin {
		t.Errorf("worked on for %v after the deadline", over)
	}
	if s := state(holdlock); s != "T" {
		t.Errorf("the test is no good: holdlock is in state %q", s)
	}
	term.keys("fg\n")
	eventually(t, "holdlock reports", func() bool { return readFile(m.Result) != "" })
	if r := readFile(m.Result); !strings.Contains(r, `"Ended":"deadline"`) {
		t.Errorf("result %s", r)
	}
}

// ^C and ^\ reach the command once. Holdlock does not pass on what the kernel has delivered already.
func TestInterruptOnce(t *testing.T) {
	t.Parallel()
	for _, shell := range []bool{true, false} { // without a shell: as in `docker run -it`
		t.Run(map[bool]string{true: "under a shell", false: "session leader"}[shell], func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "signals")
			m, script := onTerminal(t, part{Argv: []string{testExe(t), "role:signals", file}, TTL: long, Grace: time.Minute})
			var term *terminal
			if shell {
				term = interactiveShell(t)
				term.keys(script + "\n")
			} else {
				term = openTerminal(t, script)
			}
			eventually(t, "the command is ready", func() bool { return hasLine(file, "ready") })
			holdlock := m.holdlockPID()
			term.keys("\x03")
			m.logged("signal interrupt false")
			eventually(t, "the command gets it", func() bool { return hasLine(file, "interrupt") })
			term.keys("\x1c")
			m.logged("signal quit false")
			eventually(t, "the command gets it", func() bool { return hasLine(file, "quit") })
			// A second one would have gone through the same pipe before this:
			if err := syscall.Kill(holdlock, syscall.SIGUSR1); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the command gets USR1", func() bool { return hasLine(file, "user defined signal 1") })
			if got := readFile(file); got != "ready\ninterrupt\nquit\nuser defined signal 1\n" {
				t.Errorf("the command got %q", got)
			}
			if err := syscall.Kill(holdlock, syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			eventually(t, "holdlock reports", func() bool { return readFile(m.Result) != "" })
		})
	}
}

// The exit code after ^C is that of a command ended by INT.
func TestInterruptEndsCommand(t *testing.T) {
	t.Parallel()
	m, script := onTerminal(t, part{Argv: []string{"sh", "-c", "echo here; exec sleep 1000"}, TTL: long, Grace: time.Minute})
	term := interactiveShell(t)
	term.keys(script + "\n")
	term.expect("here\r\n")
	m.number("started")
	term.keys("\x03")
	term.expect("$ ")
	term.keys("echo code=$?\n")
	term.expect("code=130")
}

// In the background, with stopped output (stty tostop), neither holdlock nor the guard touches the terminal.
func TestBackgroundJob(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "stamps")
	m, script := onTerminal(t, part{
		Argv: []string{testExe(t), "role:stamp", file, "stubborn"}, TTL: 6 * time.Second, Grace: 400 * time.Millisecond,
	})
	term := interactiveShell(t)
	term.keys("stty tostop\n")
	term.expect("$ ")
	term.keys(script + " &\n")
	work := writers(t, file, 1)
	eventually(t, "the work is dead", func() bool { return !anyAlive(work) })
	eventually(t, "holdlock reports", func() bool { return readFile(m.Result) != "" })
	if over := latest(file) - time.Duration(m.number("deadline")); over > margin {
		t.Errorf("worked on for %v after the deadline", over)
	}
}

// The terminal goes away (the window is closed): HUP reaches all, and nothing is left.
func TestHangup(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "stamps")
	m, script := onTerminal(t, part{Argv: []string{testExe(t), "role:stamp", file}, TTL: long, Grace: time.Minute})
	term := interactiveShell(t)
	term.keys(script + "\n")
	work := writers(t, file, 1)
	holdlock := watch(t, m.holdlockPID())
	_ = term.master.Close()
	eventually(t, "the work is dead", func() bool { return !anyAlive(work) })
	eventually(t, "holdlock has ended", func() bool { return !holdlock.alive() })
}

// A stopped process in holdlock's group, and a group that has no shell with job control above it, as in cron: when the
// command ends, the kernel must not find that the group has become an orphan, or it sends HUP to everyone in it.
func TestNobodyIsHungUp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	out := filepath.Join(dir, "out")
	m := startMini(t, "holdlock", part{Argv: []string{"sleep", "0.2"}, TTL: long}, func(c *exec.Cmd) {
		script := `trap 'echo HUP >>"$0"' HUP; sleep 1000 & kill -STOP $!; "$@"; kill -KILL $!; echo end >>"$0"`
		c.Args = append([]string{"sh", "-c", script, out}, append([]string{c.Path}, c.Args[1:]...)...)
		c.Path = "/bin/sh"
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	})
	eventually(t, "the script has ended", func() bool { return hasLine(out, "end") })
	if hasLine(out, "HUP") {
		t.Error("the script that called holdlock was sent HUP")
	}
	_ = m
}
