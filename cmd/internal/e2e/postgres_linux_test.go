package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/holdlock/holdlock/internal/testenv"
)

// onPostgres makes a schema in a server and puts the store of a box there; url is how the command reaches the server.
func (b *box) onPostgres(p *testenv.Postgres, url, schema string) {
	b.t.Helper()
	b.onRedis(p.URL("schema=" + schema))
	if r := b.run("migrate"); r.code != 0 {
		b.t.Fatalf("migrate: %+v", r)
	}
	b.onRedis(url + "&schema=" + schema)
}

// TestPostgresOnce runs jobs once over PostgreSQL, directly and through a pooler in transaction mode: a duplicate is skipped, one
// whose twin runs is told so, and after kill -9 of holdlock and its guard the policy says what follows.
func TestPostgresOnce(t *testing.T) {
	t.Parallel()
	p := testenv.StartPostgres(t)
	pooler := testenv.StartPgbouncer(t, p, "transaction")
	for name, url := range map[string]string{"directly": p.URL(), "pooler": pooler.URL()} {
		for _, policy := range []string{"rerun", "hold"} {
			t.Run(fmt.Sprintf("%s/%s", name, policy), func(t *testing.T) {
				t.Parallel()
				b := newBox(t)
				b.onPostgres(p, url, name+policy)
				for range 2 {
					if r := b.run("run", "mail/16", "--once", "--", "sh", "-c", "echo done >>other"); r.code != 0 {
						t.Errorf("run: %+v", r)
					}
				}
				if n := strings.Count(read(b.path("other")), "done"); n != 1 {
					t.Errorf("a job that was delivered twice was run %d times", n)
				}
				first := b.start("run", "mail/17", "--once", "--on-lapse", policy, "--ttl", "2s", "--", "sh", "-c",
					"echo sent >>effect; : >here; while ! [ -e go ]; do sleep 0.02; done")
				eventually(t, "the command is at work", func() bool { return exists(b.path("here")) })
				if r := b.once(); r.code != 75 {
					t.Errorf("a duplicate while it runs: %+v, want 75", r)
				}
				first.signal(syscall.SIGSTOP) // so that it cannot do the guard's work
				_ = syscall.Kill(guardOf(t, first.pid()), syscall.SIGKILL)
				_ = first.cmd.Process.Kill()
				eventually(t, "the run has lapsed", func() bool { return b.job("mail/17").State == "lapsed" })
				r := b.once("--on-lapse", policy)
				if policy == "rerun" {
					contains(t, "the next delivery", r.err, "mail/17 runs again", "may be done twice")
					if r.code != 0 || b.effects() != 2 {
						t.Errorf("the next delivery: %+v, effects %d", r, b.effects())
					}
					return
				}
				contains(t, "the next delivery", r.err, "suspended", "settle")
				if r.code != 77 || b.effects() != 1 {
					t.Errorf("the next delivery: %+v, effects %d", r, b.effects())
				}
				b.settles(true)
			})
		}
	}
	t.Run("a record of a newer release", func(t *testing.T) {
		t.Parallel()
		b := newBox(t)
		b.onPostgres(p, p.URL(), "newer")
		b.unreadableJobs(func() { p.Do(t, `UPDATE newer.job SET layout = 2 WHERE key = 'dj/2'`) }, "dj/2")
	})
	t.Run("sessions", func(t *testing.T) {
		t.Parallel()
		b := newBox(t)
		b.onPostgres(p, strings.Replace(p.URL(), "postgres:", "postgres+advisory:", 1), "sessions")
		r := b.once()
		contains(t, "a job on session locks", r.err, "keeps no records of jobs")
		if r.code == 0 || b.effects() != 0 {
			t.Errorf("a job on session locks: %+v, effects %d", r, b.effects())
		}
	})
}
