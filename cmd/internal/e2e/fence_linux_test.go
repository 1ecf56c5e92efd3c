package e2e

import (
	"strings"
	"syscall"
	"testing"

	"github.com/holdlock/holdlock/internal/testenv"
)

// TestFence freezes a holder with its guard, right before its write, until a successor has written, and wakes the writer
// first. No lock that expires can prevent that write; the resource can refuse it.
func TestFence(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		manner string
		lost   bool
	}{{"compared", false}, {"blind", true}} {
		t.Run(c.manner, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			journal, resource := b.path("journal"), b.path("resource")
			put := func(name, gate string) []string { return direct("put", journal, resource, name, gate, c.manner) }
			stale := b.start(append([]string{"run", "job", "--ttl", "2s", "--"}, put("stale", b.path("gate"))...)...)
			eventually(t, "it is about to write", func() bool { return len(find(journalOf(journal), "ready", "stale")) == 1 })

			guard := guardOf(t, stale.pid())
			writer := children(guard)
			if len(writer) != 1 {
				t.Fatalf("the guard has the children %v", writer)
			}
			frozen := []int{stale.pid(), guard, writer[0]}
			testenv.Stop(t, frozen...) // all of it before the gate opens: it must not stop with the resource locked
			write(t, b.path("gate"), "")
			if r := b.run(append([]string{"run", "job", "--wait", "forever", "--"}, put("new", b.path("gate"))...)...); r.code != 0 {
				t.Fatalf("the successor: %+v", r)
			}
			if got := read(resource); !strings.HasSuffix(got, " new") {
				t.Fatalf("the resource holds %q", got)
			}
			_ = syscall.Kill(writer[0], syscall.SIGCONT)
			eventually(t, "the stale one has tried", func() bool {
				return len(find(journalOf(journal), "put", "stale"))+len(find(journalOf(journal), "refused", "stale")) == 1
			})
			if lost := !strings.HasSuffix(read(resource), " new"); lost != c.lost {
				t.Errorf("the resource holds %q; newer write lost: %v, want %v", read(resource), lost, c.lost)
			}
			for _, pid := range frozen[:2] {
				_ = syscall.Kill(pid, syscall.SIGCONT)
			}
			if r := stale.wait(); r.code != 70 {
				t.Errorf("the stale holdlock: %+v, want 70", r)
			}
		})
	}
}
