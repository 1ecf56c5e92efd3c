//go:build unix

package pghold

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
	onceonly "github.com/holdlock/holdlock/once"
)

// The server does what it is asked and the answer never arrives: a claim that nobody heard of is taken back as if it had never
// been, and a record that was written is not taken for a loss.
func TestJobReplyLost(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	proxy := testenv.StartProxy(t, p.Addr, nil)
	url := testenv.PostgresURL(proxy.Addr)
	near := leaseDriver(t, p.URL(), schema, LeaseOptions{}) // sees the truth
	lose := func(function, key string) (hit func() bool) {
		rule, hit := firstCall(testenv.LoseReply, function, key)
		proxy.SetScript(rule)
		return hit
	}
	hold := &onceonly.Options{OnLapse: onceonly.Hold}
	ok := func(context.Context, *onceonly.Run) ([]byte, error) { return []byte("x"), nil }
	look := func(key string) (j driver.Job) {
		t.Helper()
		j, _, err := near.Job(testContext(t), key)
		if err != nil {
			t.Error(err)
		}
		return j
	}
	t.Run("claim", func(t *testing.T) {
		l := newLock(t, leaseClient(t, url, schema), "claimed", time.Hour)
		hit := lose("claim", "claimed")
		out, err := onceonly.Do(testContext(t), l, hold, func(context.Context, *onceonly.Run) ([]byte, error) {
			t.Error("it ran under an answer that was not heard")
			return nil, nil
		})
		if out.Status != onceonly.NotRun || !errors.Is(err, holdlock.ErrUnknown) || !hit() {
			t.Fatalf("%v, %v (reply lost: %v); want ErrUnknown", out.Status, err, hit())
		}
		testenv.Eventually(t, "the claim is withdrawn", func() bool { return look("claimed").Key == "" })
		out, err = onceonly.Do(testContext(t), l, hold, ok)
		if out.Status != onceonly.Ran || err != nil || out.Runs != 1 {
			t.Errorf("the next delivery: %+v, %v", out, err)
		}
	})
	t.Run("without the undo the job is held", func(t *testing.T) { // or the test above tells nothing
		d := leaseDriver(t, url, schema, LeaseOptions{})
		hit := lose("claim", "ghost")
		if _, err := d.Acquire(testContext(t), jobRequest("ghost", 300*time.Millisecond, driver.Hold)); err == nil || !hit() {
			t.Fatalf("Acquire: %v", err)
		}
		testenv.Eventually(t, "it has lapsed", func() bool { return look("ghost").State == driver.JobLapsed })
		if _, err := near.Acquire(testContext(t), jobRequest("ghost", time.Minute, driver.Hold)); !errors.Is(err, driver.ErrSuspended) {
			t.Errorf("the next claim: %v", err)
		}
	})
	t.Run("the same nonce finds its run", func(t *testing.T) {
		d := leaseDriver(t, url, schema, LeaseOptions{})
		req := jobRequest("nonce", time.Hour, driver.Hold)
		lose("claim", "nonce")
		if _, err := d.Acquire(testContext(t), req); err == nil {
			t.Fatal("the reply was not lost")
		}
		if g := mustGrant(t, d, req); g.Job.Runs != 1 || g.Job.Token != g.Token {
			t.Errorf("it is told of run %d with token %d; its token is %d", g.Job.Runs, g.Job.Token, g.Token)
		}
	})
	t.Run("record", func(t *testing.T) {
		l := newLock(t, leaseClient(t, url, schema), "recorded", time.Hour)
		hit := lose("finish", "recorded")
		out, err := onceonly.Do(testContext(t), l, hold, ok)
		if out.Status != onceonly.Ran || err != nil || out.Recorded || !hit() {
			t.Errorf("%+v, %v; want Ran, and not Recorded", out, err)
		}
		out, err = onceonly.Do(testContext(t), l, hold, ok)
		if out.Status != onceonly.AlreadyDone || err != nil || string(out.Result) != "x" {
			t.Errorf("the next delivery: %+v, %v", out, err)
		}
	})
	t.Run("the same record again", func(t *testing.T) {
		d := leaseDriver(t, url, schema, LeaseOptions{})
		ref := mustClaim(t, d, "again", driver.Hold)
		lose("finish", "again")
		if err := d.Release(testContext(t), finishing(ref, "x")); err == nil {
			t.Fatal("the reply was not lost")
		}
		mustFinish(t, d, ref, "x")
		if j := look("again"); j.State != driver.JobDone || j.Runs != 1 {
			t.Errorf("the job is %+v", j)
		}
	})
	t.Run("settle", func(t *testing.T) {
		d := leaseDriver(t, url, schema, LeaseOptions{})
		mustRelease(t, d, mustClaim(t, d, "settled", driver.Hold))
		hit := lose("settle", "settled")
		err := d.Settle(testContext(t), &driver.SettleRequest{Key: "settled", Token: look("settled").Token, By: "x", Done: true, Keep: time.Hour})
		if err == nil || errors.Is(err, driver.ErrJobChanged) || errors.Is(err, driver.ErrNotApplied) || !hit() {
			t.Errorf("Settle: %v, want an unclear failure", err)
		}
		testenv.Eventually(t, "it is settled", func() bool { return look("settled").State == driver.JobDone })
	})
}

// The claim is overtaken by its own undo. Then it begins nothing when it arrives, and suspends nothing either.
func TestJobUndoOvertakesItsClaim(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	near := leaseDriver(t, p.URL(), schema, LeaseOptions{})
	for _, undo := range []bool{true, false} { // a plain release leaves a run that nobody knows of, or the test tells nothing
		for _, lapsed := range []bool{true, false} { // whether there was a run before
			ctx := testContext(t)
			proxy := testenv.StartProxy(t, p.Addr, nil)
			far := leaseDriver(t, testenv.PostgresURL(proxy.Addr), schema, LeaseOptions{})
			req := jobRequest(fmt.Sprint("k", undo, lapsed), time.Hour, driver.Hold)
			if lapsed {
				mustRelease(t, near, mustClaim(t, near, req.Ref.Key, driver.Rerun))
			}
			before, _, err := near.Job(ctx, req.Ref.Key)
			if err != nil {
				t.Fatal(err)
			}
			rule, hit := firstCall(testenv.Hold, "claim", req.Ref.Key)
			proxy.SetScript(rule)
			late := make(chan error, 1)
			go func() {
				_, err := far.Acquire(ctx, req)
				late <- err
			}()
			testenv.Eventually(t, "the claim is on its way", hit)
			if err := near.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref, Undo: undo}); !errors.Is(err, driver.ErrGone) {
				t.Errorf("the undo: %v, want ErrGone", err)
			}
			proxy.Free()
			err = <-late
			after, _, lookErr := near.Job(ctx, req.Ref.Key)
			if lookErr != nil {
				t.Fatal(lookErr)
			}
			if undo && (!errors.Is(err, driver.ErrNotApplied) || after.State != before.State || after.Runs != before.Runs) {
				t.Errorf("lapsed=%v: the claim that was overtaken: %v; the job is %+v, was %+v", lapsed, err, after, before)
			}
			if !undo && after.State == before.State {
				t.Errorf("lapsed=%v: without an undo nothing has changed: this test cannot fail", lapsed)
			}
		}
	}
}

// The steps of a job that the server rolls back because of others' transactions are sent again: a deadlock, and a user whose
// transactions are SERIALIZABLE.
func TestJobStepsAreSentAgain(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	waits := func() bool {
		return p.Do(t, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%"+schema+"%claim%'") == "1"
	}
	t.Run("deadlock", func(t *testing.T) {
		ctx := testContext(t)
		d := leaseDriver(t, p.URL(), schema, LeaseOptions{})
		mustRelease(t, d, mustClaim(t, d, "dead", driver.Rerun))
		before := p.Do(t, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
		// Somebody locks the record first and then the lease row, which our steps never do.
		conn := connect(t, p.URL("deadlock_timeout=1min"))
		tx, err := conn.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(ctx, inSchema(`SELECT FROM "holdlock".job WHERE key = 'dead' FOR UPDATE`, schema)); err != nil {
			t.Fatal(err)
		}
		claimed := make(chan error, 1)
		go func() {
			_, err := d.Acquire(ctx, jobRequest("dead", time.Minute, driver.Rerun))
			claimed <- err
		}()
		testenv.Eventually(t, "the claim waits", waits)
		if _, err := tx.Exec(ctx, inSchema(`SELECT FROM "holdlock".lease WHERE key = 'dead' FOR UPDATE`, schema)); err != nil {
			t.Fatal(err) // ours is the one that is told
		}
		if err := tx.Rollback(ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-claimed; err != nil {
			t.Errorf("the claim: %v", err)
		}
		if j, _, err := d.Job(ctx, "dead"); err != nil || j.Runs != 2 {
			t.Errorf("the job is in run %d, %v; want 2", j.Runs, err)
		}
		testenv.Eventually(t, "there was a deadlock", func() bool {
			return p.Do(t, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") != before
		})
	})
	t.Run("serializable", func(t *testing.T) {
		for _, level := range []string{"serializable", "repeatable read"} {
			d := leaseDriver(t, p.URL("default_transaction_isolation="+level), schema, LeaseOptions{Namespace: level, MaxConns: 8})
			ctx := testContext(t)
			var wg sync.WaitGroup
			for range 6 {
				wg.Go(func() {
					for i := range 12 {
						req := jobRequest(fmt.Sprint("j", i), time.Minute, driver.Rerun)
						_, err := d.Acquire(ctx, req)
						var about *driver.JobError
						if err == nil {
							err = d.Release(ctx, finishing(req.Ref, "x"))
						} else if isHeld(err) || errors.As(err, &about) {
							err = nil
						}
						if err != nil {
							t.Errorf("%s: %v", level, err)
						}
					}
				})
			}
			wg.Wait()
			if jobs, err := d.Jobs(ctx, &driver.JobQuery{Limit: 20}); err != nil || len(jobs) != 12 {
				t.Errorf("%s: %d jobs, %v", level, len(jobs), err)
			}
			// It is noticed when it happens, too.
			d.explicit.Store(false)
			other, err := connect(t, p.URL()).Begin(ctx)
			if err != nil {
				t.Fatal(err)
			}
			mustRelease(t, d, mustClaim(t, d, "late", driver.Rerun))
			d.explicit.Store(false)
			if _, err := other.Exec(ctx, inSchema(`UPDATE "holdlock".lease SET used = now() WHERE namespace = $1`, schema), level); err != nil {
				t.Fatal(err)
			}
			claimed := make(chan error, 1)
			go func() {
				_, err := d.Acquire(ctx, jobRequest("late", time.Minute, driver.Rerun))
				claimed <- err
			}()
			testenv.Eventually(t, "the claim waits", waits)
			if err := other.Commit(ctx); err != nil {
				t.Fatal(err)
			}
			if err := <-claimed; err != nil || !d.explicit.Load() {
				t.Errorf("%s: after a change: %v, noticed: %v", level, err, d.explicit.Load())
			}
		}
	})
}

// A jobBook notes what is done and what is told.
type jobBook struct {
	mu            sync.Mutex
	effects, told map[string]int
}

func (b *jobBook) Observe(e holdlock.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e.Kind == holdlock.Rerun {
		b.told[e.Key]++
	}
}

// Backends are ended at any moment, in the middle of claims and of records: each job is done, once but for runs that were told to
// follow a lapse.
func TestJobBackendsAreTerminated(t *testing.T) {
	t.Parallel()
	p := testenv.StartPostgres(t)
	schema := migrated(t, p)
	ctx := testContext(t)
	for _, record := range []bool{true, false} { // a lock alone does jobs again and tells nobody, or this shows nothing
		jobs := 50
		if !record {
			jobs = 5
		}
		book := &jobBook{effects: map[string]int{}, told: map[string]int{}}
		stop := storm(t, p)
		var wg sync.WaitGroup
		for range 2 {
			var c *holdlock.Client
			testenv.Eventually(t, "the store is opened", func() (ok bool) {
				var err error
				c, err = Open(ctx, p.URL("application_name=victim"), &LeaseOptions{Schema: schema, Client: holdlock.ClientOptions{Observer: book}})
				return err == nil
			})
			defer c.Shutdown(context.Background())
			l := newLock(t, c, fmt.Sprint("job", record), time.Second)
			effect := func(key string) {
				book.mu.Lock()
				book.effects[key]++
				book.mu.Unlock()
				time.Sleep(10 * time.Millisecond)
			}
			for i := range 3 {
				wg.Go(func() {
					for n := range jobs {
						key := fmt.Sprint((n + 7*i) % jobs)
						for ctx.Err() == nil {
							var err error
							if record {
								_, err = onceonly.Do(ctx, l.For(key), nil, func(context.Context, *onceonly.Run) ([]byte, error) { effect(key); return nil, nil })
							} else {
								err = l.For(key).Do(ctx, func(context.Context, *holdlock.Lease) error { effect(key); return nil })
							}
							if err == nil {
								break
							}
							select {
							case <-time.After(20 * time.Millisecond): // as a queue would
							case <-ctx.Done():
							}
						}
					}
				})
			}
		}
		wg.Wait()
		ended := stop()
		twice, wrong := 0, 0
		for n := range jobs {
			key := fmt.Sprint(n)
			if e := book.effects[key]; e == 0 || e > 1+book.told[key] {
				wrong++
				if record {
					t.Errorf("job %s: its effect is there %d times after %d runs that were told to follow a lapse", key, e, book.told[key])
				}
			} else if e > 1 {
				twice++
			}
		}
		t.Logf("record=%v: %d backends ended; of %d jobs %d were done again, which was told, and %d without that", record, ended, jobs, twice, wrong)
		if record && ended < 10 {
			t.Errorf("only %d backends were ended", ended)
		}
		if !record && wrong == 0 {
			t.Error("a lock alone did each job once: this test cannot fail")
		}
	}
}

// The server is killed and comes back. What it has said of a job is so.
func TestJobsSurviveAKilledServer(t *testing.T) {
	t.Parallel()
	p := testenv.StartPostgres(t, "synchronous_commit=off", "wal_writer_delay=10s")
	schemas := map[bool]string{true: migrated(t, p), false: migrated(t, p)}
	p.Do(t, inSchema(`ALTER TABLE "holdlock".job SET UNLOGGED`, schemas[false])) // forgets it, or the test tells nothing
	for _, schema := range schemas {
		d := leaseDriver(t, p.URL(), schema, LeaseOptions{})
		mustClaim(t, d, "begun", driver.Hold)
		mustFinish(t, d, mustClaim(t, d, "done", driver.Rerun), "receipt")
	}
	p.Restart(t)
	for logged, schema := range schemas {
		d := leaseDriver(t, p.URL(), schema, LeaseOptions{})
		_, err := d.Acquire(testContext(t), jobRequest("done", time.Minute, driver.Rerun))
		if !logged {
			if err != nil {
				t.Errorf("the table was emptied, and yet: %v: this test cannot fail", err)
			}
			continue
		}
		var about *driver.JobError
		if !errors.As(err, &about) || !errors.Is(err, driver.ErrDone) || string(about.Job.Result) != "receipt" {
			t.Errorf("after a restart a job that was done: %v", err)
		}
		if j, ok, err := d.Job(testContext(t), "begun"); err != nil || !ok || j.State != driver.JobRunning {
			t.Errorf("after a restart a job that was begun: %+v, %v, %v", j, ok, err)
		}
	}
}

// On a store of session locks a job is refused before anything is sent, and the error says which stores will do.
func TestJobsOnSessionsAreRefusedByTheClient(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	c, err := OpenSessions(testContext(t), p.URL(), &SessionOptions{Schema: migrated(t, p)})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Shutdown(context.Background())
	out, err := onceonly.Do(testContext(t), newLock(t, c, "k", time.Minute), nil, func(context.Context, *onceonly.Run) ([]byte, error) {
		t.Error("it ran")
		return nil, nil
	})
	if out.Status != onceonly.NotRun || !errors.Is(err, holdlock.ErrUnsupported) || !strings.Contains(err.Error(), "records") {
		t.Errorf("%v, %v; want ErrUnsupported", out.Status, err)
	}
}
