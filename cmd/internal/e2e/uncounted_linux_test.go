package e2e

import (
	"strings"
	"testing"
)

// Counts that can neither be sent nor kept cost no run, and are not lost without a word.
func TestUncounted(t *testing.T) {
	t.Parallel()
	for name, ledger := range map[string]string{"no such directory": "sqlite:/no/such/directory/locks.db", "nobody listens": "redis://127.0.0.1:1"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			for _, spool := range []string{"/proc/nothing", b.path("spool")} {
				kept := spool == b.path("spool")
				r := b.run("run", "job", "--ledger", ledger, "--spool", spool, "--", "echo", "ran")
				if r.code != 0 || r.out != "ran\n" {
					t.Errorf("spool %s: %+v", spool, r)
				}
				if kept && r.err != "" {
					t.Errorf("what is kept is told: %q", r.err)
				}
				if !kept && (strings.Count(r.err, "\n") != 1 || !strings.Contains(r.err, "not counted") || !strings.Contains(r.err, "/proc/nothing")) {
					t.Errorf("what is lost is told as %q", r.err)
				}
			}
		})
	}
}
