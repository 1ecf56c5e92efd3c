package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

const password = "hunter2"

// TestPasswords gives URLs with a password, well-formed and not, in every place where one may end up by mistake. Each
// must be refused without showing the password.
func TestPasswords(t *testing.T) {
	t.Parallel()
	run := func(flags ...string) []string { return append(append([]string{"run", "job"}, flags...), "--", "true") }
	const url = "redis://user:" + password + "@127.0.0.1:1/0" // a good one, where nobody answers
	var lines [][]string
	for _, u := range []string{
		url, "rediss://:" + password + "@127.0.0.1:1", "mysql://u:" + password + "@host", "redis:/user:" + password + "@host", "redis:user:" + password + "@host",
		"redis//user:" + password + "@host", "://user:" + password + "@host", "//user:" + password + "@host", "user:" + password + "@host",
		password + "@host:6379", "user@" + password + ":6379", " redis://u:" + password + "@host", "redis://u:" + password + "@@127.0.0.1:port/%zz",
		"redis://u:" + password + "\n@host", "redis://u:\x1b" + password + "@host", "redis://u:" + password + "\xff@host",
		"sqlite://user:" + password + "@host/locks.db", "SQLITE:" + password, "postgres://u:" + password + "@[::1/db", "",
	} {
		if u == "" {
			continue
		}
		lines = append(lines, run("--store", u), run("--store="+u), []string{"ls", "--store", u}, []string{"break", "job", "--store=" + u})
	}
	lines = append(lines,
		run("--stor", url), run("--stor="+url), run("-store", url), run("-store="+url), run("--store", url, "--ttl", "soon"),
		run(url), []string{"ls", "a", url}, []string{"ls", "a", "store=" + url}, []string{"inspect", "job", url}, []string{url}, []string{"--store", url},
		run("--ttl", url), run("--ttl="+url), run("--timeout", url), run("--held-exit-code", url), run("--wait", url),
		[]string{"break", "job", "--token", url}, []string{"run", url}, run("--json="+url), run("--quiet="+url),
	)
	check := func(t *testing.T, b *box, what string, r result) {
		t.Helper()
		if strings.Contains(r.out+r.err, password) {
			t.Errorf("%s shows the password: %+v", what, r)
		}
		if r.code != 64 && r.code != 69 {
			t.Errorf("%s: %+v, want 64, or 69 where the URL is good", what, r)
		}
	}
	b := newBox(t)
	before := b.tree()
	for i, args := range lines {
		check(t, b, fmt.Sprintf("%d %q", i, args), b.run(args...))
		withJSON := append([]string{args[0], "--json"}, args[1:]...)
		if args[0] == url {
			withJSON = []string{"--json", url}
		}
		check(t, b, fmt.Sprintf("%d %q", i, withJSON), b.run(withJSON...))
	}
	for _, args := range [][]string{run(), {"ls"}, {"ls", "--json"}} {
		cmd := b.command(args...)
		setenv(cmd, "HOLDLOCK_STORE="+url)
		check(t, b, "$HOLDLOCK_STORE", b.launch(cmd).wait())
	}
	if after := b.tree(); after != before {
		t.Errorf("something was written; before:\n%safter:\n%s", before, after)
	}
}

// TestGuardKeepsSecrets looks for the store's URL, which may hold a password, and for the lease's nonce in what everybody
// can see of the guard and the command.
func TestGuardKeepsSecrets(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	cmd := b.command("run", "job", "--store", "sqlite:"+b.path(password+".db"), "--", "sleep", "60")
	setenv(cmd, "HOLDLOCK_STORE")
	p := b.launch(cmd)
	guard := guardOf(t, p.pid())
	eventually(t, "the command runs", func() bool {
		c := children(guard)
		return len(c) == 1 && strings.HasPrefix(read(fmt.Sprintf("/proc/%d/cmdline", c[0])), "sleep\x00")
	})
	for _, pid := range []int{guard, children(guard)[0]} {
		for _, file := range []string{"cmdline", "environ", "comm"} {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file))
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(string(text), password) {
				t.Errorf("/proc/%d/%s shows the store: %q", pid, file, text)
			}
		}
	}
	p.signal(15)
	p.wait()
}
