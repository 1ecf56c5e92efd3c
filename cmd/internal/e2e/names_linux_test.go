package e2e

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// TestNames takes locks with odd names and keys, all at once, and finds each again.
func TestNames(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	names := []string{
		"plain", "PLAIN", "Plain", "with space", "job/a b", "job/", "job/x", "job/X", "job/a/b//c/", "job//lead", "job/{brace}", "{job}/{}", "job/}{",
		"job/🔒 lock", "schlüssel/é", "job/--ttl", "job/-q", "job/" + strings.Repeat("k", 512), "job/" + strings.Repeat("é", 256),
		strings.Repeat("n", 512) + "/" + strings.Repeat("k", 512), "%s/%d", "a'b/\"c\"", "a*/?", "job/\\", "job/$HOME", "a;b/`c`", ".", "../..", "job/e\u0301", "job/é",
	}
	names = slices.DeleteFunc(names, func(n string) bool { return n == "job/" }) // an empty key is an error
	var holders []*proc
	var lets []func()
	for _, n := range names {
		p, let := b.holder(n)
		holders, lets = append(holders, p), append(lets, let)
	}
	var listed []string
	for line := range strings.Lines(b.run("ls", "--json").out) {
		var got struct{ Lock, Key string }
		if err := json.Unmarshal([]byte(line), &got); err != nil {
			t.Fatal(err)
		}
		if got.Key != "" {
			got.Lock += "/" + got.Key
		}
		listed = append(listed, got.Lock)
	}
	slices.Sort(listed)
	want := slices.Sorted(slices.Values(names))
	if !slices.Equal(listed, want) {
		t.Errorf("listed %q, want %q", listed, want)
	}
	for _, n := range names {
		if r := b.run("run", n, "--", "true"); r.code != 75 {
			t.Errorf("%q is not held: %+v", n, r)
		}
	}
	for _, n := range []string{"with space", "job/a/b//c/", "job/🔒 lock", "job/--ttl"} {
		lock, key, _ := strings.Cut(n, "/")
		var got map[string]any
		if err := json.Unmarshal([]byte(b.run("inspect", n, "--json").out), &got); err != nil {
			t.Fatal(err)
		}
		if k, _ := got["key"].(string); got["lock"] != lock || k != key || got["state"] != "held" {
			t.Errorf("inspect of %q: %v", n, got)
		}
	}
	if got := strings.Count(b.run("ls", "job", "--json").out, "\n"); got != 16 {
		t.Errorf("%d locks begin with job, want 16", got)
	}
	for i, p := range holders {
		lets[i]()
		if r := p.wait(); r.code != 0 {
			t.Errorf("%q: %+v", names[i], r)
		}
	}
	if r := b.run("ls"); r.out != "" {
		t.Errorf("still listed: %s", r.out)
	}
}

// TestEnvironment reads the variables that the command finds, also inside another holdlock run.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	const show = `echo "$HOLDLOCK_LOCK|${HOLDLOCK_KEY-none}|$HOLDLOCK_TOKEN"`
	check := func(r result, lock, key string) uint64 {
		t.Helper()
		f := strings.Split(strings.TrimSpace(r.out), "|")
		if len(f) != 3 || f[0] != lock || f[1] != key || f[2] == "" {
			t.Fatalf("%+v", r)
		}
		var n uint64
		if err := json.Unmarshal([]byte(f[2]), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	first := check(b.run("run", "job/a b/c", "--", "sh", "-c", show), "job", "a b/c")
	second := check(b.run("run", "job/a b/c", "--", "sh", "-c", show), "job", "a b/c")
	if second <= first {
		t.Errorf("token %d after %d", second, first)
	}
	check(b.run("run", "outer/key", "--", holdlockPath, "run", "inner", "--", "sh", "-c", show), "inner", "none")
}

// TestControlCharacters puts what a terminal acts upon into everything that is shown.
func TestControlCharacters(t *testing.T) {
	t.Parallel()
	const nasty = "x\x1b[31m\x07\r\n\t\x08\x7f\u009b2J\u202eend"
	b := newBox(t)
	// The command's name is shown as the label.
	script := b.path("cmd" + nasty)
	write(t, script, "#!/bin/sh\nexec \"$@\"\n")
	if err := os.Chmod(script, 0o755); err != nil {
		t.Fatal(err)
	}
	here, let := b.path("here"), b.path("let")
	p := b.start(append([]string{"run", "job" + nasty + "/key" + nasty, "--purpose", "why" + nasty, "--", script}, direct("flag", here, let)...)...)
	eventually(t, "the command runs", func() bool { return read(here) != "" })
	token := b.tokenOf("job" + nasty + "/key" + nasty)
	lines := [][]string{
		{"ls"},
		{"ls", nasty},
		{"inspect", "job" + nasty + "/key" + nasty},
		{"inspect", "other" + nasty},
		{"run", "job" + nasty + "/key" + nasty, "--", "true"},
		{"run", "job" + nasty + "/key" + nasty, "--wait", "10ms", "--", "true"},
		{"break", "job" + nasty + "/key" + nasty},
		{"break", "job" + nasty + "/key" + nasty, "--token", "5", "--reason", "because" + nasty},
		{"run", nasty + "/", "--", "true"},
		{"run", "job", "--" + nasty, "--", "true"},
		{nasty},
		{"run", "a", nasty, "--", "true"},
		{"run", "job", "--ttl", nasty, "--", "true"},
		{"run", "job", "--", "./no" + nasty},
		{"run", "job", "--", b.dir + "/" + nasty},
		{"ls", "--store", nasty},
		{"ls", "--store", "sqlite:" + b.path("no"+nasty+"/x/")},
		{"ls", "--store", nasty + ":x"},
		{"ls", "--namespace", nasty},
		{"ls", "--store", "sqlite:/dev/null/" + nasty},
		// The last: it ends the holder.
		{"break", "job" + nasty + "/key" + nasty, "--token", token, "--reason", "because" + nasty},
		{"inspect", "job" + nasty + "/key" + nasty},
		{"ls"},
		{"run", "job" + nasty + "/key" + nasty, "--", "true"},
	}
	for _, args := range lines {
		r := b.run(args...)
		for _, text := range []string{r.out, r.err} {
			if i := strings.IndexFunc(text, func(c rune) bool { return c != '\n' && !unicode.IsPrint(c) }); i >= 0 {
				t.Errorf("%q shows %q", args, text[i:])
			}
		}
		if args[0] != "ls" && !strings.Contains(r.out+r.err, "x") {
			t.Errorf("%q shows nothing: %+v", args, r)
		}
		withJSON := b.run(append(slices.Clone(args[:1]), append([]string{"--json"}, args[1:]...)...)...)
		for line := range strings.Lines(withJSON.out + withJSON.err) {
			if !json.Valid([]byte(line)) {
				t.Errorf("%q with --json: %q", args, line)
			}
		}
	}
	write(t, let, "")
	r := p.wait()
	if i := strings.IndexFunc(r.err, func(c rune) bool { return c != '\n' && !unicode.IsPrint(c) }); i >= 0 {
		t.Errorf("the holder shows %q", r.err[i:])
	}
}

// tokenOf returns the token of the present term of a lock.
func (b *box) tokenOf(lock string) string {
	b.t.Helper()
	var got struct{ Token string }
	if err := json.Unmarshal([]byte(b.run("inspect", lock, "--json").out), &got); err != nil || got.Token == "" {
		b.t.Fatalf("no token of %q: %v", lock, err)
	}
	return got.Token
}
