//go:build unix

package riverlock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
)

// tooOften returns the River jobs that were put off more than twice a second since they were inserted, and once; by the records of River
// and the clock of its database.
func (r *rig) tooOften() []string {
	r.t.Helper()
	rows, err := r.pool.Query(context.Background(), `SELECT id, n, s FROM (
		SELECT id, coalesce((metadata ->> 'snoozes')::int, 0) AS n,
			extract(epoch FROM coalesce(finalized_at, clock_timestamp()) - created_at)::float8 AS s
		FROM river_job) j WHERE n > 1 + 2 * s ORDER BY id`)
	if err != nil {
		r.t.Fatal(err)
	}
	wrong, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (string, error) {
		var id, n int
		var seconds float64
		err := row.Scan(&id, &n, &seconds)
		return fmt.Sprintf("River job %d %d times in %.2f s", id, n, seconds), err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return wrong
}

// deliveries is how often River has handed out a job: it notes to whom, each time.
func (r *rig) deliveries(id int64) int {
	r.t.Helper()
	return r.number(`SELECT coalesce(cardinality(attempted_by), 0) FROM river_job WHERE id = $1`, id)
}

// twins runs a job until its duplicate has been put off so many times, or too often, and returns what was too often.
func twins(t *testing.T, r *rig, m rivertype.WorkerMiddleware, times int) (wrong []string) {
	t.Helper()
	begun, finish := make(chan struct{}, 2), make(chan struct{})
	r.works(m, func(ctx context.Context, job *river.Job[args]) error {
		begun <- struct{}{}
		select {
		case <-finish:
			return r.pay(ctx, job.Args.Job)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	opts := &river.InsertOpts{MaxAttempts: 1}
	first := r.insert(args{Job: "a", N: 1}, opts)
	<-begun
	second := r.insert(args{Job: "a", N: 2}, opts)
	begin := time.Now()
	r.eventually(fmt.Sprintf("the duplicate is put off %d times", times), func() bool {
		wrong = append(wrong, r.tooOften()...)
		return len(wrong) > 0 || r.snoozes(second) >= times
	})
	// One delivery may not have been put off yet.
	n, delivered := r.snoozes(second), r.deliveries(second)
	t.Logf("put off %d times and delivered %d times while its twin ran for %.1f s", n, delivered, time.Since(begin).Seconds())
	if delivered < n {
		t.Errorf("delivered %d times and put off %d times", delivered, n)
	}
	close(finish)
	r.is(first, rivertype.JobStateCompleted)
	if row := r.is(second, rivertype.JobStateCompleted); row.Attempt != 1 || len(row.Errors) > 0 || r.paid("a") != 1 {
		t.Errorf("the duplicate: attempt %d, errors %+v; paid %d times", row.Attempt, row.Errors, r.paid("a"))
	}
	return wrong
}

// A duplicate comes back at most twice a second while its twin runs, also with the shortest times that are allowed. Without the pause it
// comes back more often than that.
func TestARunningTwinComesBackTwiceASecond(t *testing.T) {
	t.Parallel()
	const times = 7 // so the twin runs for three seconds at least
	for _, off := range []bool{false, true} {
		judge := func(t *testing.T, wrong []string) {
			t.Helper()
			if (len(wrong) > 0) != off {
				t.Errorf("with the pause switched off: %v; too often: %v", off, wrong)
			}
		}
		name, enough := "paused", times
		if off {
			name, enough = "control", 1<<30 // until it is seen
		}
		t.Run("tx/"+name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			m := r.inTx(InTxOptions{Again: minAgain, Wait: 10 * time.Millisecond})
			if off {
				m.(*inTxMiddleware).opts.Again = 0
			}
			judge(t, twins(t, r, m, enough))
		})
		t.Run("lease/"+name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			_, l := r.leases()
			m := r.once(l, OnceOptions{Again: minAgain})
			if off {
				m.(*onceMiddleware).opts.Again = 0
			}
			judge(t, twins(t, r, m, enough))
		})
	}
}
