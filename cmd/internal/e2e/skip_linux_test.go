package e2e

import (
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdlock/holdlock/internal/testenv"
)

// holder starts holdlock with a command that ends when the returned function is called, and waits until it runs.
func (b *box) holder(lock string, flags ...string) (p *proc, let func()) {
	b.t.Helper()
	here, awaited := b.path("here-"+strconv.Itoa(int(b.n.Add(1)))), b.path("go-"+strconv.Itoa(int(b.n.Add(1))))
	args := append([]string{"run", lock}, flags...)
	p = b.start(append(append(args, "--"), direct("flag", here, awaited)...)...)
	eventually(b.t, "the holder runs", func() bool {
		if p.ended() {
			b.t.Fatalf("the holder has ended with %d: %s", exitCode(p.cmd.ProcessState), p.stderr())
		}
		return read(here) != ""
	})
	return p, func() { write(b.t, awaited, "") }
}

func TestRunAndSkip(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	if r := b.run("run", "nightly-report", "--", "echo", "built"); r != (result{0, "built\n", ""}) {
		t.Fatalf("run: %+v", r)
	}

	first, let := b.holder("nightly-report", "--purpose", "builds the report")
	before := time.Now()
	skip := b.run("run", "nightly-report", "--", "echo", "twice")
	if skip.code != 75 || skip.out != "" {
		t.Errorf("the second run: %+v, want 75 and nothing on stdout", skip)
	}
	if first.ended() {
		t.Error("the skip came after the first run had ended: it has waited")
	}
	host, _ := os.Hostname()
	contains(t, "the skip", skip.err, "nightly-report", "pid "+strconv.Itoa(first.pid()), host, // who
		"since "+before.Format("2006-01-02"), // since when
		"free in",                            // until when
		"store sqlite:"+b.db)
	if strings.Count(skip.err, "\n") != 1 {
		t.Errorf("the skip is not one line: %q", skip.err)
	}

	if r := b.run("run", "nightly-report", "--quiet", "--", "echo", "twice"); r != (result{75, "", ""}) {
		t.Errorf("--quiet: %+v", r)
	}
	if r := b.run("run", "nightly-report", "--quiet", "--json", "--", "echo", "twice"); r != (result{75, "", ""}) {
		t.Errorf("--quiet --json: %+v", r)
	}
	if r := b.run("run", "nightly-report", "--held-exit-code", "0", "--", "echo", "twice"); r.code != 0 || r.out != "" || r.err == "" {
		t.Errorf("--held-exit-code 0: %+v", r)
	}
	if r := b.run("run", "--held-exit-code=3", "-q", "nightly-report", "--", "echo", "twice"); r != (result{3, "", ""}) {
		t.Errorf("--held-exit-code 3 -q before the name: %+v", r)
	}
	if r := b.run("run", "other", "--", "echo", "free"); r.out != "free\n" {
		t.Errorf("another lock: %+v", r)
	}

	t.Run("json", func(t *testing.T) {
		r := b.run("run", "nightly-report", "--json", "--", "echo", "twice")
		var got struct {
			Event, Message string
			Holder         map[string]any
		}
		if err := json.Unmarshal([]byte(r.err), &got); err != nil || r.code != 75 || strings.Count(r.err, "\n") != 1 {
			t.Fatalf("%+v: %v", r, err)
		}
		if got.Event != "held" || got.Message == "" {
			t.Errorf("event %q, message %q", got.Event, got.Message)
		}
		checkHeldFields(t, got.Holder, b, first.pid())
	})
	t.Run("ls and inspect", func(t *testing.T) {
		for _, args := range [][]string{{"ls", "--json"}, {"inspect", "nightly-report", "--json"}} {
			r := b.run(args...)
			var got map[string]any
			if err := json.Unmarshal([]byte(r.out), &got); err != nil || r.code != 0 || strings.Count(r.out, "\n") != 1 {
				t.Fatalf("%v: %+v: %v", args, r, err)
			}
			checkHeldFields(t, got, b, first.pid())
		}
		contains(t, "inspect", b.run("inspect", "nightly-report").out, "held", "builds the report", "sqlite:"+b.db)
		contains(t, "ls", b.run("ls").out, "nightly-report", "held", "builds the report", "pid "+strconv.Itoa(first.pid()))
	})

	let()
	if r := first.wait(); r.code != 0 || r.err != "" {
		t.Errorf("the first run: %+v", r)
	}
	if r := b.run("run", "nightly-report", "--", "echo", "again"); r.out != "again\n" {
		t.Errorf("after the first run: %+v", r)
	}
	if r := b.run("inspect", "nightly-report", "--json"); !strings.Contains(r.out, `"state":"free"`) {
		t.Errorf("inspect afterwards: %+v", r)
	}
	if r := b.run("ls"); r.code != 0 || r.out != "" {
		t.Errorf("ls afterwards: %+v", r)
	}
}

// checkHeldFields compares a held lock with the table of docs/cli.md.
func checkHeldFields(t *testing.T, got map[string]any, b *box, pid int) {
	t.Helper()
	host, _ := os.Hostname()
	want := map[string]any{
		"lock": "nightly-report", "store": "sqlite:" + b.db, "state": "held", "purpose": "builds the report",
		"host": host, "pid": float64(pid),
	}
	for k, v := range want {
		if got[k] != v {
			t.Errorf("%s is %v, want %v", k, got[k], v)
		}
	}
	if s, ok := got["token"].(string); !ok || s == "" || strings.Trim(s, "0123456789") != "" {
		t.Errorf("token is %#v, want a decimal string", got["token"])
	}
	if s, ok := got["since"].(string); !ok || !strings.HasSuffix(s, "Z") {
		t.Errorf("since is %#v, want RFC 3339 in UTC", got["since"])
	} else if at, err := time.Parse(time.RFC3339, s); err != nil || time.Since(at) > enough {
		t.Errorf("since is %q: %v", s, err)
	}
	if ms, ok := got["free_in_ms"].(float64); !ok || ms <= 0 || ms > 30_000 {
		t.Errorf("free_in_ms is %v, want 1 to 30000", got["free_in_ms"])
	}
	if got["label"] == "" || got["label"] == nil {
		t.Error("label is missing")
	}
	for _, k := range []string{"key", "broken_by"} {
		if v, ok := got[k]; ok {
			t.Errorf("%s is %v, want it absent", k, v)
		}
	}
}

// TestBrokenBesideSuccessor breaks a lock at once while somebody waits for it: its holder is told that it was broken, and by
// whom, although another holds the lock by then.
func TestBrokenBesideSuccessor(t *testing.T) {
	t.Parallel()
	for name, store := range map[string]func(t *testing.T, b *box){
		"file": func(*testing.T, *box) {},
		"redis": func(t *testing.T, b *box) {
			b.onRedis("redis://" + testenv.StartRedis(t).Addr)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			store(t, b)
			first := b.start("run", "job", "--ttl", "6s", "--", "sh", "-c", ": >first; exec sleep 600")
			eventually(t, "the first command runs", func() bool { return exists(b.path("first")) })
			second := b.start("run", "job", "--ttl", "6s", "--wait", "forever", "--", "sh", "-c", ": >second; exec sleep 600")
			if r := b.run("break", "job", "--token", b.token("job"), "--reason", "it is stuck", "--now"); r.code != 0 {
				t.Fatalf("break: %+v", r)
			}
			eventually(t, "the second command runs", func() bool { return exists(b.path("second")) })
			r := first.wait()
			contains(t, "the message", r.err, "an operator broke it", "tester@", "it is stuck")
			if r.code != 70 {
				t.Errorf("%+v, want 70", r)
			}
			second.signal(syscall.SIGTERM)
			second.wait()
		})
	}
}
