package e2e

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdlock/holdlock/internal/bootclock"
)

// detachRole starts a command in a session of its own and ends at once: detach COMMAND ARG….
func detachRole(args []string) int {
	pid, err := syscall.ForkExec(args[0], args, &syscall.ProcAttr{
		Env: syscall.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil || pid == 0 {
		return 95
	}
	return 0
}

// family is a command with writers in every relation to it: itself, a child, a grandchild, a background job, and one in a
// session of its own whose parent is gone. It returns their names and the command line.
func family(journal, manner string) (names, argv []string) {
	writer := func(name string) string {
		return `"$0" role:write "` + journal + `" ` + name + ` 10ms ` + manner
	}
	script := writer("background") + ` & "$0" role:detach ` + writer("detached") + `
sh -c '` + writer("grandchild") + `; exit $?' "$0" & ` + writer("child") + ` & exec ` + writer("itself")
	return []string{"background", "detached", "grandchild", "child", "itself"}, []string{"sh", "-c", script, direct("")[0]}
}

// writing waits until all names have written.
func writing(t *testing.T, journal string, names []string) {
	t.Helper()
	eventually(t, "all write", func() bool {
		list := journalOf(journal)
		return !slices.ContainsFunc(names, func(n string) bool { return len(find(list, "W", n)) < 2 })
	})
}

// TestSignalsReachDescendants sends the signals that ask for an end to holdlock.
func TestSignalsReachDescendants(t *testing.T) {
	t.Parallel()
	t.Run("TERM", func(t *testing.T) {
		t.Parallel()
		b := newBox(t)
		journal := b.path("journal")
		names, argv := family(journal, "willing")
		p := b.start(append([]string{"run", "job", "--"}, argv...)...)
		writing(t, journal, names)
		p.signal(syscall.SIGTERM)
		if r := p.wait(); r.code != 128+int(syscall.SIGTERM) {
			t.Errorf("%+v", r)
		}
		b.noneButHoldlock()
		for _, n := range names {
			if got := len(find(journalOf(journal), "T", n)); got != 1 {
				t.Errorf("%s got TERM %d times, want once", n, got)
			}
		}
	})
	t.Run("TERM, and a shell between that dies at once", func(t *testing.T) {
		t.Parallel()
		b := newBox(t)
		journal := b.path("journal")
		p := b.start(append([]string{"run", "job", "--"}, role("write", journal, "grandchild", "10ms")...)...)
		writing(t, journal, []string{"grandchild"})
		p.signal(syscall.SIGTERM)
		if r := p.wait(); r.code != 128+int(syscall.SIGTERM) {
			t.Errorf("%+v", r)
		}
		if got := len(find(journalOf(journal), "T", "grandchild")); got != 1 {
			t.Errorf("the grandchild got TERM %d times, want once", got)
		}
	})
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			journal := b.path("journal")
			// The command outlives the signal, so that nothing else can have ended the grandchild.
			script := `trap 'trapped=1' ` + fmt.Sprint(int(sig)) + `
sh -c '"$0" role:write "$1" grandchild 10ms; exit $?' "$0" "$1"
exit $((40 + trapped))`
			p := b.start("run", "job", "--", "sh", "-c", script, direct("")[0], journal)
			writing(t, journal, []string{"grandchild"})
			p.signal(sig)
			if r := p.wait(); r.code != 41 {
				t.Errorf("%+v, want 41: the command's own end after the signal had reached it and the grandchild", r)
			}
		})
	}
	t.Run("USR1", func(t *testing.T) {
		t.Parallel()
		b := newBox(t)
		journal := b.path("journal")
		// USR1 would end the writer, which does not expect it.
		script := `trap 'exit 42' USR1; "$0" role:write "$1" child 10ms & while :; do wait; done`
		p := b.start("run", "job", "--leave-background", "--", "sh", "-c", script, direct("")[0], journal)
		writing(t, journal, []string{"child"})
		p.signal(syscall.SIGUSR1)
		if r := p.wait(); r.code != 42 {
			t.Errorf("%+v, want 42", r)
		}
		n := len(find(journalOf(journal), "W", "child"))
		eventually(t, "the child goes on", func() bool { return len(find(journalOf(journal), "W", "child")) > n+1 })
		b.killMarked()
	})
}

// noneButHoldlock fails the test if anything of the box runs at this very moment.
func (b *box) noneButHoldlock() {
	b.t.Helper()
	for pid, line := range b.marked() {
		b.t.Errorf("still running when holdlock had ended: %d %s", pid, line)
	}
}

func (b *box) killMarked() {
	b.t.Helper()
	eventually(b.t, "all are dead", func() bool {
		left := b.marked()
		for pid := range left {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return len(left) == 0
	})
}

// TestLeftovers lets a command end by itself and leave others behind.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	for _, manner := range []string{"willing", "stubborn"} {
		t.Run(manner, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			journal := b.path("journal")
			names, argv := family(journal, manner)
			names = names[:4]
			// All but the command itself stay; it ends when all have begun.
			argv[2] = strings.Replace(argv[2], "exec ", `while [ ! -e "`+b.path("enough")+`" ]; do sleep 0.01; done; exit 7; `, 1)
			p := b.start(append([]string{"run", "job", "--grace", "300ms", "--"}, argv...)...)
			writing(t, journal, names)
			next := b.start(append([]string{"run", "job", "--wait", "forever", "--"}, direct("note", journal, "next")...)...)
			next.waits()
			write(t, b.path("enough"), "")
			r := p.wait()
			if r.code != 7 {
				t.Errorf("%+v, want the command's own 7", r)
			}
			contains(t, "the message", r.err, "ended", "that the command had left running", "--leave-background")
			if r := next.wait(); r.code != 0 {
				t.Errorf("the next run: %+v", r)
			}
			list := journalOf(journal)
			if last := list[len(list)-1]; last.kind != "next" {
				t.Errorf("the next run began before the leftovers had ended: %v", last)
			}
			for _, n := range names {
				if got := len(find(list, "T", n)); manner == "willing" && got != 1 {
					t.Errorf("%s got TERM %d times, want once", n, got)
				}
			}
		})
	}
	t.Run("that end by themselves", func(t *testing.T) {
		t.Parallel()
		b := newBox(t)
		if r := b.run("run", "job", "--", "sh", "-c", "(sleep 0.02; echo late) & echo built"); r != (result{0, "built\nlate\n", ""}) {
			t.Errorf("%+v", r)
		}
	})
	t.Run("--leave-background", func(t *testing.T) {
		t.Parallel()
		b := newBox(t)
		journal := b.path("journal")
		names, argv := family(journal, "willing")
		names = names[:4]
		argv[2] = strings.Replace(argv[2], "exec ", `while [ ! -e "`+b.path("enough")+`" ]; do sleep 0.01; done; exit 7; `, 1)
		p := b.start(append([]string{"run", "job", "--leave-background", "--"}, argv...)...)
		writing(t, journal, names)
		write(t, b.path("enough"), "")
		if r := p.wait(); r.code != 7 || r.err != "" {
			t.Errorf("%+v, want 7 and no message", r)
		}
		ended := bootclock.Now()
		if r := b.run("run", "job", "--", "echo", "free"); r.out != "free\n" {
			t.Errorf("the lock: %+v", r)
		}
		eventually(t, "all go on", func() bool {
			list := journalOf(journal)
			return !slices.ContainsFunc(names, func(n string) bool {
				w := find(list, "W", n)
				return w[len(w)-1].at < ended+20*time.Millisecond
			})
		})
		if n := len(find(journalOf(journal), "T", "")); n > 0 {
			t.Errorf("%d of them got TERM", n)
		}
		b.killMarked()
	})
}
