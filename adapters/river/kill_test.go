//go:build unix

package riverlock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
)

// killed delivers a job twice, kills the worker of the first delivery while the second one waits, and returns the second one and how
// often the effect is there once that one is acknowledged.
func killed(t *testing.T, r *rig, mode string, effects func() int) (second *rivertype.JobRow, n int) {
	t.Helper()
	once := &river.InsertOpts{MaxAttempts: 1} // as if retries had been used up
	first := r.start(mode)
	id := r.insert(args{Job: "twin", Hang: true, N: 1}, once)
	r.eventually("the first delivery is at work", func() bool { return len(r.lines("hangs")) == 1 })
	r.start(mode)
	twin := r.insert(args{Job: "twin", Hang: true, N: 2}, once)
	if mode == "naive" {
		second = r.is(twin, rivertype.JobStateCompleted)
		first.kill()
	} else {
		r.eventually("the second delivery was put off twice", func() bool { return r.snoozes(twin) >= 2 })
		if n := effects(); n != 0 {
			t.Errorf("the effect is there %d times while the first delivery stands still", n)
		}
		first.kill()
		second = r.is(twin, rivertype.JobStateCompleted)
	}
	if row := r.row(id); row.State != rivertype.JobStateRunning { // until River rescues it, and then it has no attempt left
		t.Errorf("the first delivery is %s", row.State)
	}
	return second, effects()
}

// A duplicate that comes while its twin runs is not acknowledged: the twin is killed, and the job runs. It has used up no attempt
// while it was put off, and has not come more often than twice a second.
func TestTheTwinDies(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"tx", "lease", "naive"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			effects := func() int { return r.count("effect")["twin"] + r.number("SELECT count(*) FROM ledger") }
			second, n := killed(t, r, mode, effects)
			if mode == "naive" {
				if n != 0 {
					t.Errorf("with a naive twin the effect is there %d times: this test cannot fail", n)
				}
				return
			}
			if n != 1 || second.Attempt != 1 || len(second.Errors) != 0 {
				t.Errorf("the effect is there %d times; the second delivery was attempt %d, with errors %+v", n, second.Attempt, second.Errors)
			}
			if wrong, off := r.tooSoon(); len(wrong) > 0 || off < 2 {
				t.Errorf("put off %d times, and for too short a time: %v", off, wrong)
			}
			if often := r.tooOften(); len(often) > 0 {
				t.Errorf("put off more than twice a second: %v", often)
			}
			if told := r.count("rerun")["twin"]; mode == "lease" && told != 1 {
				t.Errorf("%d runs after a lapse were told, want 1", told)
			}
		})
	}
}

// A storm is n jobs, each inserted twice, and workers that are killed while they are at work.
type storm struct {
	mode              string
	n, workers, kills int
	rescue            bool // by River itself, which takes a minute; otherwise the test does it at once
}

// run returns when all River jobs are completed, and how many workers were killed.
func (s storm) run(t *testing.T, r *rig) (killed int) {
	t.Helper()
	mode, n, workers, kills := s.mode, s.n, s.workers, s.kills
	var jobs []river.InsertManyParams
	for i := range 2 * n {
		jobs = append(jobs, river.InsertManyParams{Args: args{Job: fmt.Sprint(i / 2), N: i % 2}})
	}
	// A twin is near, as when a message is published twice, but others come in between.
	for i := range jobs {
		j := min(i+rand.IntN(8), len(jobs)-1)
		jobs[i], jobs[j] = jobs[j], jobs[i]
	}
	for begin := 0; begin < len(jobs); begin += 500 {
		if _, err := r.client.InsertMany(t.Context(), jobs[begin:min(begin+500, len(jobs))]); err != nil {
			t.Fatal(err)
		}
	}
	children := make([]*child, workers)
	for i := range children {
		children[i] = r.start(mode)
	}
	left := func() int { return r.number(`SELECT count(*) FROM river_job WHERE state <> 'completed'`) }
	for round := 0; killed < kills && left() > n/4; round++ {
		c := children[round%workers]
		before, pid := r.begun(c), strconv.Itoa(c.cmd.Process.Pid)
		r.eventually("worker "+pid+" is at work", func() bool { return c.ended() || r.begun(c) > before || left() == 0 })
		time.Sleep(rand.N(40 * time.Millisecond)) // the fault's moment, not a wait for a result
		if c.ended() {
			t.Fatal("a worker has ended by itself")
		}
		c.kill()
		killed++
		if !s.rescue {
			r.rescue(c)
		}
		children[round%workers] = r.start(mode)
	}
	r.eventually("all River jobs are completed", func() bool { return left() == 0 })
	for _, c := range children {
		r.stop(c)
	}
	return killed
}

// rescue makes what a killed worker had at hand available again, as River does in its own time.
func (r *rig) rescue(c *child) {
	r.t.Helper()
	rows, err := r.pool.Query(context.Background(), `UPDATE river_job SET state = 'available' WHERE state = 'running'
		AND attempted_by[array_upper(attempted_by, 1)] = $1 RETURNING id`, clientID(c.cmd.Process.Pid))
	if err != nil {
		r.t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		r.t.Fatal(err)
	}
	d, err := openDiary(r.dir)
	if err != nil {
		r.t.Fatal(err)
	}
	defer d.file.Close()
	for _, id := range ids { // that it had put one off may not have been written yet
		d.note("delivery", id, 0, "back")
	}
}

// begun is how many jobs a worker has begun.
func (r *rig) begun(c *child) (n int) {
	pid := strconv.Itoa(c.cmd.Process.Pid)
	for _, words := range r.lines("begin") {
		if words[1] == pid {
			n++
		}
	}
	return n
}

// notOnce returns how many of n jobs are not in the ledger exactly once.
func (r *rig) notOnce(n int) int {
	r.t.Helper()
	return r.number(`SELECT count(*) FROM (SELECT i FROM generate_series(0, $1 - 1) i LEFT JOIN ledger l ON l.job = i::text
		GROUP BY i HAVING count(l.job) <> 1) s`, n)
}

// inTransactions checks that each effect is there exactly once although workers are killed.
func inTransactions(t *testing.T, s storm) {
	r := newRig(t)
	s.mode = "tx"
	killed := s.run(t, r)
	wrong := r.notOnce(s.n)
	t.Logf("%d jobs, each inserted twice, %d workers, %d kills while they held: %d runs begun, %d effects, %d not exactly once",
		s.n, s.workers, killed, len(r.lines("begin")), r.number(`SELECT count(*) FROM ledger`), wrong)
	if wrong != 0 {
		t.Errorf("%d jobs are not in the ledger exactly once", wrong)
	}
	r.check(killed, s.kills)
}

// check checks what holds for every storm.
func (r *rig) check(killed, kills int) {
	r.t.Helper()
	if killed < kills {
		r.t.Errorf("%d workers were killed, want %d", killed, kills)
	}
	wrong, off := r.tooSoon()
	r.t.Logf("duplicates were put off %d times", off)
	if len(wrong) > 0 {
		r.t.Errorf("put off for too short a time: %v", wrong)
	}
	if often := r.tooOften(); len(often) > 0 {
		r.t.Errorf("put off more than twice a second: %v", often)
	}
}

// untold returns what is wrong with n jobs whose effect is in the diary: it is not there, or more often than runs were told to
// follow a lapse. extra is how often it is there too often, and told, how many such runs there were.
func (r *rig) untold(n int) (wrong []string, extra, reported int) {
	r.t.Helper()
	begun, effects, told := r.count("begin"), r.count("effect"), r.count("rerun")
	for i := range n {
		job := fmt.Sprint(i)
		switch e := effects[job]; {
		case e == 0:
			wrong = append(wrong, fmt.Sprintf("job %s was skipped and lost", job))
		case e > 1+told[job] || begun[job] > 1+told[job]:
			wrong = append(wrong, fmt.Sprintf("job %s: it was begun %d times and its effect is there %d times, after %d runs that were told to follow a lapse",
				job, begun[job], e, told[job]))
		}
		extra, reported = extra+effects[job]-1, reported+told[job]
	}
	return wrong, extra, reported
}

// underLeases checks that each effect is there, and no more often than was told.
func underLeases(t *testing.T, s storm) {
	r := newRig(t)
	s.mode = "lease"
	killed := s.run(t, r)
	wrong, extra, reported := r.untold(s.n)
	for _, w := range wrong {
		t.Error(w)
	}
	lapsed := r.number(`SELECT sum(lapses) FROM holdlock.job`)
	t.Logf("%d jobs, each inserted twice, %d workers, %d kills while they held: %d runs lapsed, %d were told by their successors; "+
		"%d effects too many, each of them told", s.n, s.workers, killed, lapsed, reported, extra)
	// A successor that is killed between its claim and its telling had no effect, and the next one tells again.
	if reported > lapsed || lapsed-reported > killed || lapsed < s.kills/2 {
		t.Errorf("%d runs lapsed by %d kills, and %d were told", lapsed, killed, reported)
	}
	r.check(killed, s.kills)
}

// The control: without a middleware each job is done twice, and both checks see it.
func TestWithoutTheMiddleware(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const n = 8
	storm{mode: "bare", n: n, workers: 1}.run(t, r)
	wrong, _, _ := r.untold(n)
	if len(wrong) != n || r.notOnce(n) != n {
		t.Errorf("of %d jobs that were done twice %d and %d were found", n, len(wrong), r.notOnce(n))
	}
}

func TestKillsInTransactions(t *testing.T) {
	t.Parallel()
	inTransactions(t, storm{n: 60, workers: 2, kills: 4})
}

func TestKillsUnderLeases(t *testing.T) {
	t.Parallel()
	underLeases(t, storm{n: 60, workers: 2, kills: 4})
}
