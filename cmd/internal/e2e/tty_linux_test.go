package e2e

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

const (
	ctrlC = "\x03"
	ctrlZ = "\x1a"
)

func TestCommandReadsTheTerminal(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	term := b.inTerminal(b.command("run", "job", "--", "sh", "-c", `printf 'name? '; read name; echo "hello, $name"; test -t 0 && test -t 1 && test -t 2`))
	term.shows("name? ")
	term.types("world\n")
	term.shows("hello, world\r\n")
	if r := term.wait(); r.code != 0 {
		t.Errorf("%+v: %s", r, term.shown())
	}
}

// TestOutputIsNotMangled compares what a terminal shows of a command with and without holdlock.
func TestOutputIsNotMangled(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	script := []string{"-c", `i=0; while [ $i -lt 200 ]; do printf 'line %d\t\033[1mx\033[0m\rback\n' $i; echo err$i >&2; i=$((i+1)); done; stty -a; printf 'no newline'; printf 'END'`}
	plain := b.inTerminal(b.program("sh", script...))
	want := plain.shows("END")
	plain.wait()
	held := b.inTerminal(b.command(append([]string{"run", "job", "--", "sh"}, script...)...))
	got := held.shows("END")
	held.wait()
	if got != want {
		t.Errorf("with holdlock %q\nwithout %q", got, want)
	}
	if rest := held.shown(); rest != "" {
		t.Errorf("afterwards: %q", rest)
	}
}

// TestInterruptOnce presses ^C: the command gets it from the kernel, and not a second time from holdlock.
func TestInterruptOnce(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	// USR1 is passed on by holdlock after all that it has received before: when it arrives, a second INT would have.
	term := b.inTerminal(b.command("run", "job", "--", "sh", "-c",
		`n=0; trap 'n=$((n+1)); echo INT$n' INT; trap 'echo "total $n"; exit 5' USR1; echo ready; while :; do sleep 0.01; done`))
	term.shows("ready")
	term.types(ctrlC)
	term.shows("INT1")
	term.signal(syscall.SIGUSR1)
	term.shows("total ")
	if r := term.wait(); r.code != 5 || !strings.HasPrefix(term.shown(), "1\r\n") {
		t.Errorf("%+v; INT came %q times, want once", r, term.shown())
	}
}

// TestInterruptEnds presses ^C on a command that does not expect it.
func TestInterruptEnds(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	term := b.inTerminal(b.command("run", "job", "--", "sh", "-c", "echo ready; exec sleep 60"))
	term.shows("ready")
	term.types(ctrlC)
	if r := term.wait(); r.code != 128+int(syscall.SIGINT) {
		t.Errorf("%+v, want 130", r)
	}
}

// shell starts an interactive bash.
func (b *box) shell() *terminal {
	b.t.Helper()
	cmd := b.program("bash", "--norc", "--noprofile", "--noediting", "-i")
	setenv(cmd, "PS1=prompt> ", "HL="+holdlockPath, "HISTFILE", "TERM=dumb")
	term := b.inTerminal(cmd)
	term.shows("prompt> ")
	return term
}

// stopped waits until the process is stopped.
func stopped(t *testing.T, pid int) {
	t.Helper()
	eventually(t, fmt.Sprintf("process %d is stopped", pid), func() bool {
		_, state, _ := strings.Cut(read(fmt.Sprintf("/proc/%d/stat", pid)), ") ")
		return strings.HasPrefix(state, "T")
	})
}

// TestJobControl stops a job with ^Z and continues it, in the foreground and in the background.
func TestJobControl(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	term := b.shell()
	term.types(`"$HL" run job -- sh -c 'echo pid $$.; read a; echo "got $a"; read b; echo "got $b"; exit 7'` + "\n")
	term.shows("pid ")
	var command int
	if _, err := fmt.Sscanf(term.shows("."), "%d", &command); err != nil {
		// The first is the echo of what was typed.
		term.shows("pid ")
		if _, err := fmt.Sscanf(term.shows("."), "%d", &command); err != nil {
			t.Fatal(err)
		}
	}
	term.types("one\n")
	term.shows("got one\r\n")
	term.types(ctrlZ)
	term.shows("Stopped")
	term.shows("prompt> ")
	stopped(t, command)
	term.types("fg\n")
	term.shows("run job") // bash repeats the command
	term.types("two\n")
	term.shows("got two\r\n")
	term.shows("prompt> ")
	term.types("echo code $?.\n")
	term.shows("code 7.")
	term.types("exit\n")
	term.wait()
}

// TestStoppedByTerminal leaves a job stopped by ^Z past its TTL: its command is ended in time, though it is stopped, and
// holdlock tells when it is continued.
func TestStoppedByTerminal(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	journal := b.path("journal")
	term := b.shell()
	argv := role("write", journal, "first", "10ms")
	term.types(`"$HL" run job --ttl 2s -- sh -c '"$@"; exit $?' ` + strings.Join(argv[3:], " ") + "\n")
	writing(t, journal, []string{"first"})
	term.types(ctrlZ)
	term.shows("Stopped")
	if r := b.run(append([]string{"run", "job", "--wait", "forever", "--"}, direct("note", journal, "next")...)...); r.code != 0 {
		t.Errorf("the next run: %+v", r)
	}
	if n := overlaps(journalOf(journal), "first", "note"); n > 0 {
		t.Errorf("%d acts of the first command after the next run", n)
	}
	term.shows("prompt> ")
	term.types("fg\n")
	term.shows("was lost")
	term.shows("prompt> ")
	term.types("echo code $?.\n")
	term.shows("code 70.")
	term.types("exit\n")
	term.wait()
}

// TestBackground starts a job with & : it must not stop for lack of a terminal unless its command reads from one.
func TestBackground(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	term := b.shell()
	term.types(`"$HL" run job -- sh -c 'echo out of background; exit 7' & wait $!; echo "code $?."` + "\n")
	term.shows("out of background\r\n")
	term.shows("code 7.")
	term.types(`"$HL" run job -- sh -c 'read a; echo "got $a"' & ` + "\n")
	eventually(t, "the job is stopped because it reads", func() bool {
		term.types("jobs\n")
		term.shows("prompt> ")
		return strings.Contains(term.shown(), "Stopped")
	})
	term.types("fg\n")
	term.types("now\n")
	term.shows("got now\r\n")
	term.types("exit\n")
	term.wait()
}

// TestHangup closes the terminal: the command ends with the session.
func TestHangup(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	term := b.inTerminal(b.command("run", "job", "--", "sh", "-c", "echo ready; exec sleep 60"))
	term.shows("ready")
	term.master.Close()
	if r := term.wait(); r.code != 128+int(syscall.SIGHUP) {
		t.Errorf("%+v, want 129", r)
	}
	if r := b.run("run", "job", "--", "echo", "free"); r.out != "free\n" {
		t.Errorf("the lock: %+v", r)
	}
}

// TestProcessOne runs holdlock as the first process of a pid namespace, as a container does.
func TestProcessOne(t *testing.T) {
	t.Parallel()
	enter := func(b *box, script string) *exec.Cmd {
		args := append([]string{"--pid", "--fork", "--mount-proc", "--kill-child", holdlockPath, "run", "job", "--", "sh", "-c", script}, direct("")[0], b.path("journal"))
		return b.program("unshare", namespaces(b.t, args...)...)
	}
	t.Run("reaps", func(t *testing.T) {
		t.Parallel()
		b := newBox(t)
		// Orphans come to process 1 or to the guard; when they end, nobody may stay a zombie.
		script := `i=0; while [ $i -lt 20 ]; do sh -c 'sleep 0.01 & setsid sleep 0.01 &'; i=$((i+1)); done
i=0; while grep -q '^State:.Z' /proc/[0-9]*/status 2>/dev/null; do sleep 0.05; i=$((i+1)); [ $i -gt 400 ] && exit 1; done
while [ "$(ls -d /proc/[0-9]* 2>/dev/null | wc -l)" -gt 5 ]; do sleep 0.05; i=$((i+1)); [ $i -gt 400 ] && exit 2; done
exit 7`
		if r := b.launch(enter(b, script)).wait(); r.code != 7 || r.err != "" {
			t.Errorf("%+v, want 7", r)
		}
	})
	t.Run("TERM", func(t *testing.T) {
		t.Parallel()
		b := newBox(t)
		p := b.launch(enter(b, `trap 'echo got TERM; exit 3' TERM; "$0" role:write "$1" child 10ms & while :; do wait; done`))
		writing(t, b.path("journal"), []string{"child"})
		var one int
		eventually(t, "process 1 is found", func() bool {
			for _, pid := range children(p.pid()) {
				one = pid
			}
			return one != 0
		})
		if err := syscall.Kill(one, syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if r := p.wait(); r.code != 3 || r.out != "got TERM\n" {
			t.Errorf("%+v, want 3", r)
		}
		if n := len(find(journalOf(b.path("journal")), "T", "child")); n != 1 {
			t.Errorf("the child got TERM %d times, want once", n)
		}
		if r := b.run("run", "job", "--", "echo", "free"); r.out != "free\n" {
			t.Errorf("the lock: %+v", r)
		}
	})
}
