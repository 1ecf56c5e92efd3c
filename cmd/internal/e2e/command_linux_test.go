package e2e

import (
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/holdlock/holdlock/internal/testenv"
)

// TestGoRun is the first command of the README, on a machine that has only Go.
func TestGoRun(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	cmd := b.program("go", "run", "./cmd/holdlock", "run", "nightly-report", "--", "echo", "built")
	cmd.Dir = "../../.." // the repository
	cmd.Env = append(os.Environ(), b.mark, "HOLDLOCK_STORE=sqlite:"+b.db)
	if r := b.launch(cmd).wait(); r != (result{0, "built\n", ""}) {
		t.Errorf("%+v", r)
	}
}

// TestPassThrough gives a command what it would get without holdlock.
func TestPassThrough(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	t.Run("input", func(t *testing.T) {
		write(t, b.path("in"), "from standard input\n")
		in, err := os.Open(b.path("in"))
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		cmd := b.command("run", "job", "--", "cat")
		cmd.Stdin = in
		if r := b.launch(cmd).wait(); r != (result{0, "from standard input\n", ""}) {
			t.Errorf("%+v", r)
		}
	})
	t.Run("arguments", func(t *testing.T) {
		long := strings.Repeat("y", 120_000)
		r := b.run("run", "job", "--", "printf", "%s|%s|%s|%s|%s", "--ttl", "--", "a\xffb", "", long)
		if want := "--ttl|--|a\xffb||" + long; r != (result{0, want, ""}) {
			t.Errorf("code %d, %d bytes %.40q, want %d bytes", r.code, len(r.out), r.out, len(want))
		}
	})
	t.Run("closed descriptors", func(t *testing.T) {
		cmd := b.program("sh", "-c", `"$0" run job -- sh -c 'echo out; echo err >&2; exit 7' <&- >&- 2>&-`, holdlockPath)
		if r := b.launch(cmd).wait(); r != (result{7, "", ""}) {
			t.Errorf("%+v, want 7", r)
		}
	})
	t.Run("other descriptors", func(t *testing.T) {
		cmd := b.program("sh", "-c", `"$0" run job -- sh -c 'echo leak >&9; exit 7' 9>inherited`, holdlockPath)
		if r := b.launch(cmd).wait(); r.code != 7 || read(b.path("inherited")) != "" {
			t.Errorf("%+v; descriptor 9 has reached the command: %q", r, read(b.path("inherited")))
		}
	})
	t.Run("umask, directory and limits", func(t *testing.T) {
		if err := os.MkdirAll(b.path("deep/er"), 0o755); err != nil {
			t.Fatal(err)
		}
		const show = `umask 027; cd deep/er; ulimit -n 123; `
		const ask = `umask; pwd; ulimit -n; echo "$-"`
		want := b.launch(b.program("sh", "-c", show+`sh -c '`+ask+`'`)).wait()
		got := b.launch(b.program("sh", "-c", show+`"$0" run job -- sh -c '`+ask+`'`, holdlockPath)).wait()
		if got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
	t.Run("signals ignored or not", func(t *testing.T) {
		const ask = `grep -E "Sig(Ign|Blk)" /proc/self/status`
		// Of the others that a shell may ignore, QUIT and PIPE above all, Go's runtime forgets that they were.
		for _, before := range []string{"", `trap "" HUP; `, `trap "" INT HUP; `} {
			want := b.launch(b.program("sh", "-c", before+ask)).wait()
			got := b.launch(b.program("sh", "-c", before+`"$0" run job -- `+ask, holdlockPath)).wait()
			if got != want {
				t.Errorf("after %q: %+v, want %+v", before, got, want)
			}
		}
	})
}

// TestJSONEvents wants one JSON object a line on stderr for whatever holdlock says itself.
func TestJSONEvents(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	events := func(r result) (kinds []string) {
		t.Helper()
		for line := range strings.Lines(r.err) {
			var got struct{ Event, Message string }
			if err := json.Unmarshal([]byte(line), &got); err != nil || got.Event == "" || got.Message == "" {
				t.Errorf("%q: %v", line, err)
			}
			kinds = append(kinds, got.Event)
		}
		return kinds
	}
	p, let := b.holder("held")
	defer p.wait()
	defer let()
	write(t, b.path("corrupt.db"), strings.Repeat("no database ", 1000))
	for _, c := range []struct {
		want string
		args []string
	}{
		{"usage", []string{"run", "job", "--json", "--bogus", "--", "true"}},
		{"usage", []string{"run", "job", "--ttl", "soon", "--json", "--", "true"}},
		{"usage", []string{"--json", "frob"}},
		{"usage", []string{"run", "", "--json", "--", "true"}},
		{"usage", []string{"run", "job", "--json"}},
		{"usage", []string{"run", "job", "--json", "--store", "mysql:x", "--", "true"}},
		{"store", []string{"run", "job", "--json", "--store", "sqlite:" + b.path("corrupt.db"), "--", "true"}},
		{"command", []string{"run", "job", "--json", "--", "no-such-command-anywhere"}},
		{"held", []string{"run", "held", "--json", "--", "true"}},
		{"stale", []string{"break", "held", "--json", "--token", "5", "--reason", "test"}},
		{"dry-run", []string{"break", "held", "--json"}},
		{"max-hold lost", []string{"run", "job", "--json", "--ttl", "3s", "--grace", "200ms", "--max-hold", "3s", "--", "sleep", "60"}},
		{"", []string{"run", "job", "--json", "--", "sh", "-c", "exit 69"}},
		{"", []string{"ls", "--json"}},
	} {
		if got := strings.Join(events(b.run(c.args...)), " "); got != c.want {
			t.Errorf("%q: events %q, want %q", c.args, got, c.want)
		}
	}
	// The command's own use of --json is its own.
	if r := b.run("run", "job", "--", "echo", "--json"); r != (result{0, "--json\n", ""}) {
		t.Errorf("%+v", r)
	}
	lost := b.start("run", "job", "--json", "--ttl", "2s", "--", "sleep", "60")
	guardOf(t, lost.pid())
	testenv.Stop(t, lost.pid())
	if r := b.run("run", "job", "--wait", "forever", "--json", "--", "true"); r.code != 0 || strings.Join(events(r), " ") != "lapsed" {
		t.Errorf("%+v", r)
	}
	lost.signal(syscall.SIGCONT)
	if r := lost.wait(); r.code != 70 || strings.Join(events(r), " ") != "lost" {
		t.Errorf("%+v", r)
	}
}
