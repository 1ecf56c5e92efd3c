package e2e

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/holdlock/holdlock/internal/testenv"
)

// onRedis puts the store of a box into Redis.
func (b *box) onRedis(url string) {
	b.env = slices.DeleteFunc(b.env, func(v string) bool { return strings.HasPrefix(v, "HOLDLOCK_STORE=") })
	b.env = append(b.env, "HOLDLOCK_STORE="+url)
}

// documentedRights are those that the page on Redis gives to a user.
func documentedRights(t *testing.T) []string {
	t.Helper()
	doc, err := os.ReadFile("../../../docs/stores/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	_, line, ok := strings.Cut(string(doc), "ACL SETUSER locks on >PASSWORD ")
	line, _, _ = strings.Cut(line, "\n")
	if !ok {
		t.Fatal("docs/stores/redis.md names no rights")
	}
	return strings.Fields(line)
}

// redisKinds start Redis in every kind and return the address of the store. The one that has users lets holdlock do what the
// documentation asks for, and nothing else.
var redisKinds = map[string]func(t *testing.T) string{
	"standalone": func(t *testing.T) string {
		r := testenv.StartRedis(t)
		r.Do(t, append([]string{"ACL", "SETUSER", "locks", "on", ">pass@/word"}, documentedRights(t)...)...)
		t.Cleanup(func() {
			if log := r.Do(t, "ACL", "LOG"); log != "" {
				t.Errorf("the server has refused something: %s", log)
			}
		})
		return "redis://locks:pass@/word@" + r.Addr
	},
	"sentinel": func(t *testing.T) string {
		s := testenv.StartSentinel(t)
		return "redis+sentinel://" + strings.Join(s.Addrs(), ",") + "/" + s.Primary
	},
	"cluster": func(t *testing.T) string {
		return "redis+cluster://" + strings.Join(testenv.Addrs(testenv.StartCluster(t)), ",")
	},
}

// TestRedis runs commands under locks in Redis of every kind: one after the other, skipped while another runs, and taken over
// from a holdlock that was stopped, when its command has ended.
func TestRedis(t *testing.T) {
	t.Parallel()
	for kind, start := range redisKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			b.onRedis(start(t))
			if r := b.run("run", "job", "--", "true"); r.code != 0 {
				t.Fatalf("run: %+v", r)
			}
			journal := b.path("journal")
			first := b.start(append([]string{"run", "job", "--ttl", "3s", "--"}, role("write", journal, "first", "20ms", "willing")...)...)
			eventually(t, "the first command writes", func() bool { return len(find(journalOf(journal), "W", "first")) > 3 })
			if r := b.run("run", "job", "--", "true"); r.code != 75 {
				t.Errorf("run beside it: %+v, want 75", r)
			}
			if r := b.run("ls"); r.code != 0 || !strings.Contains(r.out, "job") {
				t.Errorf("ls: %+v", r)
			}
			second := b.start(append([]string{"run", "job", "--ttl", "3s", "--wait", "forever", "--"}, role("write", journal, "second", "20ms")...)...)
			testenv.Stop(t, first.pid())
			eventually(t, "the second command writes", func() bool { return len(find(journalOf(journal), "W", "second")) > 3 })
			if n := overlaps(journalOf(journal), "first", "second"); n > 0 {
				t.Errorf("%d acts of the first command after the first act of the second", n)
			}
			first.signal(syscall.SIGCONT)
			if r := first.wait(); r.code != 70 {
				t.Errorf("the first holdlock: %+v, want 70", r)
			}
			second.signal(syscall.SIGTERM)
			second.wait()
			if r := b.run("ls"); r.code != 0 || strings.Contains(r.out, "job") {
				t.Errorf("ls at the end: %+v", r)
			}
		})
	}
}

// TestDamagedKeys: what another program has written where a lock should be is named, hides nothing, and is not waited for.
func TestDamagedKeys(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	b := newBox(t)
	b.onRedis("redis://" + r.Addr)
	held := b.start(append([]string{"run", "good", "--"}, role("write", b.path("journal"), "first", "20ms")...)...)
	eventually(t, "the command writes", func() bool { return len(find(journalOf(b.path("journal")), "W", "first")) > 0 })
	r.Do(t, "RPUSH", "holdlock:{:bad}", "a list")
	r.Do(t, "SET", "holdlock:{:worse}", "garbage")
	for _, args := range [][]string{{"ls"}, {"ls", "--json"}} {
		got := b.run(args...)
		if got.code != 65 || !strings.Contains(got.out, "good") || !strings.Contains(got.err, "holdlock:{:bad}") || !strings.Contains(got.err, "holdlock:{:worse}") {
			t.Errorf("%v: %+v, want the good lock, the names of both others, and 65", args, got)
		}
	}
	// The line of the lock that is held, and the record of a job.
	r.Do(t, "SET", "holdlock:{:good}:q", "garbage")
	r.Do(t, "RPUSH", "holdlock:{:report}:j", "a list")
	for key, args := range map[string][]string{
		"holdlock:{:bad}":      {"run", "bad", "--wait", "forever", "--", "echo", "ran"},
		"holdlock:{:worse}":    {"run", "worse", "--wait", "forever", "--", "echo", "ran"},
		"holdlock:{:bad} ":     {"run", "bad", "--", "echo", "ran"},
		"holdlock:{:worse} ":   {"run", "--once", "worse", "--", "echo", "ran"},
		"holdlock:{:worse}  ":  {"inspect", "worse"},
		"holdlock:{:bad}  ":    {"break", "bad"},
		"holdlock:{:good}:q":   {"run", "good", "--wait", "forever", "--", "echo", "ran"},
		"holdlock:{:report}:j": {"run", "--once", "report", "--", "echo", "ran"},
		"holdlock:{:report}":   {"jobs", "inspect", "report"},
	} {
		got := b.run(args...)
		if got.code != 65 || strings.Contains(got.out, "ran") || !strings.Contains(got.err, strings.TrimSpace(key)) ||
			!strings.Contains(got.err, "namespace") || strings.Contains(got.err, "unreachable") {
			t.Errorf("%v: %+v, want 65 at once, the key %s and what to do", args, got, key)
		}
	}
	if got := b.run("run", "good", "--", "echo", "ran"); got.code != 75 {
		t.Errorf("run without --wait beside a damaged line: %+v, want 75", got)
	}
	held.signal(syscall.SIGTERM)
	held.wait()
}

// TestDamagedJobs: the same of the records of jobs.
func TestDamagedJobs(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	b := newBox(t)
	b.onRedis("redis://" + r.Addr)
	b.unreadableJobs(func() {
		r.Do(t, "SET", "holdlock:{:dj/2}:j", "garbage")
	}, "holdlock:{:dj/2}:j")
}

// TestRedisHangs stops the server while a command runs: the command ends before its lock can pass on, and nothing is started
// beside it. A store that cannot be reached is 69.
func TestRedisHangs(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	r := testenv.StartRedis(t)
	b.onRedis("redis://" + r.Addr)
	journal := b.path("journal")
	first := b.start(append([]string{"run", "job", "--ttl", "3s", "--"}, role("write", journal, "first", "20ms", "willing")...)...)
	eventually(t, "the first command writes", func() bool { return len(find(journalOf(journal), "W", "first")) > 3 })
	second := b.start(append([]string{"run", "job", "--ttl", "3s", "--wait", "forever", "--"}, role("write", journal, "second", "20ms")...)...)
	eventually(t, "the second one waits to be woken", func() bool { return r.Do(t, "PUBSUB", "CHANNELS", "holdlock:*") != "" })
	r.Freeze(t)
	got := first.wait()
	if got.code != 70 || !strings.Contains(got.err, "the command was stopped") {
		t.Errorf("the first holdlock: %+v, want 70", got)
	}
	if out := b.run("run", "job", "--timeout", "200ms", "--", "true"); out.code != 69 {
		t.Errorf("run on a server that hangs: %+v, want 69", out)
	}
	r.Thaw(t)
	eventually(t, "the second command writes", func() bool { return len(find(journalOf(journal), "W", "second")) > 3 })
	if n := overlaps(journalOf(journal), "first", "second"); n > 0 {
		t.Errorf("%d acts of the first command after the first act of the second", n)
	}
	second.signal(syscall.SIGTERM)
	second.wait()
}
