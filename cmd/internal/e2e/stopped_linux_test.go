package e2e

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdlock/holdlock/internal/bootclock"
	"github.com/holdlock/holdlock/internal/testenv"
)

// overlaps says how many acts of first are in the journal after the first act of second.
func overlaps(list []entry, first, second string) (n int) {
	var began time.Duration
	for _, e := range list {
		switch {
		case e.name == second && began == 0:
			began = e.at
		case e.name == first && began != 0:
			n++ // by the order of the lines
		}
	}
	for _, e := range find(list, "", first) {
		if began != 0 && e.at > began {
			n++ // by the clock
		}
	}
	return n
}

// TestStopped stops holdlock alone, past its TTL, while its command goes on.
func TestStopped(t *testing.T) {
	t.Parallel()
	for _, manner := range []string{"willing", "stubborn"} {
		t.Run(manner, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			journal := b.path("journal")
			first := b.start(append([]string{"run", "job", "--ttl", "2s", "--"}, role("write", journal, "first", "20ms", manner)...)...)
			eventually(t, "the first command writes", func() bool { return len(find(journalOf(journal), "W", "first")) > 3 })
			second := b.start(append([]string{"run", "job", "--ttl", "2s", "--wait", "forever", "--"}, role("write", journal, "second", "20ms")...)...)
			second.waits()

			testenv.Stop(t, first.pid())
			stopped := bootclock.Now()
			eventually(t, "the second command writes", func() bool { return len(find(journalOf(journal), "W", "second")) > 10 })
			list := journalOf(journal)
			if n := overlaps(list, "first", "second"); n > 0 {
				t.Errorf("%d acts of the first command after the first act of the second", n)
			}
			wrote := 0
			for _, e := range find(list, "W", "first") {
				if e.at > stopped {
					wrote++
				}
			}
			if wrote == 0 {
				t.Error("the first command wrote nothing after holdlock was stopped: nothing was tested")
			}
			if terms := len(find(list, "T", "first")); manner == "willing" && terms != 1 {
				t.Errorf("the first command got TERM %d times, want once", terms)
			}

			first.signal(syscall.SIGCONT)
			r := first.wait()
			if r.code != 70 {
				t.Errorf("the first holdlock: %+v, want 70", r)
			}
			contains(t, "the message", r.err, "job", "lost", "the command was stopped")
			if strings.Count(r.err, "\n") != 1 {
				t.Errorf("not one line: %q", r.err)
			}
			second.signal(syscall.SIGTERM)
			if r := second.wait(); r.code != 128+int(syscall.SIGTERM) {
				t.Errorf("the second holdlock: %+v", r)
			}
			contains(t, "the second run", second.stderr(), "never gave it back (lapsed)")
		})
	}
}

// TestStoppedWithoutGuard is the negative control: without a guard the same commands overlap.
func TestStoppedWithoutGuard(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	journal := b.path("journal")
	naive := func(name string) *proc {
		argv := direct("naive", append([]string{b.db, "job", "1s"}, direct("write", journal, name, "20ms")...)...)
		return b.launch(b.program(argv[0], argv[1:]...))
	}
	first := naive("first")
	eventually(t, "the first command writes", func() bool { return len(find(journalOf(journal), "W", "first")) > 3 })
	second := naive("second")
	testenv.Stop(t, first.pid())
	eventually(t, "the second command writes", func() bool { return len(find(journalOf(journal), "W", "second")) > 10 })
	if n := overlaps(journalOf(journal), "first", "second"); n == 0 {
		t.Error("no overlap: the test would not notice a guard that does nothing")
	}
	first.signal(syscall.SIGCONT)
	eventually(t, "the first ends", first.ended)
	second.cmd.Process.Kill()
	second.wait()
	for pid := range b.marked() {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// TestCheckNeed asks `holdlock check` again and again inside a command whose holdlock is stopped.
func TestCheckNeed(t *testing.T) {
	t.Parallel()
	const need = 2 * time.Second // on a busy machine a question can take some tenths of a second
	b := newBox(t)
	journal := b.path("journal")
	// Each line: the time before the question, and the answer.
	script := `trap 'note T' TERM
note() { "$NOTE" role:note "$JOURNAL" "$1"; }
note begin
while :; do
	note asks
	if "$HOLDLOCK" check --need 2s 2>>"$JOURNAL.err"; then note yes; else note "no-$?"; break; fi
done
while :; do sleep 0.01; done`
	cmd := b.command("run", "job", "--ttl", "6s", "--", "sh", "-c", script)
	setenv(cmd, "NOTE="+direct("")[0], "JOURNAL="+journal, "HOLDLOCK="+holdlockPath)
	first := b.launch(cmd)
	eventually(t, "check says yes", func() bool { return len(find(journalOf(journal), "yes", "")) > 3 })
	second := b.start(append([]string{"run", "job", "--wait", "forever", "--"}, role("write", journal, "second", "20ms")...)...)
	second.waits()
	testenv.Stop(t, first.pid())
	eventually(t, "the second command writes", func() bool { return len(find(journalOf(journal), "W", "second")) > 0 })

	list := journalOf(journal)
	began := find(list, "W", "second")[0].at
	term, no := find(list, "T", ""), find(list, "no-70", "")
	if len(term) == 0 || len(no) == 0 {
		t.Fatalf("no TERM or no refusal with 70: %v", list)
	}
	if no[0].at > term[0].at {
		t.Errorf("refused %v after TERM: too late to be of use", no[0].at-term[0].at)
	}
	yes := 0
	for i, e := range list {
		if e.kind != "yes" {
			continue
		}
		yes++
		asked := list[i-1].at // the answer is about a moment after this
		if list[i-1].kind != "asks" {
			continue // T came between
		}
		if end := asked + need; end > term[0].at || end > began {
			t.Errorf("%v were promised %v before TERM and %v before the second command", need, term[0].at-asked, began-asked)
		}
	}
	t.Logf("%d times yes; no %v before TERM and %v before the second command", yes, term[0].at-no[0].at, began-no[0].at)
	contains(t, "the refusal", read(journal+".err"), "job", "2s needed", "stop here")
	first.signal(syscall.SIGCONT)
	if r := first.wait(); r.code != 70 {
		t.Errorf("the first holdlock: %+v, want 70", r)
	}
	second.signal(syscall.SIGTERM)
	second.wait()
}
