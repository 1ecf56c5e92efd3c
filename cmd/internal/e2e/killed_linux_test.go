package e2e

import (
	"strings"
	"syscall"
	"testing"

	"github.com/holdlock/holdlock/internal/testenv"
)

// TestHoldlockKilled kills holdlock alone. The TTL is so long that only a lock that was given back lets the next run begin.
func TestHoldlockKilled(t *testing.T) {
	t.Parallel()
	for _, manner := range []string{"willing", "stubborn"} {
		t.Run(manner, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			journal := b.path("journal")
			names, argv := family(journal, manner)
			p := b.start(append([]string{"run", "job", "--ttl", "1h", "--grace", "500ms", "--"}, argv...)...)
			writing(t, journal, names)
			if err := p.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			if r := b.run(append([]string{"run", "job", "--wait", "forever", "--"}, direct("note", journal, "next")...)...); r != (result{}) {
				t.Errorf("the next run: %+v", r)
			}
			list := journalOf(journal)
			if last := list[len(list)-1]; last.kind != "next" {
				t.Errorf("the next run began before the work had ended: %v", last)
			}
			for _, n := range names {
				if got := len(find(list, "T", n)); manner == "willing" && got != 1 {
					t.Errorf("%s got TERM %d times, want once", n, got)
				}
			}
		})
	}
	t.Run("with --min-hold", func(t *testing.T) {
		t.Parallel()
		b := newBox(t)
		p, _ := b.holder("job", "--ttl", "1h", "--min-hold", "2h")
		_ = p.cmd.Process.Kill()
		eventually(t, "the lock cools", func() bool { return strings.Contains(b.run("inspect", "job", "--json").out, `"cooling"`) })
	})
}

// TestBothKilled kills holdlock and its guard together: the lock is free after its TTL, and the successor says what that
// means.
func TestBothKilled(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	journal := b.path("journal")
	// The command itself dies with the guard; what it has started would not.
	p := b.start(append([]string{"run", "job", "--ttl", "3s", "--"}, direct("write", journal, "first", "10ms")...)...)
	writing(t, journal, []string{"first"})
	guard := guardOf(t, p.pid())
	testenv.Stop(t, p.pid()) // so that it cannot do the guard's work when that is dead
	_ = syscall.Kill(guard, syscall.SIGKILL)
	_ = p.cmd.Process.Kill()
	if r := b.run("run", "job", "--", "true"); r.code != 75 {
		t.Errorf("right afterwards: %+v, want 75", r)
	}
	r := b.run(append([]string{"run", "job", "--wait", "forever", "--"}, direct("note", journal, "next")...)...)
	if r.code != 0 {
		t.Errorf("the next run: %+v", r)
	}
	contains(t, "the next run", r.err, "job", "never gave it back (lapsed)", "may have overlapped")
	if strings.Count(r.err, "\n") != 1 {
		t.Errorf("not one line: %q", r.err)
	}
	list := journalOf(journal)
	if last := list[len(list)-1]; last.kind != "next" {
		t.Errorf("the first command was still at work: %v", last)
	}
}

// TestGuardKilled kills the guard alone: holdlock ends what it has left, and says so.
func TestGuardKilled(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	journal := b.path("journal")
	names, argv := family(journal, "stubborn")
	p := b.start(append([]string{"run", "job", "--ttl", "1h", "--"}, argv...)...)
	writing(t, journal, names)
	_ = syscall.Kill(guardOf(t, p.pid()), syscall.SIGKILL)
	r := p.wait()
	if r.code != 70 {
		t.Errorf("%+v, want 70", r)
	}
	contains(t, "the message", r.err, "job", "guard")
	b.noneButHoldlock()
	if r := b.run("run", "job", "--", "echo", "free"); r.out != "free\n" {
		t.Errorf("the lock: %+v", r)
	}
}
