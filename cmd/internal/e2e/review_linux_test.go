package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
	"github.com/holdlock/holdlock/pghold"
	"github.com/holdlock/holdlock/redishold"
	"github.com/holdlock/holdlock/sqlitehold"
)

// TestReviewCountsAWaiterOnce has one run wait for another: that is one attempt each.
func TestReviewCountsAWaiterOnce(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	first, let := b.holder("job")
	started := b.path("started")
	second := b.start("run", "job", "--wait", "60s", "--", "sh", "-c", "echo > "+started)
	third := b.start("run", "job", "--wait", "forever", "--", "true")
	second.waits()
	third.waits()
	let()
	for _, p := range []*proc{first, second, third} {
		if r := p.wait(); r.code != 0 {
			t.Errorf("%+v", r)
		}
	}
	if r := b.run("review", "job"); r.code != 0 || !strings.Contains(r.out, "2 of 3 attempts met another holder") {
		t.Errorf("review: %+v", r)
	}
}

// TestReviewSendsTheSpool looks at the locks on the morning after an outage, before any job has run again.
func TestReviewSendsTheSpool(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	if r := b.run("run", "nightly", "--double-run", "costly", "--", "true"); r.code != 0 {
		t.Fatalf("run: %+v", r)
	}
	if err := os.Rename(b.db, b.db+".away"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(b.db, 0o755); err != nil { // what is no file does not answer
		t.Fatal(err)
	}
	for range 3 {
		if r := b.run("run", "nightly", "--double-run", "costly", "--", "true"); r.code != 69 {
			t.Fatalf("run while the store is away: %+v", r)
		}
	}
	if err := errors.Join(os.Remove(b.db), os.Rename(b.db+".away", b.db)); err != nil {
		t.Fatal(err)
	}
	if r := b.run("review", "--fail-on", "error"); r.code != 1 || !strings.Contains(r.out, "3 attempts did not run because the store failed, of 4") {
		t.Errorf("review: %+v", r)
	}
	// One that cannot be read is not sent, and that is said.
	spools, err := filepath.Glob(filepath.Join(b.spool, "*"))
	if err != nil || len(spools) > 1 {
		t.Fatal(spools, err)
	}
	if err := os.Mkdir(b.db+"x", 0o755); err != nil {
		t.Fatal(err)
	}
	if r := b.run("run", "nightly", "--store", "sqlite:"+b.db+"x", "--", "true"); r.code != 69 {
		t.Fatalf("run: %+v", r)
	}
	files, err := filepath.Glob(filepath.Join(b.spool, "*", "*"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if err := errors.Join(os.WriteFile(files[0], []byte("no counts"), 0o600), os.Remove(b.db+"x")); err != nil {
		t.Fatal(err)
	}
	if r := b.run("run", "other", "--store", "sqlite:"+b.db+"x", "--", "true"); r.code != 0 {
		t.Fatalf("run: %+v", r)
	}
	if r := b.run("review", "--store", "sqlite:"+b.db+"x"); r.code != 0 || !strings.Contains(r.err, "not counted yet: 1 file in "+filepath.Dir(files[0])) {
		t.Errorf("review: %+v", r)
	}
}

// TestReviewNames asks for locks by name, also by one that looks like a flag, and by one that nobody knows.
func TestReviewNames(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	if r := b.run("review", "job"); r.code != 64 || !strings.Contains(r.err, "there is no file") {
		t.Errorf("of no file: %+v", r)
	}
	if r := b.run("run", "job", "--namespace", "other", "--", "true"); r.code != 0 { // makes the file
		t.Fatalf("run: %+v", r)
	}
	if r := b.run("review", "job"); r.code != 64 || !strings.Contains(r.err, "nothing of any other") {
		t.Errorf("of nothing: %+v", r)
	}
	if r := b.run("run", "job", "--", "true"); r.code != 0 {
		t.Fatalf("run: %+v", r)
	}
	if r := b.run("run", "job", "--double-run", "costly", "--ttl", "60s", "--", "true"); r.code != 0 {
		t.Fatalf("run: %+v", r)
	}
	if r := b.run("review"); r.code != 0 || r.out != "" || !strings.Contains(r.err, "1 lock reviewed, nothing to say") { // it is declared now
		t.Errorf("review: %+v", r)
	}
	if r := b.run("review", "--all"); r.code != 0 || r.out != "ok: job\n" {
		t.Errorf("review --all: %+v", r)
	}
	if r := b.run("review", "--all", "--json"); r.code != 0 || r.out != "{\"of\":\"job\"}\n" {
		t.Errorf("review --all --json: %+v", r)
	}
	for _, name := range []string{"-rf", "--json"} {
		if r := b.run("review", "--", name); r.code != 64 || !strings.Contains(r.err, "nothing is known of lock \""+name+"\"") || !strings.Contains(r.err, "it is of job") {
			t.Errorf("review -- %s: %+v", name, r)
		}
	}
	if r := b.run("review", "--", "job"); r.code != 0 || !strings.Contains(r.out, "lock job") {
		t.Errorf("review -- job: %+v", r)
	}
}

// TestNotReentrant runs holdlock inside of holdlock: waiting would be for ever.
func TestNotReentrant(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	for _, wait := range []string{"30s", "forever"} {
		r := b.run("run", "job", "--", holdlockPath, "run", "job", "--wait", wait, "--", "true")
		if r.code != 75 {
			t.Errorf("--wait %s: %+v, want 75", wait, r)
		}
		contains(t, "the skip", r.err, "not re-entrant")
	}
	if r := b.run("run", "job", "--", holdlockPath, "run", "job/1", "--wait", "30s", "--", "echo", "in"); r.code != 0 || r.out != "in\n" {
		t.Errorf("another key: %+v", r)
	}
	if r := b.run("review", "job"); !strings.Contains(r.out, "2 of 6 attempts met another holder") {
		t.Errorf("review: %+v", r)
	}
}

// TestReviewAfterAnOutage has commands come and go while the store is away. When it is back, the next one tells what they had to say.
func TestReviewAfterAnOutage(t *testing.T) {
	t.Parallel()
	p := testenv.StartPostgres(t)
	for kind, store := range map[string]struct {
		url        string
		down, back func(t *testing.T)
	}{
		"redis": func() (s struct {
			url        string
			down, back func(t *testing.T)
		},
		) {
			r := testenv.StartRedis(t, "--appendonly", "yes", "--appendfsync", "always")
			s.url, s.down, s.back = "redis://"+r.Addr, func(*testing.T) { r.Kill() }, func(t *testing.T) { r.Restart(t) }
			return s
		}(),
		"postgres": {p.URL(), func(t *testing.T) { p.Stop(t) }, func(t *testing.T) { p.Start(t) }}, // it connects when it is opened
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			b.onRedis(store.url)
			if kind == "postgres" {
				if r := b.run("migrate"); r.code != 0 {
					t.Fatalf("migrate: %+v", r)
				}
			}
			cut, _ := b.holder("job", "--ttl", "10s", "--double-run", "costly")
			store.down(t)
			if r := cut.wait(); r.code != 70 {
				t.Errorf("the run that was cut off: %+v, want 70", r)
			}
			for range 4 {
				if r := b.run("run", "job", "--timeout", "1s", "--double-run", "costly", "--", "true"); r.code != 69 {
					t.Errorf("a run while the store is away: %+v, want 69", r)
				}
			}
			store.back(t)
			if r := b.run("run", "job", "--wait", "30s", "--double-run", "costly", "--", "true"); r.code != 0 {
				t.Errorf("the next run: %+v", r)
			}
			r := b.run("review", "job", "--fail-on", "error")
			if r.code != 1 {
				t.Errorf("review: %+v, want 1", r)
			}
			contains(t, "review", r.out, "4 attempts did not run because the store failed, of 6", "1 lease was lost while the work ran, of 2 (1 unreachable)")
		})
	}
}

// TestReviewOfAQuorum counts in another store, because a quorum keeps no records, and says so if there is none.
func TestReviewOfAQuorum(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	var nodes []string
	for range 3 {
		nodes = append(nodes, "redis://"+testenv.StartRedis(t).Addr)
	}
	b.onRedis(strings.Join(nodes, " "))
	if r := b.run("quorum", "init"); r.code != 0 {
		t.Fatalf("quorum init: %+v", r)
	}
	r := b.run("review")
	if r.code != 64 {
		t.Errorf("review: %+v, want 64", r)
	}
	contains(t, "review", r.err, "--ledger", "HOLDLOCK_LEDGER", "ledger.Options.Store")
	for range 2 {
		if r := b.run("run", "job", "--ledger", nodes[0], "--", "true"); r.code != 0 {
			t.Fatalf("run: %+v", r)
		}
	}
	if r := b.run("review", "--ledger", nodes[0], "job"); r.code != 0 || !strings.Contains(r.out, "none of 2 attempts") {
		t.Errorf("review: %+v", r)
	}
	if r := b.run("run", "job", "--ledger", "what", "--", "true"); r.code != 64 || !strings.Contains(r.err, "--ledger") {
		t.Errorf("a bad --ledger: %+v, want 64", r)
	}
}

// TestReviewOfMaxHold has the guard end a command in time: its lease is not lost, and yet its run was cut off.
func TestReviewOfMaxHold(t *testing.T) {
	t.Parallel()
	b := newBox(t)
	if r := b.run("run", "job", "--ttl", "8s", "--max-hold", "8s", "--", "sleep", "600"); r.code != 70 {
		t.Errorf("run: %+v, want 70", r)
	}
	if r := b.run("review", "job"); !strings.Contains(r.out, "1 run was cut off at MaxHold, 8 s") {
		t.Errorf("review: %+v", r)
	}
}

// TestReviewOfOccupiedKeys finds keys of another program where the usage of a day should be.
func TestReviewOfOccupiedKeys(t *testing.T) {
	t.Parallel()
	server := testenv.StartRedis(t)
	b := newBox(t)
	b.onRedis("redis://" + server.Addr)
	if r := b.run("run", "job", "--double-run", "costly", "--", "true"); r.code != 0 {
		t.Fatalf("run: %+v", r)
	}
	yesterday := fmt.Sprintf("holdlock:{usage:%d}", driver.DayOf(time.Now())-1)
	server.Do(t, "SET", yesterday, "what")
	r := b.run("review", "job")
	if r.code != 65 || !strings.Contains(r.out, "the only attempt in") {
		t.Errorf("review: %+v, want 65 and the sheet of what can be read", r)
	}
	contains(t, "review", r.err, yesterday, "RENAME", "incomplete")
	server.Do(t, "DEL", yesterday)
	if r := b.run("review", "job"); r.code != 0 || strings.Contains(r.err, "left out") {
		t.Errorf("review after it is gone: %+v", r)
	}
}

// TestReviewOfANewerLedger leaves out what a newer release has written, says so, and says that the rest is not all.
func TestReviewOfANewerLedger(t *testing.T) {
	t.Parallel()
	server, p := testenv.StartRedis(t), testenv.SharedPostgres(t)
	for name, open := range map[string]func(b *box) (driver.Ledger, func() error, error){
		"sqlite": func(b *box) (driver.Ledger, func() error, error) {
			d, err := sqlitehold.NewDriver(b.db, nil)
			return d, d.Close, err
		},
		"redis": func(b *box) (driver.Ledger, func() error, error) {
			b.onRedis("redis://" + server.Addr)
			c := redis.NewClient(&redis.Options{Addr: server.Addr, ContextTimeoutEnabled: true})
			d, err := redishold.NewDriver(c, nil)
			return d, func() error { return errors.Join(d.Close(), c.Close()) }, err
		},
		"postgres": func(b *box) (driver.Ledger, func() error, error) {
			schema := fmt.Sprint("newer", time.Now().UnixNano()) // the server is there for more than one run of the test
			b.onPostgres(p, p.URL(), schema)
			d, err := pghold.NewLeaseDriver(b.t.Context(), p.URL(), &pghold.LeaseOptions{Schema: schema})
			return d, d.Close, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t)
			if name == "sqlite" { // the command makes the file
				b.run("run", "old", "--", "true")
			}
			l, closeIt, err := open(b)
			if err != nil {
				t.Fatal(err)
			}
			defer closeIt()
			for _, lock := range []string{"new", "known"} {
				if r := b.run("run", lock, "--double-run", "costly", "--", "true"); r.code != 0 {
					t.Fatalf("run: %+v", r)
				}
			}
			for _, day := range []driver.Day{0, driver.DayOf(time.Now())} {
				if err := l.UpdateRecords(t.Context(), day, []string{"new"}, func(string, []byte) []byte { return []byte{99, 1} }); err != nil {
					t.Fatal(err)
				}
			}
			if r := b.run("review", "known"); r.code != 0 || r.err != "" && strings.Contains(r.err, "left out") || !strings.Contains(r.out, "the only attempt in") {
				t.Errorf("review of a lock whose records are fine: %+v", r)
			}
			r := b.run("review", "new")
			if r.code != 65 || strings.Contains(strings.ToLower(r.out), "not used") || !strings.Contains(r.out, "Unknown: no attempt in 1 day; some of its records could not be read") {
				t.Errorf("review of the other: %+v, want 65 and that it is not known", r)
			}
			contains(t, "review", r.err, "lock new on ", "newer holdlock", "incomplete")
			if r = b.run("review", "--all"); r.code != 65 || !strings.Contains(r.out, "unknown: new: ") || strings.Contains(r.out, "ok: new") || !strings.Contains(r.out, "ok: known") {
				t.Errorf("review of all: %+v", r)
			}
			if r = b.run("review", "--all", "--json"); !strings.Contains(r.out, `{"of":"new","unknown":true}`) || !strings.Contains(r.out, `{"of":"known"}`) {
				t.Errorf("review of all: %+v", r)
			}
			if r := b.run("run", "new", "--", "echo", "ran"); r.code != 0 || r.out != "ran\n" || r.err != "" {
				t.Errorf("no lock depends on its record: %+v", r)
			}
		})
	}
}
