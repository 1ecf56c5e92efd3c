package watermillonce_test

import (
	"context"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdlock/holdlock/internal/testenv"
	"github.com/holdlock/holdlock/pghold"
)

// patience is for what must happen, on a machine that may be busy.
const patience = 3 * time.Minute

// servers are a broker, a Redis, and a PostgreSQL with a table for effects.
func servers(t *testing.T) settings {
	t.Helper()
	pg := testenv.StartPostgres(t)
	t.Cleanup(testenv.End)
	conn, err := pgx.Connect(t.Context(), pg.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	if err := pghold.Migrate(t.Context(), conn, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Exec(t.Context(), "CREATE TABLE effects (job text, pid int)"); err != nil {
		t.Fatal(err)
	}
	return settings{
		Broker: testenv.StartRabbitMQ(t).URL(), Redis: testenv.StartRedis(t).Addr, Postgres: pg.URL(),
		Handlers: 6, CutAt: 10 * time.Millisecond, Job: 20 * time.Millisecond, After: 5 * time.Millisecond, Cut: 20, TTL: 2 * time.Second,
	}
}

func TestRabbitMQ(t *testing.T) {
	s := servers(t)
	t.Run("each job runs once", func(t *testing.T) { t.Parallel(); deliverTwice(t, s, 400, 3, 1, patience) })
	t.Run("in transaction", func(t *testing.T) { t.Parallel(); deliverTwiceInTransaction(t, s, 300, 3, patience) })
	t.Run("twin dies", func(t *testing.T) { t.Parallel(); twinDies(t, s) })
	t.Run("retries", func(t *testing.T) { t.Parallel(); retries(t, s) })
	t.Run("cut publishers", func(t *testing.T) { t.Parallel(); cutPublishers(t, s) })
}

// play publishes each job twice, kills and pauses workers while they are at work, and returns the diary when all is settled.
func play(t *testing.T, s settings, jobs []string, kills, pauses int, within time.Duration) (*fleet, []entry) {
	t.Helper()
	f := newFleet(t, s)
	const workers = 4
	var alive []*child
	for range workers {
		alive = append(alive, f.start())
	}
	// A worker that is stopped while it subscribes takes messages in the seats that it has, both copies of a job too.
	f.allReady()
	// So many at a time that there is something to do while there is somebody to stop.
	chunk := len(jobs)/(2*(kills+pauses)+2) + 1
	published := 0
	for round := 0; published < len(jobs); round++ {
		if kills+pauses == 0 {
			chunk = len(jobs)
		}
		next := min(len(jobs), published+chunk)
		f.publish(jobs[published:next], 2)
		published = next
		i := round % workers
		switch {
		case pauses > 0:
			f.atWork(alive[i])
			if f.pauseAtWork(alive[i]) {
				pauses--
			}
		case kills > 0:
			f.atWork(alive[i])
			time.Sleep(rand.N(30 * time.Millisecond)) // the fault's moment, not a wait for a result
			f.kill(alive[i])
			kills--
			alive[i] = f.start()
		}
	}
	f.settled(jobs, 2, within)
	f.stop()
	return f, readDiary(t, f.settings.Dir)
}

// least is how many of so many kills have to hit a run, for the test to show something: of a few a single one.
func least(kills int) int { return max(1, kills-4) }

// pauseAtWork stops a worker until a successor has told of its lapse. It is false if the worker had no run that must lapse.
func (f *fleet) pauseAtWork(c *child) bool {
	f.t.Helper()
	f.pause(c)
	defer func() { _ = c.cmd.Process.Signal(syscall.SIGCONT) }()
	open := map[string]bool{} // jobs that it has begun, and that have not taken effect, so that nothing is recorded
	for _, e := range readDiary(f.t, f.settings.Dir) {
		switch {
		case e.pid == c.cmd.Process.Pid && e.kind == began:
			open[e.job] = true
		case e.pid == c.cmd.Process.Pid && e.kind == effect:
			delete(open, e.job)
		}
	}
	if len(open) == 0 {
		return false
	}
	f.paused[c.cmd.Process.Pid] = true
	f.see("a successor tells of the lapse of the paused worker", patience, func(entries []entry) bool {
		for _, e := range entries {
			if e.kind == rerun && e.pid != c.cmd.Process.Pid && open[e.job] {
				return true
			}
		}
		return false
	})
	return true
}

// Each job is published twice, connections are cut and workers are killed and paused at work: its effect is there once, apart from
// lapses between effect and record, which are told by the successors; and a running twin comes back at most twice a second.
func deliverTwice(t *testing.T, s settings, n, kills, pauses int, within time.Duration) {
	s.Mode = "once"
	if pauses > 0 { // a worker that is stopped may have both copies of each job that it is at; only the broker can take them from it
		s.Heartbeat = 10 * time.Second
	}
	jobs := jobNames(n)
	begin := time.Now()
	f, entries := play(t, s, jobs, kills, pauses, within)
	v := judge(entries, jobs, f.dead)
	for _, w := range v.wrong {
		t.Error(w)
	}
	soon, shortest := tooSoon(entries)
	at := interrupted(entries, f.dead)
	t.Logf("%d messages twice in %.1f s, %d connections cut, %d workers killed, %d of these at work, %d paused: %d effects; %d runs told to follow a lapse, "+
		"%d of these a lapse between effect and record; %d times a copy came back later, after %s at least",
		n, time.Since(begin).Seconds(), count(entries, cut), len(f.dead), at, len(f.paused), v.effects, v.reruns, v.between, count(entries, later), shortest)
	if soon > 0 {
		t.Errorf("%d times a copy whose twin was at work came back sooner than twice a second", soon)
	}
	if at < least(kills) || v.reruns == 0 || count(entries, later) < n/10 || count(entries, cut) < n/s.Cut/2 {
		t.Error("too tame to show anything")
	}
	if left := f.left(); left > 0 {
		t.Errorf("%d messages are left", left)
	}
}

// With the record in the transaction of the effect each effect is there once, whoever is killed when.
func deliverTwiceInTransaction(t *testing.T, s settings, n, kills int, within time.Duration) {
	db, err := pgxpool.New(t.Context(), s.Postgres)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	s.Mode = "in transaction"
	jobs := jobNames(n)
	begin := time.Now()
	f, entries := play(t, s, jobs, kills, 0, within)
	var rows, distinct int
	if err := db.QueryRow(t.Context(), "SELECT count(*), count(DISTINCT job) FROM effects").Scan(&rows, &distinct); err != nil {
		t.Fatal(err)
	}
	soon, shortest := tooSoon(entries)
	at := interrupted(entries, f.dead)
	t.Logf("%d messages twice in %.1f s, %d connections cut, %d workers killed, %d of these at work: %d effects of %d jobs; runs begun: %d; %d times a copy came back later, after %s at least",
		n, time.Since(begin).Seconds(), count(entries, cut), len(f.dead), at, rows, distinct, count(entries, began), count(entries, later), shortest)
	if rows != n || distinct != n {
		t.Errorf("%d effects of %d jobs, want %d of %[3]d", rows, distinct, n)
	}
	if soon > 0 {
		t.Errorf("%d times a copy whose twin was at work came back sooner than twice a second", soon)
	}
	if at < least(kills) || count(entries, later) == 0 {
		t.Error("too tame to show anything")
	}

	// The control: without the record each copy takes effect.
	s.Mode, s.Cut = "nothing", 0
	naive := newFleet(t, s)
	naive.start()
	naive.publish(jobNames(5), 2)
	if entries := naive.settled(jobNames(5), 2, patience); count(entries, effect) < 10 {
		t.Errorf("without the middleware %d effects of 5 jobs", count(entries, effect))
	}
	naive.stop()
}

// A connection is cut while its job runs, so that the broker delivers the message again to another worker; then the first one dies. The job still
// runs. Who skips it because a twin is at work, loses it.
func twinDies(t *testing.T, s settings) {
	for _, mode := range []string{"once", "skip"} {
		s := s
		s.Mode, s.Handlers, s.Cut, s.TTL = mode, 1, 1, 5*time.Second
		s.Job, s.CutAt = time.Minute, 100*time.Millisecond
		f := newFleet(t, s)
		first := f.start()
		f.publish([]string{"1"}, 1)
		f.see("the first worker's connection is cut", patience, func(entries []entry) bool { return count(entries, cut) == 1 })
		f.settings.Job, f.settings.Cut = 20*time.Millisecond, 0
		f.start()
		f.see("the copy has met its twin", patience, func(entries []entry) bool { return count(entries, later) > 0 })
		f.kill(first)
		if mode == "skip" {
			entries := f.settled([]string{"1"}, 1, patience)
			f.stop()
			if left := f.left(); left != 0 || count(entries, effect) != 0 {
				t.Errorf("the naive twin: %d messages left, %d effects: it shows nothing", left, count(entries, effect))
			}
			continue
		}
		entries := f.settled([]string{"1"}, 1, patience)
		f.stop()
		for _, w := range judge(entries, []string{"1"}, f.dead).wrong {
			t.Error(w)
		}
		if count(entries, effect) != 1 || count(entries, rerun) != 1 {
			t.Errorf("%d effects, %d reruns told", count(entries, effect), count(entries, rerun))
		}
	}
}

// A queue that delivers again twice at most, and a twin that runs until the copy has come back more often than that: the copy uses none of that
// up, and comes at most twice a second. One that is given back to the broker comes back at once, and is thrown away, or comes hundreds of times
// if there is no limit.
func retries(t *testing.T, s settings) {
	for _, mode := range []string{"once", "spin", "spin without end"} {
		s := s
		s.Mode, s.Handlers, s.Cut, s.Retries, s.Gate = mode, 2, 0, 2, filepath.Join(t.TempDir(), "end")
		if mode == "spin without end" {
			s.Mode, s.Retries = "spin", 0
		}
		f := newFleet(t, s)
		f.start()
		f.publish([]string{"1"}, 2)
		if s.Retries == 0 {
			f.see("the naive twin comes too often", patience, func(entries []entry) bool { return len(tooOften(entries)) > 0 })
			endAt(t, s.Gate)
			f.stop()
			continue
		}
		f.see("the copy has come back as often as it can", patience, func(entries []entry) bool {
			return count(entries, later) >= map[string]int{"once": 2 + s.Retries, "spin": 1 + s.Retries}[mode]
		})
		endAt(t, s.Gate)
		acks := map[string]int{"once": 2, "spin": 1}[mode]
		entries := f.see("all that can be is acknowledged", patience, func(entries []entry) bool { return count(entries, acked) == acks })
		soon, shortest := tooSoon(entries)
		often := tooOften(entries)
		f.stop()
		switch {
		case mode == "once" && (soon > 0 || len(often) > 0 || count(entries, effect) != 1):
			t.Errorf("%d times too soon, after %s; too often: %v; %d times later, %d effects", soon, shortest, often, count(entries, later), count(entries, effect))
		case mode == "spin" && (count(entries, later) != 1+s.Retries || f.left() != 0):
			t.Errorf("the naive twin: it came back %d times, %d messages left: it shows nothing", count(entries, later), f.left())
		}
	}
}

// endAt lets the jobs of a gate end.
func endAt(t *testing.T, gate string) {
	t.Helper()
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// What sends messages to come back outlives its connection, also if several handlers do at the same moment.
func cutPublishers(t *testing.T, s settings) {
	s.Mode = "publish"
	f := newFleet(t, s)
	c := f.start()
	select {
	case <-c.done:
		if c.err != nil {
			t.Error(c.words())
		}
	case <-time.After(patience):
		t.Errorf("it does not end; %s", c.words())
	}
}
