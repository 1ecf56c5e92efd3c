package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/holdlock/holdlock/internal/testenv"
)

// A jobView is what jobs inspect and jobs ls print with --json.
type jobView struct {
	Lock, Key, State, Token, Why, Error string
	Runs, Lapses                        int
	SettledBy                           string `json:"settled_by"`
}

// job asks for a job.
func (b *box) job(name string) (v jobView) {
	b.t.Helper()
	r := b.run("jobs", "inspect", name, "--json")
	if err := json.Unmarshal([]byte(r.out), &v); err != nil || r.code != 0 {
		b.t.Fatalf("jobs inspect: %+v (%v)", r, err)
	}
	return v
}

func (b *box) jobToken(name string) string {
	b.t.Helper()
	v := b.job(name)
	if v.Token == "" {
		b.t.Fatalf("there is no job %s", name)
	}
	return v.Token
}

// listed returns what jobs ls lists.
func (b *box) listed(flags ...string) (jobs []jobView) {
	b.t.Helper()
	r := b.run(append([]string{"jobs", "ls", "--json"}, flags...)...)
	for line := range strings.Lines(r.out) {
		var v jobView
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			b.t.Fatalf("jobs ls: %+v (%v)", r, err)
		}
		jobs = append(jobs, v)
	}
	return jobs
}

// unreadableJobs makes three jobs that wait for an operator, of which spoil makes dj/2 unreadable: the others are listed, it is named,
// and nobody is told that no job waits.
func (b *box) unreadableJobs(spoil func(), named string) {
	t := b.t
	t.Helper()
	for _, job := range []string{"dj/1", "dj/2", "dj/3"} {
		if r := b.run("run", job, "--once", "--on-error", "hold", "--", "false"); r.code != 1 {
			t.Fatalf("run: %+v, want 1", r)
		}
	}
	if r := b.run("jobs", "ls"); r.code != 0 || strings.Count(r.out, "suspended") != 3 {
		t.Fatalf("jobs ls: %+v, want three jobs", r)
	}
	spoil()
	for _, flags := range [][]string{nil, {"--all"}, {"dj/2"}} {
		r := b.run(append([]string{"jobs", "ls"}, flags...)...)
		contains(t, "jobs ls", r.err, named, "the list is incomplete")
		rows := 2
		if len(flags) == 1 && flags[0] == "dj/2" {
			rows = 0
		}
		if r.code != 65 || strings.Count(r.out, "suspended") != rows || strings.Contains(r.err, "no job waits") ||
			strings.Contains(r.err, "there is no record") || strings.Contains(r.err, "unreachable") {
			t.Errorf("jobs ls %v: %+v, want %d jobs and 65", flags, r, rows)
		}
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// once runs a job whose command has its effect at once.
func (b *box) once(flags ...string) result {
	b.t.Helper()
	return b.run(append(append([]string{"run", "mail/17", "--once"}, flags...), "--", "sh", "-c", "echo sent >>effect")...)
}

func (b *box) effects() int { return strings.Count(read(b.path("effect")), "sent") }

// A job that is delivered again is skipped with 0, and says why; the first run has an idempotency key that stays the same.
func TestRunOnce(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	show := []string{"run", "mail/17", "--once", "--", "sh", "-c", "echo $HOLDLOCK_IDEMPOTENCY_KEY $HOLDLOCK_RUN; exit $CODE"}
	for i, code := range []string{"3", "0", "0"} {
		cmd := b.command(show...)
		setenv(cmd, "CODE="+code)
		r := b.launch(cmd).wait()
		want := result{3, fmt.Sprintf("ddae3870ef35c55f4d41ceda0f99aa98 %d\n", i+1), ""}
		switch i {
		case 1:
			want.code = 0
		case 2:
			want = result{0, "", r.err}
			contains(t, "the skip", r.err, "skipped", "mail", "17", "done at", "sqlite:"+b.db)
			if strings.Count(r.err, "\n") != 1 {
				t.Errorf("not one line: %q", r.err)
			}
		}
		if r != want {
			t.Errorf("delivery %d: %+v, want %+v", i+1, r, want)
		}
	}
	if r := b.run("run", "mail/17", "--once", "--quiet", "--", "false"); r != (result{}) {
		t.Errorf("--quiet: %+v", r)
	}
	if v := b.job("mail/17"); v.State != "done" || v.Runs != 2 || v.Lapses != 0 {
		t.Errorf("the job: %+v", v)
	}
	if got := b.listed(); len(got) != 0 {
		t.Errorf("jobs ls lists what needs nobody: %+v", got)
	}
	if got := b.listed("--all"); len(got) != 1 {
		t.Errorf("jobs ls --all: %+v", got)
	}
	if r := b.run("run", "mail/17", "--", "echo", "locks are another matter"); r.code != 0 || r.out == "" {
		t.Errorf("without --once: %+v", r)
	}
}

// Many deliveries at once: one runs, and all others are told that it runs, or is done.
func TestOnceTogether(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	codes := make([]int, 8)
	var all sync.WaitGroup
	for i := range codes {
		all.Go(func() { codes[i] = b.once("--wait", "forever").code })
	}
	all.Wait()
	for _, code := range codes {
		if code != 0 {
			t.Errorf("the codes are %v, want only 0", codes)
			break
		}
	}
	if n := b.effects(); n != 1 {
		t.Errorf("the effect is there %d times", n)
	}
	// The control: a lock alone lets each of them run, one after the other.
	for range 2 {
		b.run("run", "mail/17", "--wait", "forever", "--", "sh", "-c", "echo sent >>effect")
	}
	if n := b.effects(); n != 3 {
		t.Errorf("without --once the effect is there %d times, want 3", n)
	}
}

// The worker is killed at each step. What is then known, and what the next delivery does, is said by the policy.
func TestOnceKilled(t *testing.T) {
	t.Parallel()
	steps := map[string]struct {
		script string
		before int // effects when it is killed
	}{
		"before the effect":                {": >here; while ! [ -e go ]; do sleep 0.02; done; echo sent >>effect", 0},
		"after the effect, not yet at end": {"echo sent >>effect; : >here; while ! [ -e go ]; do sleep 0.02; done", 1},
	}
	for step, at := range steps {
		for _, both := range []bool{false, true} {
			for _, policy := range []string{"rerun", "hold"} {
				t.Run(fmt.Sprintf("%s/guard too %v/%s", step, both, policy), func(t *testing.T) {
					t.Parallel()
					b := newBox(t)
					p := b.start("run", "mail/17", "--once", "--on-lapse", policy, "--ttl", "2s", "--", "sh", "-c", at.script)
					eventually(t, "the command is at that step", func() bool { return exists(b.path("here")) })
					if r := b.once(); r.code != 75 {
						t.Errorf("a duplicate while it runs: %+v, want 75", r)
					}
					if both {
						testenv.Stop(t, p.pid()) // so that it cannot do the guard's work
						_ = syscall.Kill(guardOf(t, p.pid()), syscall.SIGKILL)
					}
					_ = p.cmd.Process.Kill()
					eventually(t, "the run has lapsed", func() bool { return b.job("mail/17").State == "lapsed" })
					if n := b.effects(); n != at.before {
						t.Fatalf("the effect is there %d times, want %d", n, at.before)
					}
					if got := b.listed(); len(got) != 1 || got[0].State != "lapsed" {
						t.Errorf("jobs ls: %+v", got)
					}
					r := b.once("--on-lapse", policy)
					if policy == "rerun" {
						contains(t, "the next delivery", r.err, "mail/17 runs again", "2nd time", "may be done twice")
						if r.code != 0 || b.effects() != at.before+1 {
							t.Errorf("the next delivery: %+v, effects %d", r, b.effects())
						}
						return
					}
					contains(t, "the next delivery", r.err, "mail", "17", "suspended", "settle")
					if r.code != 77 || b.effects() != at.before {
						t.Errorf("the next delivery: %+v, effects %d", r, b.effects())
					}
					b.settles(at.before == 1)
				})
			}
		}
	}
	t.Run("after the record", func(t *testing.T) {
		t.Parallel()
		b := newBox(t)
		b.run("run", "other", "--", "true") // makes the file: whoever looks at a job makes none
		// Whoever started it never hears of its end, and delivers again.
		p := b.start("run", "mail/17", "--once", "--on-lapse", "hold", "--", "sh", "-c", "echo sent >>effect")
		eventually(t, "the job is done", func() bool { return b.job("mail/17").State == "done" })
		_ = p.cmd.Process.Kill()
		if r := b.once(); r.code != 0 || b.effects() != 1 {
			t.Errorf("the next delivery: %+v, effects %d", r, b.effects())
		}
	})
}

// settles looks at a suspended job as an operator does, and decides: it was done, or it is to run again.
func (b *box) settles(done bool) {
	t := b.t
	t.Helper()
	if got := b.listed(); len(got) != 1 || got[0].State != "suspended" || got[0].Key != "17" || got[0].Why == "" {
		t.Errorf("jobs ls: %+v", got)
	}
	dry := b.run("jobs", "settle", "mail/17")
	token := b.jobToken("mail/17")
	contains(t, "the dry run", dry.out, "suspended", token)
	contains(t, "the dry run", dry.err, "nothing was changed", "--token "+token)
	if r := b.run("jobs", "settle", "mail/17", "--token", token+"0", "--reason", "x", "--done"); r.code != 75 {
		t.Errorf("settle by another token: %+v", r)
	}
	decision, effects := "--run-again", b.effects()+1
	if done {
		decision, effects = "--done", b.effects()
	}
	if r := b.run("jobs", "settle", "mail/17", "--token", token, "--reason", "looked at the mail server", decision); r.code != 0 {
		t.Fatalf("settle: %+v", r)
	}
	if v := b.job("mail/17"); !strings.Contains(v.SettledBy, "tester@") || !strings.Contains(v.SettledBy, "looked at the mail server") {
		t.Errorf("who settled it, and why: %+v", v)
	}
	if r := b.once("--on-lapse", "hold"); r.code != 0 || b.effects() != effects {
		t.Errorf("after %s: %+v, effects %d, want %d", decision, r, b.effects(), effects)
	}
	if got := b.listed(); len(got) != 0 {
		t.Errorf("jobs ls afterwards: %+v", got)
	}
}

// While the command still runs its lock is broken and its job settled: it says what was decided, and not what would follow
// otherwise. The decision stands unless it is overruled.
func TestOnceSettledMeanwhile(t *testing.T) {
	t.Parallel()
	for decision, want := range map[string]string{"--done": "it was marked done meanwhile, by tester@", "--run-again": "runs it again, as tester@"} {
		t.Run(decision, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			p := b.start("run", "mail/17", "--once", "--ttl", "9s", "--", "sh", "-c", ": >here; exec sleep 600")
			eventually(t, "the command runs", func() bool { return exists(b.path("here")) })
			if r := b.run("break", "mail/17", "--token", b.token("mail/17"), "--reason", "test", "--now"); r.code != 0 {
				t.Fatalf("break: %+v", r)
			}
			token := b.jobToken("mail/17")
			if r := b.run("jobs", "settle", "mail/17", "--token", token, "--reason", "seen", decision); r.code != 0 {
				t.Fatalf("settle: %+v", r)
			}
			r := p.wait()
			contains(t, "the message", r.err, want)
			if r.code != 70 || strings.Contains(r.err, "the next delivery runs it again\n") {
				t.Errorf("%+v, want 70", r)
			}
			for _, other := range []string{"--done", "--run-again"} {
				again := []string{"jobs", "settle", "mail/17", "--token", token, "--reason", "no", other}
				if r := b.run(again...); r.code != 75 || !strings.Contains(r.err, "--again overrules that") || !strings.Contains(r.err, "seen") {
					t.Errorf("settle once more, %s: %+v, want 75", other, r)
				}
			}
			if r := b.run("jobs", "settle", "mail/17", "--token", token, "--reason", "no", "--done", "--again"); r.code != 0 || b.job("mail/17").State != "done" {
				t.Errorf("settle --again: %+v", r)
			}
		})
	}
}

// A command that is asked to stop and ends has stopped. That does not say whether its work is done, whatever its code.
func TestOnceAskedToStop(t *testing.T) {
	t.Parallel()
	const script = `trap 'echo stopped; exit 0' TERM INT HUP QUIT
		trap ': >nudged' USR1; : >here; while ! [ -e go ]; do sleep 0.02; done; echo sent >>effect`
	for _, policy := range []string{"rerun", "hold"} {
		for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
			t.Run(fmt.Sprintf("%s/%v", policy, sig), func(t *testing.T) {
				t.Parallel()
				b := newBox(t)
				p := b.start("run", "mail/17", "--once", "--on-lapse", policy, "--", "sh", "-c", script)
				eventually(t, "the command is at work", func() bool { return exists(b.path("here")) })
				p.signal(sig)
				r := p.wait()
				contains(t, "the message", r.err, "mail/17", "not recorded as done", "asked to stop", sig.String())
				if r.code != 128+int(sig) || r.out != "stopped\n" || b.effects0() {
					t.Errorf("%+v, want %d, since 0 says that the job is done, and no effect", r, 128+int(sig))
				}
				if v := b.job("mail/17"); v.State != "lapsed" {
					t.Errorf("the job: %+v, want it unfinished", v)
				}
				r = b.once("--on-lapse", policy)
				if policy == "hold" {
					if r.code != 77 || b.effects0() {
						t.Errorf("the next delivery: %+v, want 77", r)
					}
					b.settles(false)
					return
				}
				contains(t, "the next delivery", r.err, "mail/17 runs again", "2nd time")
				if r.code != 0 || b.effects() != 1 {
					t.Errorf("the next delivery: %+v, effects %d", r, b.effects())
				}
			})
		}
	}
	// The control: another signal asks for no end.
	t.Run("another signal", func(t *testing.T) {
		t.Parallel()
		b := newBox(t)
		p := b.start("run", "mail/17", "--once", "--on-lapse", "hold", "--", "sh", "-c", script)
		eventually(t, "the command is at work", func() bool { return exists(b.path("here")) })
		p.signal(syscall.SIGUSR1)
		eventually(t, "the command has got the signal", func() bool { return exists(b.path("nudged")) })
		write(t, b.path("go"), "")
		if r := p.wait(); r != (result{}) || b.effects() != 1 || b.job("mail/17").State != "done" {
			t.Errorf("%+v, effects %d, job %+v; want it done", r, b.effects(), b.job("mail/17"))
		}
	})
	// Codes by which commands say that they were asked to stop say no more than 0 does, unless it is said what is to follow an error.
	for _, c := range []struct {
		flags string
		state string
		next  int // the exit code of the next delivery
	}{
		{"--on-lapse hold", "lapsed", 77},
		{"--on-lapse rerun", "lapsed", 0},
		{"", "lapsed", 0},
		{"--on-lapse hold --on-error rerun", "open", 0},
		{"--on-error hold", "suspended", 77},
	} {
		for _, code := range []int{143, 1} {
			t.Run(fmt.Sprintf("code %d %s", code, c.flags), func(t *testing.T) {
				t.Parallel()
				b := newBox(t)
				flags := strings.Fields(c.flags)
				args := append([]string{"run", "mail/17", "--once"}, flags...)
				p := b.start(append(args, "--", "sh", "-c", strings.Replace(script, "exit 0", fmt.Sprint("exit ", code), 1))...)
				eventually(t, "the command is at work", func() bool { return exists(b.path("here")) })
				p.signal(syscall.SIGTERM)
				r := p.wait()
				if v := b.job("mail/17"); r.code != code || v.State != c.state || b.effects0() {
					t.Errorf("%+v, job %+v; want %d and %s", r, v, code, c.state)
				}
				if c.state == "lapsed" {
					contains(t, "the message", r.err, "mail/17 is left unfinished", fmt.Sprint("code ", code), "asked to stop", "terminated")
				}
				if r := b.once(flags...); r.code != c.next || b.effects0() != (c.next == 0) {
					t.Errorf("the next delivery: %+v, want %d", r, c.next)
				}
			})
		}
	}
	t.Run("an error that nobody has asked for", func(t *testing.T) {
		t.Parallel()
		b := newBox(t)
		if r := b.run("run", "mail/17", "--once", "--on-lapse", "hold", "--", "sh", "-c", "exit 3"); r.code != 3 || b.job("mail/17").State != "open" {
			t.Errorf("%+v, job %+v; want 3, and a job that has failed", r, b.job("mail/17"))
		}
	})
}

// A command that had ended before its lock was lost was not stopped.
func TestOnceEndedBeforeTheLoss(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	p := b.start("run", "mail/17", "--once", "--ttl", "15s", "--", "sh", "-c", ": >here; while ! [ -e go ]; do sleep 0.02; done; echo sent >>effect; : >end")
	eventually(t, "the command is at work", func() bool { return exists(b.path("here")) })
	testenv.Stop(t, p.pid())
	write(t, b.path("go"), "")
	eventually(t, "the command is at its end", func() bool { return exists(b.path("end")) })
	eventually(t, "the run has lapsed", func() bool { return b.job("mail/17").State == "lapsed" })
	p.signal(syscall.SIGCONT)
	r := p.wait()
	contains(t, "the message", r.err, "mail/17 was lost", "the command had ended by itself, with code 0")
	if r.code != 70 || strings.Contains(r.err, "was stopped") {
		t.Errorf("%+v, want 70", r)
	}
}

// A run that is let run again still has its input. One that was begun with the wrong one is forgotten on purpose.
func TestOnceOtherInputSettled(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	if r := b.run("run", "mail/17", "--once", "--input", "wrong", "--on-error", "hold", "--", "false"); r.code != 1 {
		t.Fatalf("run: %+v", r)
	}
	settle := []string{"jobs", "settle", "mail/17", "--token", b.jobToken("mail/17"), "--reason", "the wrong input"}
	if r := b.run(append(settle, "--run-again")...); r.code != 0 {
		t.Fatalf("settle: %+v", r)
	}
	if r := b.once("--input", "right"); r.code != 65 || exists(b.path("effect")) {
		t.Errorf("after --run-again: %+v, want 65", r)
	}
	if r := b.run(append(settle, "--done", "--keep", "1s", "--again")...); r.code != 0 {
		t.Fatalf("settle: %+v", r)
	}
	eventually(t, "it is forgotten", func() bool { return b.job("mail/17").State == "unknown" })
	if r := b.once("--input", "right"); r.code != 0 || b.effects() != 1 {
		t.Errorf("after --done --keep 1s: %+v, want it to run", r)
	}
}

// A lock that is lost leaves the job unfinished, whatever the command says when it is ended.
func TestOnceLost(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	p := b.start("run", "mail/17", "--once", "--on-lapse", "hold", "--ttl", "3s", "--", "sh", "-c",
		"trap 'exit 0' TERM; : >here; while :; do sleep 0.02; done")
	eventually(t, "the command runs", func() bool { return exists(b.path("here")) })
	if r := b.run("break", "mail/17", "--token", b.token("mail/17"), "--reason", "test"); r.code != 0 {
		t.Fatalf("break: %+v", r)
	}
	r := p.wait()
	if r.code != 70 {
		t.Errorf("%+v, want 70", r)
	}
	contains(t, "the message", r.err, "mail/17", "unfinished", "broke it")
	if r := b.once(); r.code != 77 {
		t.Errorf("the next delivery: %+v, want 77", r)
	}
}
