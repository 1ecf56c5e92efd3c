package e2e

import (
	"strings"
	"syscall"
	"testing"

	"github.com/holdlock/holdlock/internal/testenv"
)

// TestWaitForTheStore starts commands whose store is down: with --wait they try until it is over, and say so once.
func TestWaitForTheStore(t *testing.T) {
	t.Parallel()
	const says = "and is tried again"
	patient := func(t *testing.T, b *box, up func(), store string) {
		b.onRedis(store)
		p := b.start("run", "job", "--timeout", "1s", "--wait", "forever", "--", "echo", "ran")
		eventually(t, "it says that it tries again", func() bool { return strings.Contains(p.stderr(), says) })
		if out := b.run("run", "job", "--timeout", "1s", "--wait", "3s", "--", "echo", "ran"); out.code != 69 || out.out != "" ||
			strings.Count(out.err, says) != 1 || !strings.Contains(out.err, "gave up waiting: --wait 3s is over") {
			t.Errorf("with a wait that ends: %+v, want 69", out)
		}
		if out := b.run("run", "job", "--timeout", "1s", "--", "echo", "ran"); out.code != 69 || strings.Contains(out.err, says) {
			t.Errorf("without --wait: %+v, want 69", out)
		}
		stopped := b.start("run", "job", "--timeout", "1s", "--wait", "forever", "--", "echo", "ran")
		eventually(t, "the other one says so too", func() bool { return strings.Contains(stopped.stderr(), says) })
		stopped.signal(syscall.SIGTERM)
		if out := stopped.wait(); out.code != 128+15 || out.out != "" {
			t.Errorf("ended by a signal: %+v, want 143", out)
		}
		up()
		if out := p.wait(); out.code != 0 || out.out != "ran\n" || strings.Count(out.err, says) != 1 {
			t.Errorf("when the store is back: %+v", out)
		}
	}
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		r := testenv.StartRedis(t)
		r.Kill()
		patient(t, newBox(t), func() { r.Restart(t) }, "redis://"+r.Addr)
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		p := testenv.StartPostgres(t)
		b := newBox(t)
		if out := b.run("migrate", "--store", p.URL()); out.code != 0 {
			t.Fatalf("migrate: %+v", out)
		}
		p.Kill()
		patient(t, b, func() { p.Start(t) }, p.URL())
	})
	t.Run("quorum", func(t *testing.T) {
		t.Parallel()
		b := newBox(t)
		var nodes []*testenv.Redis
		var urls []string
		for range 3 {
			r := testenv.StartRedis(t)
			nodes, urls = append(nodes, r), append(urls, "redis://"+r.Addr)
		}
		b.onRedis(strings.Join(urls, " "))
		if out := b.run("quorum", "init"); out.code != 0 {
			t.Fatalf("quorum init: %+v", out)
		}
		for _, r := range nodes[1:] {
			r.Freeze(t) // not killed: a node that has lost its data abstains
		}
		patient(t, b, func() { nodes[1].Thaw(t) }, strings.Join(urls, " "))
		nodes[2].Thaw(t)
	})
}

// TestWaitThatEndsWhileTheStoreFails: a command in line whose store fails until --wait is over tells that and who held the lock, once.
func TestWaitThatEndsWhileTheStoreFails(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(r *testenv.Redis){
		"none":   nil,
		"full":   func(r *testenv.Redis) { r.Do(t, "CONFIG", "SET", "maxmemory", "1") },
		"killed": func(r *testenv.Redis) { r.Kill() },
		"hangs":  func(r *testenv.Redis) { r.Freeze(t) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := testenv.StartRedis(t)
			b := newBox(t)
			b.onRedis("redis://" + r.Addr)
			first := b.start("run", "job", "--ttl", "2m", "--", "sleep", "600")
			eventually(t, "the lock is held", func() bool { return r.Do(t, "EXISTS", "holdlock:{:job}") == "1" })
			waiter := b.start("run", "job", "--wait", "10s", "--", "echo", "ran")
			eventually(t, "it stands in line", func() bool { return r.Do(t, "EXISTS", "holdlock:{:job}:q") == "1" })
			code := 75
			if fail != nil {
				code = 69
				fail(r)
			}
			if out := waiter.wait(); out.code != code || out.out != "" || strings.Count(out.err, "--wait 10s is over") != 1 || !strings.Contains(out.err, "held by sleep") {
				t.Errorf("%+v, want %d, the holder and the wait", out, code)
			}
			first.signal(syscall.SIGTERM)
			first.wait()
		})
	}
}

// A wait that is over before it began names the lock and the store, and that it was not asked.
func TestWaitOfNoTime(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	out := b.run("run", "job", "--wait", "1ns", "--", "echo", "ran")
	if out.code != 69 || out.out != "" || !strings.Contains(out.err, `"job"`) || !strings.Contains(out.err, "was not asked: --wait 1ns is over\n") {
		t.Errorf("%+v, want 69, and the lock named", out)
	}
}

// A store that answers, and does not let us in, is not waited for.
func TestNoWaitForWrongPassword(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t, "--requirepass", "sesame")
	b := newBox(t)
	b.onRedis("redis://:wrong@" + r.Addr)
	if out := b.run("run", "job", "--wait", "forever", "--", "true"); out.code != 69 || !strings.Contains(out.err, "WRONGPASS") {
		t.Errorf("%+v, want 69", out)
	}
	p := testenv.StartPostgres(t)
	b.onRedis(p.URL())
	if out := b.run("run", "job", "--wait", "forever", "--", "true"); out.code != 69 || !strings.Contains(out.err, "holdlock migrate") {
		t.Errorf("%+v, want 69", out)
	}
}

// TestRestartWithoutStore takes the store away from a command that is to be restarted: its holdlock is still there when the
// store comes back.
func TestRestartWithoutStore(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	b := newBox(t)
	b.onRedis("redis://" + r.Addr)
	p := b.start("run", "job", "--ttl", "2s", "--restart", "--", "sh", "-c", "echo run >> runs; exec sleep 600")
	runs := func() int { return strings.Count(read(b.path("runs")), "run") }
	eventually(t, "the command runs", func() bool { return runs() == 1 })
	r.Kill()
	eventually(t, "it waits for the store", func() bool { return strings.Contains(p.stderr(), "is tried again for as long as it takes") })
	r.Restart(t)
	eventually(t, "the command runs again", func() bool { return runs() == 2 })
	r.Kill()
	eventually(t, "it waits once more", func() bool { return strings.Count(p.stderr(), "waiting for the lock to start the command again") == 2 })
	p.signal(syscall.SIGTERM)
	if out := p.wait(); out.code != 128+15 || strings.Contains(out.err, "nothing was run") || !strings.Contains(out.err, "the command had run") {
		t.Errorf("%+v, want 143, and that it had run", out)
	}
}

// TestRestartAfterALapse stops the server until the term has run out: the next term of the same run is told of itself, and not of
// work that may have overlapped.
func TestRestartAfterALapse(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	b := newBox(t)
	b.onRedis("redis://" + r.Addr)
	p := b.start("run", "job", "--ttl", "2s", "--restart", "--", "sh", "-c", "echo run >> runs; exec sleep 600")
	runs := func() int { return strings.Count(read(b.path("runs")), "run") }
	eventually(t, "the command runs", func() bool { return runs() == 1 })
	r.Freeze(t)
	eventually(t, "the lock is lost", func() bool { return strings.Contains(p.stderr(), "to start the command again") })
	eventually(t, "the term runs out", func() bool { return strings.Contains(p.stderr(), "is tried again") })
	r.Thaw(t)
	eventually(t, "the command runs again", func() bool { return runs() == 2 })
	p.signal(syscall.SIGTERM)
	if out := p.wait(); strings.Contains(out.err, "may have overlapped") {
		t.Errorf("%+v, want nothing of an overlap with itself", out)
	}
}
