package e2e

import (
	"strings"
	"testing"

	"github.com/holdlock/holdlock/internal/testenv"
)

// TestGivenBackLater: a lock whose release fails at first is given back before the command ends, and then nobody is told that it stays
// taken. Whoever cannot give it back says so.
func TestGivenBackLater(t *testing.T) {
	t.Parallel()
	const says = "could not be given back and stays taken"
	for name, away := range map[string]bool{"connections ended": false, "server away": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := testenv.StartPostgres(t)
			b := newBox(t)
			b.onPostgres(p, p.URL(), "later")
			run := b.start("run", "job", "--ttl", "1m", "--", "sh", "-c", ": >here; while ! [ -e go ]; do sleep 0.02; done")
			eventually(t, "the command is at work", func() bool { return exists(b.path("here")) })
			if away {
				p.Kill()
			} else {
				p.Do(t, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'holdlock%' AND pid <> pg_backend_pid()")
			}
			write(t, b.path("go"), "")
			out := run.wait()
			if out.code != 0 || strings.Contains(out.err, says) != away {
				t.Errorf("%+v, want 0, and that it is told: %v", out, away)
			}
			if away {
				return
			}
			if next := b.run("run", "job", "--", "echo", "ran"); next.out != "ran\n" {
				t.Errorf("the next run: %+v", next)
			}
		})
	}
}
