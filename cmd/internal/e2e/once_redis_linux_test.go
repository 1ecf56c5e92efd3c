package e2e

import (
	"strings"
	"syscall"
	"testing"

	"github.com/holdlock/holdlock/internal/testenv"
)

// Jobs on Redis: skipped when they are done, suspended when their worker was killed, listed and settled; with the documented
// rights. Plain keys and quorums refuse before anything runs.
func TestOnceOnRedis(t *testing.T) {
	t.Parallel()
	for kind, start := range redisKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			b.onRedis(start(t))
			for range 2 {
				if r := b.run("run", "mail/16", "--once", "--", "sh", "-c", "echo 16 >>sixteen"); r.code != 0 {
					t.Fatalf("run --once: %+v", r)
				}
			}
			if got := read(b.path("sixteen")); got != "16\n" {
				t.Errorf("the effect of a job that was delivered twice: %q", got)
			}
			if v := b.job("mail/16"); v.State != "done" || v.Runs != 1 {
				t.Errorf("the job: %+v", v)
			}
			p := b.start("run", "mail/17", "--once", "--on-lapse", "hold", "--ttl", "2s", "--", "sh", "-c",
				"echo sent >>effect; : >here; while ! [ -e go ]; do sleep 0.02; done")
			eventually(t, "the command is at work", func() bool { return exists(b.path("here")) })
			if r := b.once(); r.code != 75 {
				t.Errorf("a duplicate while it runs: %+v, want 75", r)
			}
			p.signal(syscall.SIGSTOP)
			_ = syscall.Kill(guardOf(t, p.pid()), syscall.SIGKILL)
			_ = p.cmd.Process.Kill()
			eventually(t, "the run has lapsed", func() bool { return b.job("mail/17").State == "lapsed" })
			r := b.once("--on-lapse", "hold")
			contains(t, "the next delivery", r.err, "mail", "17", "suspended", "settle")
			if r.code != 77 || b.effects() != 1 {
				t.Errorf("the next delivery: %+v, effects %d", r, b.effects())
			}
			b.settles(true)
			if got := b.listed("--all"); len(got) != 2 || got[0].Key != "16" || got[1].SettledBy == "" {
				t.Errorf("jobs ls --all: %+v", got)
			}
		})
	}
	t.Run("plain keys", func(t *testing.T) {
		t.Parallel()
		b := newBox(t)
		b.onRedis("redis://" + testenv.StartRedis(t).Addr + "?plain_keys=true")
		r := b.once()
		contains(t, "the refusal", r.err, "plain keys", "keeps no records", "such as")
		if r.code == 0 || r.code == 75 || b.effects0() {
			t.Errorf("run --once: %+v", r)
		}
	})
}

// A server that is away when a job ends, and comes back while the lock stands, is told how it ended.
func TestOnceRecordedLate(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	r := testenv.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	b.onRedis("redis://" + r.Addr)
	p := b.start("run", "mail/17", "--once", "--on-lapse", "hold", "--", "sh", "-c", "echo sent >>effect; : >here; while ! [ -e go ]; do sleep 0.02; done")
	eventually(t, "the command is at work", func() bool { return exists(b.path("here")) })
	r.Kill()
	write(t, b.path("go"), "")
	eventually(t, "holdlock has not been answered", func() bool { return strings.Contains(p.stderr(), "told again") })
	r.Restart(t)
	if got := p.wait(); got.code != 0 || strings.Contains(got.err, "it will not run again") {
		t.Errorf("holdlock run: %+v, want 0", got)
	}
	if v := b.job("mail/17"); v.State != "done" || b.effects() != 1 {
		t.Errorf("the job: %+v, effects %d", v, b.effects())
	}
}

// A record that is removed or spoilt while the command runs will not come back: that is said at once, and the lock is free.
func TestOnceWithoutRecord(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	for what, tt := range map[string]struct {
		spoil []string
		want  string
		next  int
	}{
		"removed": {[]string{"DEL", "holdlock:{:mail/17}:j"}, "as if for the first time", 0},
		"spoilt":  {[]string{"SET", "holdlock:{:mail/17}:j", "garbage"}, "jobs inspect mail/17", 65},
	} {
		t.Run(what, func(t *testing.T) {
			b := newBox(t)
			b.onRedis("redis://" + r.Addr)
			p := b.start("run", "mail/17", "--once", "--on-lapse", "hold", "--ttl", "10m", "--", "sh", "-c", "echo sent >>effect; : >here; while ! [ -e go ]; do sleep 0.02; done")
			eventually(t, "the command is at work", func() bool { return exists(b.path("here")) })
			r.Do(t, tt.spoil...)
			write(t, b.path("go"), "")
			got := p.wait() // with the TTL it would be ten minutes
			contains(t, "the message", got.err, "mail", "17", "removed or changed", tt.want)
			if got.code != 0 || strings.Contains(got.err, "told again") {
				t.Errorf("%+v, want the command's 0", got)
			}
			if next := b.once(); next.code != tt.next {
				t.Errorf("the next delivery: %+v, want %d", next, tt.next)
			}
			r.Do(t, "DEL", "holdlock:{:mail/17}:j", "holdlock:{:mail/17}:d")
		})
	}
}

// effects0 says whether the command has run at all.
func (b *box) effects0() bool { return exists(b.path("effect")) }
