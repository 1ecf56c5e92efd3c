//go:build unix

package pghold

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// A server that stands still takes requests and answers nothing. The work must have ended before the key can pass on.
func TestLeaseFrozenServerEndsTheWorkInTime(t *testing.T) {
	t.Parallel()
	p := testenv.StartPostgres(t)
	schema := migrated(t, p)
	c := leaseClient(t, p.URL(), schema)
	well := mustTry(t, newLock(t, c, "well", time.Second))
	began := well.Deadline()
	testenv.Eventually(t, "a TTL and more has passed", func() bool { return well.Deadline().Sub(began) > 1500*time.Millisecond })
	if well.Err() != nil { // or the loss below tells nothing
		t.Fatalf("without a fault: %v", well.Err())
	}
	lease := mustTry(t, newLock(t, c, "k", 2*time.Second))
	p.Freeze(t)
	lostFor(t, lease, holdlock.LossUnreachable)
	trusted := lease.Deadline()
	p.Thaw(t)
	us, err := strconv.ParseInt(p.Do(t, inSchema(`SELECT "holdlock".us(expiry) FROM "holdlock".lease WHERE key = 'k'`, schema)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if left := time.UnixMicro(us).Sub(trusted); left < 100*time.Millisecond {
		t.Errorf("trust ended %v before the key was free, want at least half of the margin of 200 ms", left)
	}
	rival := leaseDriver(t, p.URL(), schema, LeaseOptions{})
	var g driver.Grant
	testenv.Eventually(t, "the key passes on", func() bool {
		g, err = rival.Acquire(testContext(t), leaseRequest("k", time.Minute))
		return err == nil
	})
	if g.Previous != driver.Lapsed || g.Token <= lease.Token() {
		t.Errorf("the successor has token %d after %d and is told %v", g.Token, lease.Token(), g.Previous)
	}
}

// A server that is killed and comes back knows every term that it has granted, and goes on where it was.
func TestLeaseSurvivesAKilledServer(t *testing.T) {
	t.Parallel()
	for _, logged := range []bool{true, false} { // a table that a crash empties forgets the term, or the test tells nothing
		p := testenv.StartPostgres(t, "synchronous_commit=on")
		schema := migrated(t, p)
		if !logged {
			p.Do(t, inSchema(`ALTER TABLE "holdlock".lease SET UNLOGGED`, schema))
		}
		lease := mustTry(t, newLock(t, leaseClient(t, p.URL(), schema), "k", time.Minute))
		var tokens [20]driver.Token
		d := leaseDriver(t, p.URL(), schema, LeaseOptions{})
		for i := range tokens {
			req := leaseRequest(strconv.Itoa(i), time.Minute)
			tokens[i] = mustGrant(t, d, req).Token
			mustRelease(t, d, req.Ref)
		}
		p.Restart(t)
		rival := leaseDriver(t, p.URL(), schema, LeaseOptions{})
		_, err := rival.Acquire(testContext(t), leaseRequest("k", time.Minute))
		if !logged {
			if err != nil {
				t.Errorf("the table was emptied, and yet the rival got %v: this test cannot fail", err)
			}
			continue
		}
		if !isHeld(err) {
			t.Errorf("after a restart the rival got %v", err)
		}
		for i, before := range tokens {
			if after := mustGrant(t, rival, leaseRequest(strconv.Itoa(i), time.Minute)).Token; after <= before {
				t.Errorf("token %d after %d", after, before)
			}
		}
		if err := lease.Release(testContext(t)); err != nil && !errors.Is(err, holdlock.ErrUnknown) {
			t.Errorf("Release: %v", err)
		}
	}
}

// A resource sees whether two are in it at the same time.
type resource struct {
	inside, visits, overlaps atomic.Int64
}

// use stays until the time is over or ctx ends.
func (r *resource) use(ctx context.Context, d time.Duration) {
	if r.inside.Add(1) > 1 {
		r.overlaps.Add(1)
	}
	defer r.inside.Add(-1)
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	r.visits.Add(1)
}

// storm ends backends at random until the test calls stop, which says how many.
func storm(t *testing.T, p *testenv.Postgres) (stop func() int64) {
	t.Helper()
	conn := connect(t, p.URL("application_name=storm"))
	ctx, cancel := context.WithCancel(t.Context())
	var ended atomic.Int64
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			tag, err := conn.Exec(context.Background(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE application_name = 'victim' ORDER BY random() LIMIT 1`)
			if err != nil {
				t.Error(err)
				return
			}
			ended.Add(tag.RowsAffected())
			select {
			case <-ctx.Done():
			case <-time.After(15 * time.Millisecond):
			}
		}
	})
	return func() int64 { cancel(); wg.Wait(); return ended.Load() }
}

// Connections of the store are ended at any moment. Nobody overlaps, and the work goes on.
func TestLeaseBackendsAreTerminated(t *testing.T) {
	t.Parallel()
	p := testenv.StartPostgres(t)
	schema := migrated(t, p)
	url := p.URL("application_name=victim")
	const visits = 30
	t.Run("lease rows", func(t *testing.T) {
		var r resource
		ctx := testContext(t)
		stop := storm(t, p)
		var wg sync.WaitGroup
		for range 2 {
			var c *holdlock.Client
			testenv.Eventually(t, "the store is opened", func() (ok bool) {
				var err error
				c, err = Open(ctx, url, &LeaseOptions{Schema: schema})
				return err == nil
			})
			defer c.Shutdown(context.Background())
			for range 3 {
				wg.Go(func() {
					l := newLock(t, c, "k", 2*time.Second)
					for r.visits.Load() < visits && ctx.Err() == nil {
						wait, cancel := context.WithTimeout(ctx, 5*time.Second)
						lease, err := l.Acquire(wait)
						cancel()
						if err != nil {
							continue // it may end so, and is undone
						}
						work, done := lease.WithContext(ctx)
						r.use(work, 10*time.Millisecond)
						done()
						_ = lease.Release(ctx) // likewise
					}
				})
			}
		}
		wg.Wait()
		ended := stop()
		if r.overlaps.Load() > 0 || r.visits.Load() < visits || ended < 10 {
			t.Errorf("%d of %d visits overlapped while %d backends were ended", r.overlaps.Load(), r.visits.Load(), ended)
		}
	})
	t.Run("an advisory lock on a pool", func(t *testing.T) { // what many programs do; it overlaps, or the test tells nothing
		var r resource
		ctx := testContext(t)
		stop := storm(t, p)
		pool, err := pgxpool.New(ctx, url)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		var wg sync.WaitGroup
		for range 6 {
			wg.Go(func() {
				for r.overlaps.Load() == 0 && ctx.Err() == nil {
					var got bool
					conn, err := pool.Acquire(ctx)
					if err != nil {
						continue
					}
					if conn.QueryRow(ctx, "SELECT pg_try_advisory_lock(7)").Scan(&got) == nil && got {
						r.use(ctx, 10*time.Millisecond)
						_, _ = conn.Exec(ctx, "SELECT pg_advisory_unlock(7)")
					}
					conn.Release()
				}
			})
		}
		wg.Wait()
		if stop(); r.overlaps.Load() == 0 {
			t.Error("nothing overlapped: this test cannot fail")
		}
	})
}

// The pooler is killed and comes back, again and again.
func TestLeasePgbouncerRestarts(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	b := testenv.StartPgbouncer(t, p, "transaction")
	var r resource
	ctx := testContext(t)
	var wg sync.WaitGroup
	var stopped atomic.Bool
	for range 3 {
		l := newLock(t, leaseClient(t, b.URL(), schema), "k", 5*time.Second)
		wg.Go(func() {
			for !stopped.Load() && ctx.Err() == nil {
				wait, cancel := context.WithTimeout(ctx, time.Second)
				lease, err := l.Acquire(wait)
				cancel()
				if err != nil {
					continue
				}
				work, done := lease.WithContext(ctx)
				r.use(work, time.Millisecond)
				done()
				_ = lease.Release(ctx)
			}
		})
	}
	for range 4 {
		before := r.visits.Load()
		testenv.Eventually(t, "the work goes on", func() bool { return r.visits.Load() > before+5 })
		b.Restart(t)
	}
	stopped.Store(true)
	wg.Wait()
	if r.overlaps.Load() > 0 {
		t.Errorf("%d of %d visits overlapped", r.overlaps.Load(), r.visits.Load())
	}
}
