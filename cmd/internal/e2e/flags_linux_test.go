package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestRestart breaks the lock under a command again and again: each time it is ended, and started again under a new lease.
func TestRestart(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	journal := b.path("journal")
	p := b.start(append([]string{"run", "job", "--ttl", "10s", "--restart", "--"}, role("write", journal, "job", "10ms")...)...)
	seen := make(map[uint64]bool)
	for round := range 3 {
		var token uint64
		eventually(t, "the command runs under a new lease", func() bool {
			list := journalOf(journal)
			if len(list) > 0 {
				token = list[len(list)-1].token
			}
			return token != 0 && !seen[token]
		})
		seen[token] = true
		if round == 2 {
			break
		}
		if r := b.run("break", "job", "--token", fmt.Sprint(token), "--reason", "test", "--now"); r.code != 0 {
			t.Fatalf("break: %+v", r)
		}
		// Another one may come in between; holdlock then waits.
		if r := b.run("run", "job", "--wait", "forever", "--", "true"); r.code != 0 {
			t.Errorf("run in between: %+v", r)
		}
	}
	p.signal(syscall.SIGTERM)
	r := p.wait()
	if r.code != 128+int(syscall.SIGTERM) {
		t.Errorf("after TERM: %+v", r)
	}
	// Whoever came in between has overwritten who broke it.
	broken := strings.Count(r.err, "an operator broke it") + strings.Count(r.err, "the store no longer knows it")
	if n := strings.Count(r.err, "waiting for the lock to start the command again"); broken != 2 || n < broken {
		t.Errorf("it says %d times that it was broken, want 2, and %d times that it waits: %s", broken, n, r.err)
	}
	var last uint64
	for _, e := range find(journalOf(journal), "W", "job") {
		if e.token < last {
			t.Fatalf("token %d acted after %d", e.token, last)
		}
		last = e.token
	}
}

func TestRestartEndsWithTheCommand(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	if r := b.run("run", "job", "--restart", "--", "sh", "-c", "exit 7"); r != (result{7, "", ""}) {
		t.Errorf("%+v, want the command's 7", r)
	}
}

// TestBreakWithPatience breaks a lock without --now: its holder is ended, and nobody gets in before.
func TestBreakWithPatience(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	journal := b.path("journal")
	first := b.start(append([]string{"run", "job", "--ttl", "2s", "--"}, role("write", journal, "first", "10ms", "stubborn")...)...)
	writing(t, journal, []string{"first"})
	second := b.start(append([]string{"run", "job", "--wait", "forever", "--"}, role("write", journal, "second", "10ms")...)...)
	second.waits()
	token := b.token("job")

	dry := b.run("break", "job")
	if dry.code != 0 {
		t.Errorf("dry run: %+v", dry)
	}
	contains(t, "the dry run", dry.out+dry.err, token, "held", "nothing was changed", "--token "+token)
	if r := b.run("break", "job", "--token", "1", "--reason", "test"); r.code != 75 {
		t.Errorf("another token: %+v, want 75", r)
	}
	if got := b.token("job"); got != token || first.ended() {
		t.Fatal("the dry run or another token has broken the lock")
	}
	r := b.run("break", "job", "--token", token, "--reason", "it hangs")
	if r.code != 0 {
		t.Errorf("break: %+v", r)
	}
	contains(t, "break", r.err, "broke lock job", "token "+token, "told at its next renewal")
	end := first.wait()
	if end.code != 70 {
		t.Errorf("the holder: %+v, want 70", end)
	}
	contains(t, "the holder", end.err, "job", "operator", "it hangs", "tester@")
	oneLine(t, end.err)
	eventually(t, "the second writes", func() bool { return len(find(journalOf(journal), "W", "second")) > 3 })
	if n := overlaps(journalOf(journal), "first", "second"); n > 0 {
		t.Errorf("%d acts of the first command after the first act of the second", n)
	}
	second.signal(syscall.SIGTERM)
	second.wait()
}

// TestMaxHold ends a command that takes too long.
func TestMaxHold(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	journal := b.path("journal")
	r := b.run(append([]string{"run", "job", "--ttl", "3s", "--grace", "200ms", "--max-hold", "3s", "--"}, role("write", journal, "job", "10ms")...)...)
	if r.code != 70 {
		t.Errorf("%+v, want 70", r)
	}
	contains(t, "the message", r.err, "job", "--max-hold")
	list := journalOf(journal)
	if n := len(find(list, "T", "job")); n != 1 {
		t.Errorf("TERM came %d times, want once", n)
	}
	if held := list[len(list)-1].at - list[0].at; held < time.Second || held > 6*time.Second {
		t.Errorf("the command ran for %v, want nearly --max-hold", held)
	}
	if r := b.run("run", "job", "--", "echo", "free"); r.out != "free\n" {
		t.Errorf("afterwards: %+v", r)
	}
}

// TestMinHold keeps the lock of a command that was done at once.
func TestMinHold(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	if r := b.run("run", "tick", "--min-hold", "1h", "--", "echo", "built"); r != (result{0, "built\n", ""}) {
		t.Fatalf("%+v", r)
	}
	r := b.run("run", "tick", "--", "echo", "twice")
	if r.code != 75 || r.out != "" {
		t.Errorf("right afterwards: %+v, want 75", r)
	}
	contains(t, "the skip", r.err, "tick", "cooling", "free in", "store sqlite:"+b.db)
	contains(t, "inspect", b.run("inspect", "tick").out, "cooling")
	contains(t, "inspect --json", b.run("inspect", "tick", "--json").out, `"state":"cooling"`)

	b.run("run", "short", "--min-hold", "300ms", "--", "true")
	start := time.Now()
	if r := b.run("run", "short", "--wait", "forever", "--", "echo", "next"); r.out != "next\n" {
		t.Errorf("after --min-hold: %+v after %v", r, time.Since(start))
	}
}

// TestWait gives up at the end of the wait, and not before; the lock may come in between.
func TestWait(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	p, let := b.holder("job")
	start := time.Now()
	r := b.run("run", "job", "--wait", "300ms", "--", "echo", "twice")
	if took := time.Since(start); took < 300*time.Millisecond {
		t.Errorf("it gave up after %v", took)
	}
	if r.code != 75 || r.out != "" {
		t.Errorf("%+v, want 75", r)
	}
	contains(t, "the skip", r.err, "job", "pid ", "--wait 300ms is over")
	if r := b.run("run", "job", "--wait", "200ms", "--quiet", "--", "echo", "twice"); r != (result{75, "", ""}) {
		t.Errorf("--quiet: %+v", r)
	}
	waiter := b.start("run", "job", "--wait", "1h", "--", "echo", "next")
	waiter.waits()
	let()
	if r := waiter.wait(); r != (result{0, "next\n", ""}) {
		t.Errorf("the waiter: %+v", r)
	}
	p.wait()
}

// TestStoreAndNamespace holds one name in several stores and namespaces at once.
func TestStoreAndNamespace(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	_, let := b.holder("job")
	defer let()
	other := "sqlite:" + b.path("other.db")
	for _, args := range [][]string{
		{"--namespace", "a"}, {"--namespace=b"}, {"--store", other}, {"--store=" + other, "--namespace", "a"},
	} {
		if r := b.run(append(append([]string{"run", "job"}, args...), "--", "echo", "built")...); r.out != "built\n" {
			t.Errorf("%v: %+v", args, r)
		}
	}
	for _, env := range [][]string{{"HOLDLOCK_NAMESPACE=a"}, {"HOLDLOCK_STORE=" + other}} {
		cmd := b.command("run", "job", "--", "echo", "built")
		setenv(cmd, env...)
		if r := b.launch(cmd).wait(); r.out != "built\n" {
			t.Errorf("%v: %+v", env, r)
		}
	}
	// The flag wins over the variable, and the same namespace by both ways is the same one.
	_, let2 := b.holder("job", "--namespace", "a")
	defer let2()
	cmd := b.command("run", "job", "--", "echo", "built")
	setenv(cmd, "HOLDLOCK_NAMESPACE=a")
	r := b.launch(cmd).wait()
	if r.code != 75 {
		t.Errorf("the same namespace: %+v, want 75", r)
	}
	contains(t, "the skip", r.err, `namespace "a"`)
	cmd = b.command("run", "job", "--namespace", "c", "--", "echo", "built")
	setenv(cmd, "HOLDLOCK_NAMESPACE=a")
	if r := b.launch(cmd).wait(); r.out != "built\n" {
		t.Errorf("flag over variable: %+v", r)
	}
}
