//go:build unix

package asynqonce

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
	"github.com/holdlock/holdlock/once"
)

// Workers are processes, so that they can be killed. They write what happens into a diary that all append to, one line at a
// time, each written by one call, so that lines of processes that are killed are whole or not there.

// work is a worker. ASYNQONCE_MODE is "once", or "naive" for a middleware as it is done wrong.
func work(dir string) {
	diary, err := os.OpenFile(filepath.Join(dir, "diary"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		panic(err)
	}
	note := func(format string, args ...any) {
		if _, err := fmt.Fprintf(diary, format+" %d\n", append(args, os.Getpid())...); err != nil {
			panic(err)
		}
	}
	addr := os.Getenv("ASYNQONCE_REDIS")
	cfg := quick()
	cfg.Concurrency = 4
	locks, end := openLocks(addr, observer(func(e holdlock.Event) {
		if e.Kind == holdlock.Rerun {
			note("told %s %d", e.Key, e.Job.Runs)
		}
	}))
	defer end()
	ttl, err := time.ParseDuration(os.Getenv("ASYNQONCE_TTL"))
	if err != nil {
		panic(err)
	}
	takes := 20 * time.Millisecond
	handle := asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		job, run := string(t.Payload()), runOf(ctx, locks, string(t.Payload()))
		note("run %s %d", job, run)
		if _, err := os.Stat(filepath.Join(dir, "hold")); err == nil { // until it is killed
			<-ctx.Done()
			return ctx.Err()
		}
		for i := range 2 {
			select {
			case <-time.After(takes / 2):
			case <-ctx.Done():
				return ctx.Err()
			}
			if i == 0 {
				note("effect %s %d", job, run)
			}
		}
		return nil
	})
	mux := asynq.NewServeMux()
	if os.Getenv("ASYNQONCE_MODE") == "naive" {
		rdb := redis.NewClient(&redis.Options{Addr: addr})
		mux.Use(naive{rdb}.middleware)
	} else {
		jobs, err := New(locks, &cfg, &Options{
			Name: "job", Redis: asynq.RedisClientOpt{Addr: addr}, Key: func(t *asynq.Task) (string, error) { return string(t.Payload()), nil },
			Lock: holdlock.LockOptions{TTL: ttl},
		})
		if err != nil {
			panic(err)
		}
		mux.Use(jobs.Middleware)
	}
	mux.Use(func(next asynq.Handler) asynq.Handler { return next })
	mux.Handle(kind, handle)
	if err := asynq.NewServer(asynq.RedisClientOpt{Addr: addr}, cfg).Run(mux); err != nil {
		panic(err)
	}
}

type observer func(holdlock.Event)

// Observe implements holdlock.Observer.
func (o observer) Observe(e holdlock.Event) { o(e) }

// runOf is the number of the run, as the store has it.
func runOf(ctx context.Context, locks *holdlock.Client, job string) int {
	if once.KeyFrom(ctx) == "" {
		return 1 // naive
	}
	info, _, err := locks.Job(ctx, "job", job)
	if err != nil {
		return 0
	}
	return info.Job.Runs
}

// naive is the middleware of three lines: it takes "somebody has begun" for "it is done".
type naive struct{ rdb *redis.Client }

func (n naive) middleware(next asynq.Handler) asynq.Handler {
	return asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		key := "naive:" + string(t.Payload())
		first, err := n.rdb.SetNX(ctx, key, "begun", time.Hour).Result()
		if err != nil || !first {
			return err
		}
		if err := next.ProcessTask(ctx, t); err != nil {
			n.rdb.Del(ctx, key)
			return err
		}
		return nil
	})
}

// A crew is a bench with worker processes.
type crew struct {
	*bench
	dir, mode string
	ttl       time.Duration
	workers   []*exec.Cmd
}

func startCrew(t *testing.T, mode string, n int) *crew {
	t.Helper()
	c := &crew{bench: start(t), dir: t.TempDir(), mode: mode, ttl: 2 * time.Second, workers: make([]*exec.Cmd, n)}
	c.write("diary")
	return c
}

func (c *crew) write(name string) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, name), nil, 0o600); err != nil {
		c.t.Fatal(err)
	}
}

func (c *crew) hire(i int) {
	c.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "ASYNQONCE_WORKER="+c.dir, "ASYNQONCE_REDIS="+c.redis.Addr, "ASYNQONCE_MODE="+c.mode, "ASYNQONCE_TTL="+c.ttl.String())
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.workers[i] = cmd
	c.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
}

// kill ends a worker and waits until it has ended.
func (c *crew) kill(i int) {
	_ = c.workers[i].Process.Kill()
	_ = c.workers[i].Wait()
}

// retire lets the workers go home.
func (c *crew) retire() {
	for _, w := range c.workers {
		_ = w.Process.Signal(syscall.SIGTERM)
		_ = w.Wait()
	}
}

// entry is one line of the diary.
type entry struct {
	what, job string
	run, pid  int
}

func (c *crew) diary() (all []entry) {
	c.t.Helper()
	text, err := os.ReadFile(filepath.Join(c.dir, "diary"))
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var e entry
		if _, err := fmt.Sscanf(line, "%s %s %d %d\n", &e.what, &e.job, &e.run, &e.pid); err != nil {
			c.t.Fatalf("%q: %v", line, err)
		}
		all = append(all, e)
	}
	return all
}

func (c *crew) count(what, job string) (n int) {
	for _, e := range c.diary() {
		if e.what == what && e.job == job {
			n++
		}
	}
	return n
}

// atWork waits until worker i has begun one more run, and says whether it did.
func (c *crew) atWork(i int) bool {
	at, err := os.Stat(filepath.Join(c.dir, "diary"))
	if err != nil {
		c.t.Fatal(err)
	}
	for give := time.Now().Add(2 * time.Second); time.Now().Before(give); time.Sleep(time.Millisecond) {
		f, err := os.Open(filepath.Join(c.dir, "diary"))
		if err != nil {
			c.t.Fatal(err)
		}
		text, _ := io.ReadAll(io.NewSectionReader(f, at.Size(), 1<<30))
		_ = f.Close()
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "run ") && strings.HasSuffix(line, " "+strconv.Itoa(c.workers[i].Process.Pid)+"\n") {
				return true
			}
		}
	}
	return false
}

// forget makes asynq believe that the leases of all tasks ran out long ago, so that the next worker that starts takes them
// back at once. Nobody may be at work.
func (c *crew) forget() {
	c.t.Helper()
	const leases = "asynq:{default}:lease"
	for id := range strings.Lines(c.redis.Do(c.t, "ZRANGE", leases, "0", "-1")) {
		c.redis.Do(c.t, "ZADD", leases, "XX", "1", strings.TrimSpace(id))
	}
}

// A duplicate arrives while its twin runs, and the twin then dies. The job still runs. With a naive middleware the duplicate
// is acknowledged while its twin runs, and the job is lost. If the duplicate has no retries and less time than its twin's lease lasts, asynq
// would archive it while it waits.
func TestTheTwinDies(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"once", "short", "naive"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := startCrew(t, mode, 2)
			var opts []asynq.Option
			if mode == "short" {
				c.ttl, opts = 9*time.Second, []asynq.Option{asynq.MaxRetry(0), asynq.Timeout(4 * time.Second)}
			}
			c.write("hold")
			c.hire(0)
			c.enqueue("j")
			testenv.Eventually(t, "it runs", func() bool { return c.count("run", "j") == 1 })
			twin := c.enqueue("j", opts...)
			if err := os.Remove(filepath.Join(c.dir, "hold")); err != nil {
				t.Fatal(err)
			}
			c.hire(1)
			testenv.Eventually(t, "the duplicate was delivered", func() bool {
				info, err := c.look.GetTaskInfo("default", twin.ID)
				if mode != "once" {
					return err != nil // acknowledged, or enqueued anew
				}
				return err == nil && info.LastErr != ""
			})
			if n := c.count("run", "j"); n != 1 {
				t.Fatalf("%d runs at a time", n)
			}
			c.kill(0)
			if mode != "naive" {
				testenv.Eventually(t, "the duplicate runs", func() bool { return c.count("effect", "j") == 1 })
				testenv.Eventually(t, "the duplicate is done", func() bool {
					_, err := c.look.GetTaskInfo("default", twin.ID)
					q := c.left()
					return err != nil && q.Scheduled+q.Pending == 0 && q.Active == 1 // which is that of the dead
				})
				if c.count("told", "j") != 1 {
					t.Error("nobody was told of the lapse")
				}
			}
			// What asynq still has of the dead worker comes back as well.
			c.kill(1)
			c.forget()
			c.hire(0)
			c.drained(0)
			want := 1
			if mode == "naive" {
				want = 0 // or the test tells nothing
			}
			if n := c.count("effect", "j"); n != want {
				t.Errorf("the effect is there %d times, want %d", n, want)
			}
			c.kill(0)
		})
	}
}

// Tasks published twice, workers killed at work: each job has its effect once, but for kills between effect and record;
// these are counted, and each of them was told. Nothing is lost and all tasks are acknowledged.
func TestKills(t *testing.T) {
	t.Parallel()
	c := startCrew(t, "once", 4)
	kills(c, 200, 8)
}

func kills(c *crew, jobs, least int) {
	t := c.t
	t.Helper()
	for i := range c.workers {
		c.hire(i)
	}
	killed, sent := 0, 0
	send := func(n int) { // some at a time, so that there is work whenever somebody is killed
		for range n {
			for range 2 {
				c.enqueue(fmt.Sprint("j", sent))
			}
			sent++
		}
	}
	for round := 0; killed < least; round++ {
		send(jobs/least + 1)
		i := round % len(c.workers)
		if !c.atWork(i) {
			continue // the others were quicker
		}
		time.Sleep(rand.N(25 * time.Millisecond)) // the fault's moment, not a wait for a result
		c.kill(i)
		killed++
		c.hire(i)
	}
	jobs = sent
	// What the killed were at is asynq's to hand out again, when its own leases have run out: that is shortened here.
	testenv.Eventually(t, "only tasks of the killed are left", func() bool {
		q := c.left()
		return q.Pending+q.Retry+q.Scheduled == 0
	})
	for i := range c.workers {
		c.kill(i)
	}
	c.forget()
	for i := range c.workers {
		c.hire(i)
	}
	c.drained(0)
	c.retire()
	c.judge(jobs, killed)
}

// judge compares the diary with the records.
func (c *crew) judge(jobs, killed int) {
	t := c.t
	t.Helper()
	type run struct {
		job string
		run int
	}
	seen := map[string]map[run]int{"run": {}, "effect": {}, "told": {}}
	for _, e := range c.diary() {
		seen[e.what][run{e.job, e.run}]++
	}
	effects, lapses, between := 0, 0, 0
	for i := range jobs {
		job := fmt.Sprint("j", i)
		info, ok, err := c.locks.Job(t.Context(), "job", job)
		if err != nil || !ok || info.Job.State != driver.JobDone || info.Job.Runs != info.Job.Lapses+1 {
			t.Errorf("%s: %+v, %v, %v", job, info.Job, ok, err)
			continue
		}
		mine, last := 0, info.Job.Runs
		for n := 1; n <= last; n++ {
			r := run{job, n}
			mine += seen["effect"][r]
			if seen["run"][r] > 1 || seen["effect"][r] > 1 {
				t.Errorf("%s: run %d is there %d times, its effect %d times", job, n, seen["run"][r], seen["effect"][r])
			}
			if n < last && seen["effect"][r] > 0 { // killed between effect and record
				between++
			}
			if (seen["told"][r] > 0) != (n > 1) && seen["run"][r] > 0 {
				t.Errorf("%s: run %d follows a lapse, and that was told %d times", job, n, seen["told"][r])
			}
		}
		if seen["effect"][run{job, last}] != 1 {
			t.Errorf("%s: the run that is recorded as done had its effect %d times", job, seen["effect"][run{job, last}])
		}
		effects, lapses = effects+mine, lapses+info.Job.Lapses
	}
	told := len(seen["told"])
	if effects-jobs != between {
		t.Errorf("%d effects too many, and %d kills between effect and record", effects-jobs, between)
	}
	if told > lapses || lapses < killed/4 {
		t.Errorf("%d kills, %d lapses, of which %d were told", killed, lapses, told)
	}
	t.Logf("%d jobs published twice, %d kills: %d runs lapsed, %d of them between effect and record; %d runs were told that they follow a lapse; %d effects",
		jobs, killed, lapses, between, told, effects)
}
