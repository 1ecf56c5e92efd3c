//go:build unix

package pghold

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
	onceonly "github.com/holdlock/holdlock/once"
)

// jobRequest returns a request for a run of a job.
func jobRequest(key string, ttl time.Duration, policy driver.Policy) *driver.AcquireRequest {
	req := leaseRequest(key, ttl)
	req.Once = &driver.Claim{OnLapse: policy, Keep: 48 * time.Hour}
	return req
}

func mustClaim(tb testing.TB, d driver.Driver, key string, policy driver.Policy) driver.Ref {
	tb.Helper()
	req := jobRequest(key, time.Minute, policy)
	mustGrant(tb, d, req)
	return req.Ref
}

func finishing(ref driver.Ref, result string) *driver.ReleaseRequest {
	rec := &driver.Record{State: driver.JobDone, Result: []byte(result), Keep: 24 * time.Hour}
	return &driver.ReleaseRequest{Ref: ref, Record: rec}
}

func mustFinish(tb testing.TB, d driver.Driver, ref driver.Ref, result string) {
	tb.Helper()
	if err := d.Release(testContext(tb), finishing(ref, result)); err != nil {
		tb.Fatal(err)
	}
}

// A record that this release cannot read is an error to whoever asks for the job, and never a run.
func TestJobBadRecords(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	for what, tt := range map[string]struct{ set, want string }{
		"another layout": {"layout = 2", "layout 2"},
		"no such state":  {"state = 9", "no state 9"},
		"no such cause":  {"why = 17", "damaged"},
		"no such before": {"before = 3", "damaged"},
		"runs below 0":   {"runs = -1", "damaged"},
		"no holder":      {"holder = '5'", "damaged"},
		"too much":       {"result = convert_to(repeat('x', 65537), 'UTF8')", "damaged"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			ctx := testContext(t)
			schema := migrated(t, p)
			d := leaseDriver(t, p.URL(), schema, LeaseOptions{})
			running := mustClaim(t, d, "running", driver.Rerun)
			mustFinish(t, d, mustClaim(t, d, "done", driver.Rerun), "x")
			for _, key := range []string{"after", "eldest"} {
				mustClaim(t, d, key, driver.Rerun)
			}
			// The control: as it is, it can be read.
			if jobs, err := d.Jobs(ctx, &driver.JobQuery{Limit: 10}); err != nil || len(jobs) != 4 {
				t.Fatalf("%d jobs, %v; want 4", len(jobs), err)
			}
			p.Do(t, inSchema(`UPDATE "holdlock".job SET `+tt.set+` WHERE key IN ('running', 'done')`, schema))
			bad := func(what string, err error) {
				t.Helper()
				if !errors.Is(err, driver.ErrBadRecord) || !errors.Is(err, driver.ErrNotApplied) || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%s: %v, want ErrBadRecord and ErrNotApplied with %q", what, err, tt.want)
				}
				if newer := tt.want == "layout 2"; errors.Is(err, driver.ErrNewer) != newer || driver.Damaged(err) == newer {
					t.Errorf("%s: of a newer version %v, damaged %v: %v", what, errors.Is(err, driver.ErrNewer), driver.Damaged(err), err)
				}
			}
			for _, key := range []string{"running", "done"} {
				_, err := d.Acquire(ctx, jobRequest(key, time.Minute, driver.Rerun))
				if key == "done" || !isHeld(err) { // what runs is held, whatever its record says
					bad("Acquire with Once of "+key, err)
				}
				_, _, err = d.Job(ctx, key)
				bad("Job", err)
				bad("Settle", d.Settle(ctx, &driver.SettleRequest{Key: key, By: "x"}))
			}
			jobs, err := d.Jobs(ctx, &driver.JobQuery{Limit: 10})
			if err != nil || len(jobs) != 4 {
				t.Fatalf("%d jobs are listed, %v; want 4", len(jobs), err)
			}
			for i, key := range []string{"after", "done", "eldest", "running"} { // what cannot be read hides none of the others
				switch j := jobs[i]; {
				case j.Key != key:
					t.Errorf("job %d in the list is %q, want %q", i, j.Key, key)
				case i%2 == 0 && (j.Damaged != nil || j.State != driver.JobRunning):
					t.Errorf("%s is listed as %+v", key, j)
				case i%2 == 1:
					bad("Jobs", j.Damaged)
				}
			}
			bad("Release with Record", d.Release(ctx, finishing(running, "x")))
			if _, err := d.Acquire(ctx, leaseRequest("running", time.Minute)); !isHeld(err) {
				t.Errorf("the term of a run whose record was refused: %v, want held", err)
			}
			mustGrant(t, d, leaseRequest("done", time.Minute)) // locks are another matter
			mustRelease(t, d, running)
			_, err = d.Acquire(ctx, jobRequest("running", time.Minute, driver.Rerun))
			bad("Acquire with Once of what has lapsed", err)
		})
	}
}

// A time that somebody has set to infinity by hand hides no other job and no other lock, and the job goes on: nothing depends on when it was changed.
func TestJobChangedAtInfinity(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	for _, at := range []string{"infinity", "-infinity"} {
		ctx := testContext(t)
		schema := migrated(t, p)
		d := leaseDriver(t, p.URL(), schema, LeaseOptions{})
		mustFinish(t, d, mustClaim(t, d, "done", driver.Rerun), "x")
		failed := mustClaim(t, d, "open", driver.Rerun)
		must(t, d.Release(ctx, &driver.ReleaseRequest{Ref: failed, Record: &driver.Record{State: driver.JobOpen, Error: "no paper", Keep: time.Hour}}))
		for _, key := range []string{"after", "running"} {
			mustClaim(t, d, key, driver.Rerun)
		}
		p.Do(t, inSchema(`UPDATE "holdlock".job SET changed = '`+at+`' WHERE key IN ('done', 'open', 'running');
			UPDATE "holdlock".lease SET acquired = '`+at+`' WHERE key = 'running'`, schema))
		jobs, err := d.Jobs(ctx, &driver.JobQuery{Limit: 10})
		if err != nil || len(jobs) != 4 {
			t.Fatalf("%s: %d jobs are listed, %v; want 4", at, len(jobs), err)
		}
		for _, j := range jobs {
			if j.Damaged != nil || (j.Changed.Unix() == 0) != (j.Key != "after") {
				t.Errorf("%s: listed as %+v", at, j)
			}
		}
		if terms, err := d.List(ctx, "", "", 10); err != nil || len(terms) != 2 {
			t.Errorf("%s: %d locks are listed, %v; want 2", at, len(terms), err)
		}
		var job *driver.JobError
		if _, err := d.Acquire(ctx, jobRequest("done", time.Minute, driver.Rerun)); !errors.Is(err, driver.ErrDone) || !errors.As(err, &job) || string(job.Job.Result) != "x" {
			t.Errorf("%s: one that is done: %v", at, err)
		}
		shown, known, err := d.Job(ctx, "done")
		if err != nil || !known {
			t.Fatalf("%s: inspected: %v, %v", at, known, err)
		}
		if err := d.Settle(ctx, &driver.SettleRequest{Key: "done", Token: shown.Token, Seen: shown.Changed, By: "x", Keep: time.Hour}); err != nil {
			t.Errorf("%s: settled: %v", at, err)
		}
		if j, _, err := d.Job(ctx, "done"); err != nil || time.Since(j.Changed) > time.Hour {
			t.Errorf("%s: once it is settled: %+v, %v", at, j, err)
		}
		mustFinish(t, d, mustClaim(t, d, "open", driver.Rerun), "y")
		p.Do(t, inSchema(`UPDATE "holdlock".lease SET expiry = 'infinity' WHERE key = 'running'`, schema))
		if terms, err := d.List(ctx, "", "", 10); err != nil || len(terms) != 2 || terms[1].Key != "running" || terms[1].Remaining < 100*365*24*time.Hour {
			t.Errorf("%s: a lock that is held for ever is listed as %+v, %v", at, terms, err)
		}
	}
}

// A claim that a record answers leaves nothing behind, also where the lease row of its key has been collected.
func TestJobRefusalLeavesNoLease(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	d := leaseDriver(t, p.URL(), schema, LeaseOptions{})
	mustRelease(t, d, mustClaim(t, d, "hold", driver.Hold))
	forget := func() { p.Do(t, inSchema(`DELETE FROM "holdlock".lease`, schema)) }
	forget()
	if _, err := d.Acquire(testContext(t), jobRequest("hold", time.Minute, driver.Rerun)); !errors.Is(err, driver.ErrSuspended) {
		t.Fatalf("a job to be held that has lapsed: %v", err)
	}
	if got := p.Do(t, inSchema(`SELECT count(*) FROM "holdlock".lease`, schema)); got != "0" {
		t.Errorf("%s lease rows are left, want none", got)
	}
	// The record outlives the counter of tokens, and the tokens of its runs rise all the same.
	again := jobRequest("again", time.Minute, driver.Rerun)
	before := mustGrant(t, d, again).Token
	mustRelease(t, d, again.Ref)
	forget()
	p.Do(t, inSchema(`UPDATE "holdlock".job SET token = token + 3600000000`, schema)) // by a clock that was ahead
	g := mustGrant(t, d, jobRequest("again", time.Minute, driver.Rerun))
	if g.Token <= before+3600000000 || g.Job.Token != g.Token {
		t.Errorf("token %d, and %d in the record, after %d", g.Token, g.Job.Token, before+3600000000)
	}
	if term, ok := stands(t, d, "again"); !ok || term.Token != g.Token {
		t.Errorf("the term has token %d, the grant %d", term.Token, g.Token)
	}
}

// Records go when nobody is to know of them any more, no sooner, a bounded number at a time, and by themselves.
func TestJobCollection(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	d := leaseDriver(t, p.URL(), schema, LeaseOptions{})
	ctx := testContext(t)
	d.collector.wait() // we take the steps ourselves
	const n = 60
	for i := range n {
		mustFinish(t, d, mustClaim(t, d, fmt.Sprint("done", i), driver.Rerun), "x")
	}
	mustClaim(t, d, "hold", driver.Hold)
	mustRelease(t, d, mustClaim(t, d, "lapsed", driver.Rerun))
	mustClaim(t, d, "running", driver.Rerun)
	pass := func(by string) {
		p.Do(t, inSchema(`UPDATE "holdlock".job SET expires = expires - interval '`+by+`'`, schema))
	}
	collect := func(want int) {
		t.Helper()
		sum := 0
		for range n/7 + 3 {
			some, err := d.collectJobs(ctx, 7)
			if err != nil || some > 7 {
				t.Fatalf("%d at once, %v", some, err)
			}
			sum += some
		}
		if sum != want {
			t.Errorf("%d records were removed, want %d", sum, want)
		}
	}
	pass("23 hours 59 minutes")
	collect(0)
	pass("2 minutes")
	if jobs, err := d.Jobs(ctx, &driver.JobQuery{Limit: 10}); err != nil || len(jobs) != 3 {
		t.Errorf("before the collection %d jobs are listed, %v; want 3", len(jobs), err)
	}
	collect(n)
	pass("30 hours")
	collect(1) // not the one that is running, although its time is over
	if j, ok, err := d.Job(ctx, "running"); err != nil || !ok || j.State != driver.JobRunning {
		t.Errorf("the job that is running: %+v, %v, %v", j, ok, err)
	}
	pass("10000 hours")
	if _, err := d.Acquire(ctx, jobRequest("hold", time.Minute, driver.Hold)); !isHeld(err) {
		t.Errorf("a job to be held, a year later: %v", err)
	}

	// By itself, beside the calls.
	p.Do(t, inSchema(`UPDATE "holdlock".lease SET state = 3 WHERE key = 'running'`, schema))
	other := leaseDriver(t, p.URL(), schema, LeaseOptions{})
	for range grantsPerStep {
		req := leaseRequest("new", time.Hour)
		mustGrant(t, other, req)
		mustRelease(t, other, req.Ref)
	}
	testenv.Eventually(t, "the old record is removed", func() bool {
		return p.Do(t, inSchema(`SELECT string_agg(key, ' ') FROM "holdlock".job`, schema)) == "hold"
	})
}

// Pages show every record that is kept, however many that are not stand among them.
func TestJobPages(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	d := leaseDriver(t, p.URL(), schema, LeaseOptions{})
	mustFinish(t, d, mustClaim(t, d, "a", driver.Rerun), "x")
	p.Do(t, inSchema(`INSERT INTO "holdlock".job SELECT namespace, 'j/' || to_char(i, 'FM0000'), layout, CASE WHEN i % 100 = 7 THEN 1 ELSE 5 END, why, nonce,
		hold, before, input, runs, lapses, token, holder, changed, CASE WHEN i % 10 = 7 THEN expires ELSE changed END, no_result, error, settled, result
		FROM "holdlock".job, generate_series(0, 2999) i`, schema))
	for undone, want := range map[bool]int{false: 300, true: 30} {
		var got []string
		for after := ""; ; {
			jobs, err := d.Jobs(testContext(t), &driver.JobQuery{Prefix: "j/", After: after, Limit: 7, Undone: undone})
			if err != nil {
				t.Fatal(err)
			}
			for _, j := range jobs {
				got = append(got, j.Key)
			}
			if len(jobs) < 7 {
				break
			}
			after = jobs[6].Key
		}
		if len(got) != want || got[0] != "j/0007" || got[want-1] != map[bool]string{false: "j/2997", true: "j/2907"}[undone] {
			t.Errorf("undone=%v: %d jobs, want %d: %v", undone, len(got), want, got)
		}
	}
	// Few undone jobs among many done ones are found by an index.
	plan := strings.Join(explain(t, p, d.sql.undoneJobs, schema), "\n")
	if !strings.Contains(plan, "job_undone") {
		t.Errorf("the plan for undone jobs:\n%s", plan)
	}
}

// explain returns the plan of a list statement.
func explain(t *testing.T, p *testenv.Postgres, sql, schema string) []string {
	t.Helper()
	p.Do(t, inSchema(`ANALYZE "holdlock".job`, schema))
	sql = strings.NewReplacer("$1", "''", "$2", "'j/'", "$3", "''", "$4", "100").Replace(sql)
	rows, err := p.Rows("EXPLAIN " + sql)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// Jobs of one namespace are not those of another.
func TestJobNamespaces(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	a := leaseDriver(t, p.URL(), schema, LeaseOptions{})
	b := leaseDriver(t, p.URL(), schema, LeaseOptions{Namespace: "other"})
	mustFinish(t, a, mustClaim(t, a, "job", driver.Rerun), "x")
	mustClaim(t, b, "job", driver.Rerun)
	if jobs, err := a.Jobs(testContext(t), &driver.JobQuery{Limit: 10}); err != nil || len(jobs) != 1 || jobs[0].State != driver.JobDone {
		t.Errorf("the jobs of one namespace: %+v, %v", jobs, err)
	}
}

// What the record says is on disk before the answer, also where the user's default is otherwise; and the store says what a
// record survives.
func TestJobRecordsAreDurable(t *testing.T) {
	t.Parallel()
	p := testenv.StartPostgres(t, "fsync=on")
	schema := migrated(t, p)
	keeping := func(params ...string) driver.Keeping {
		return leaseDriver(t, p.URL(params...), schema, LeaseOptions{}).Traits().Records
	}
	if got := keeping(); got != driver.SyncedRecords {
		t.Errorf("records are kept %s", got)
	}
	harmful := func(policy onceonly.Policy) error { // a job that must not run twice
		l, err := leaseClient(t, p.URL(), schema).NewLock("harmful", &holdlock.LockOptions{DoubleRun: holdlock.Harmful})
		if err != nil {
			t.Fatal(err)
		}
		_, err = onceonly.Do(testContext(t), l.For(newSchema()), &onceonly.Options{OnLapse: policy},
			func(context.Context, *onceonly.Run) ([]byte, error) { return nil, nil })
		return err
	}
	if err := harmful(onceonly.Hold); err != nil {
		t.Errorf("a Harmful job under Hold: %v", err)
	}
	if err := harmful(onceonly.Rerun); !errors.Is(err, holdlock.ErrRefused) {
		t.Errorf("a Harmful job under Rerun: %v, want ErrRefused", err)
	}
	lazy := leaseDriver(t, p.URL("synchronous_commit=off"), schema, LeaseOptions{})
	if tr := lazy.Traits(); tr.Records != driver.SyncedRecords || tr.Fencing == driver.Durable {
		t.Errorf("with synchronous_commit off: records %s, tokens %s", tr.Records, tr.Fencing)
	}
	conn := connect(t, p.URL("synchronous_commit=off"))
	for sql, want := range map[string]string{
		lazy.sql.claim: "on", lazy.sql.acquire: "off", // the control
	} {
		tx, err := conn.Begin(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		args := []any{"", "k", "n", time.Hour.Microseconds(), int64(0), "{}"}
		if want == "on" {
			args = append(args, "", false, int64(0), time.Hour.Microseconds())
		}
		if _, err := tx.Exec(testContext(t), sql, args...); err != nil {
			t.Fatal(err)
		}
		var got string
		if err := tx.QueryRow(testContext(t), "SHOW synchronous_commit").Scan(&got); err != nil || got != want {
			t.Errorf("synchronous_commit at the end of the step is %s, %v; want %s", got, err, want)
		}
		if err := tx.Rollback(testContext(t)); err != nil {
			t.Fatal(err)
		}
	}
	p.StartReplica(t)
	testenv.Eventually(t, "the replica is connected", func() bool { return p.Do(t, "SELECT count(*) FROM pg_stat_replication") == "1" })
	if got := keeping(); got != driver.WhileItLasts {
		t.Errorf("with a replica that nobody waits for records are kept %s", got)
	}
	if err := harmful(onceonly.Hold); !errors.Is(err, holdlock.ErrRefused) {
		t.Errorf("with a replica that nobody waits for a Harmful job: %v, want ErrRefused", err)
	}
	for _, tt := range []struct {
		fsync           bool
		commit, awaited string
		standbys        bool
		want            driver.Keeping
	}{
		{true, "on", "", false, driver.SyncedRecords},
		{true, "off", "", false, driver.SyncedRecords},
		{false, "on", "", false, driver.WhileItLasts},
		{true, "on", "s1", true, driver.SyncedRecords},
		{true, "local", "s1", true, driver.WhileItLasts},
		{true, "on", "", true, driver.WhileItLasts},
	} {
		if got := recordKeeping(tt.fsync, tt.commit, tt.awaited, tt.standbys); got != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
	}
}

// One step is judged by one reading of the clock: a run whose term ends in the middle of it is either running or lapsed. Here
// the clock goes on with every look.
func TestJobATermThatEndsDuringAClaim(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	const first = "AND (j.key IS NULL OR " // of the look before anything is locked, which hides much of it
	for what, changes := range map[string]map[string]string{
		"as it is":         {},
		"at the real step": {first: "AND false " + first},
		// The same step with a second look lets the job run again, or this shows nothing.
		"twice": {
			first: "AND false " + first, "ELSIF live THEN": "ELSIF r.expiry > clock_timestamp() THEN",
			"IF j.state = 2 AND (": "IF j.state = 2 AND NOT live AND (",
		},
	} {
		twice := what == "twice"
		schema := migrated(t, p)
		clock := strings.ReplaceAll(strings.ToLower(schema), " ", "_") + "_clock"
		d := leaseDriver(t, p.URL(), schema, LeaseOptions{})
		text := p.Do(t, inSchema(`SELECT pg_get_functiondef('"holdlock".claim'::regproc)`, schema))
		for from, to := range changes {
			if strings.Count(text, from) != 1 {
				t.Fatalf("%q is there %d times", from, strings.Count(text, from))
			}
			text = strings.Replace(text, from, to, 1)
		}
		p.Do(t, text)
		p.Do(t, inSchema(strings.ReplaceAll(`CREATE SCHEMA clock; CREATE SEQUENCE clock.looks; CREATE TABLE clock.base (at timestamptz);
			INSERT INTO clock.base VALUES (now());
			CREATE FUNCTION clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql
				AS 'SELECT at + nextval(''clock.looks'') * interval ''1 microsecond'' FROM clock.base';
			ALTER FUNCTION "holdlock".claim SET search_path = clock, pg_catalog, pg_temp`, "clock", clock), schema))
		p.Do(t, `ALTER FUNCTION `+clock+`.`+clock+`_timestamp RENAME TO clock_timestamp`)
		ran := 0
		conn := connect(t, p.URL())
		for early := range 8 {
			key := fmt.Sprint("job", early)
			mustClaim(t, d, key, driver.Hold) // for a minute
			_, err := conn.Exec(testContext(t), inSchema(fmt.Sprintf(`SELECT setval('%s.looks', 1);
				UPDATE %s.base SET at = expiry - interval '%d microseconds' FROM "holdlock".lease WHERE key = '%s'`, clock, clock, early, key), schema))
			if err != nil {
				t.Fatal(err)
			}
			g, err := d.Acquire(testContext(t), jobRequest(key, time.Minute, driver.Hold))
			switch {
			case err == nil:
				ran++
				if !twice {
					t.Errorf("%s: asked %d µs before its end: granted %+v", what, early, g.Job)
				}
			case !isHeld(err) && !errors.Is(err, driver.ErrSuspended):
				t.Errorf("%s: asked %d µs before its end: %v", what, early, err)
			}
		}
		if twice && ran == 0 {
			t.Error("with two readings of the clock no job ran again: this test cannot fail")
		}
	}
}

// The rights that the page on this store names are enough for jobs.
func TestJobLeastPrivilege(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	role := strings.ReplaceAll(strings.ToLower(schema), " ", "_")
	url := strings.Replace(p.URL(), "postgres@", role+"@", 1)
	p.Do(t, `CREATE ROLE `+role+` LOGIN`)
	if err := Grant(testContext(t), connect(t, p.URL()), schema, role); err != nil {
		t.Fatal(err)
	}
	// The rights that a role had before the records came are not enough, and that is said.
	p.Do(t, inSchema(`REVOKE ALL ON "holdlock".job FROM `+role, schema))
	d := leaseDriver(t, url, schema, LeaseOptions{})
	_, err := d.Acquire(testContext(t), jobRequest("k", time.Minute, driver.Rerun))
	if !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), "grant") || !errors.Is(err, driver.ErrNotApplied) {
		t.Errorf("without rights on the records: %v", err)
	}
	if err := Grant(testContext(t), connect(t, p.URL()), schema, role); err != nil {
		t.Fatal(err)
	}
	ctx := testContext(t)
	ref := mustClaim(t, d, "k", driver.Rerun)
	if err := d.Release(ctx, &driver.ReleaseRequest{Ref: ref, Undo: true}); err != nil {
		t.Error(err)
	}
	mustFinish(t, d, mustClaim(t, d, "k", driver.Rerun), "x")
	j, ok, err := d.Job(ctx, "k")
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if err := d.Settle(ctx, &driver.SettleRequest{Key: "k", Token: j.Token, By: "x", Keep: time.Hour}); err != nil {
		t.Error(err)
	}
	if _, err := d.Jobs(ctx, &driver.JobQuery{Limit: 1}); err != nil {
		t.Error(err)
	}
	if _, err := d.collectJobs(ctx, 10); err != nil {
		t.Error(err)
	}
}

// Session locks keep no records, and their store says so instead of dropping a claim.
func TestJobsOnSessionsAreRefused(t *testing.T) {
	t.Parallel()
	if _, ok := driver.As[driver.Journal](driver.Driver(&SessionDriver{})); ok {
		t.Error("the driver of session locks says that it keeps records")
	}
	if tr := SessionTraits(true, Block); tr.Records != driver.NoRecords {
		t.Errorf("its traits say: %s", tr.Records)
	}
}

// The numbers in the table are those of the contract, for ever.
func TestJobStatesAreFrozen(t *testing.T) {
	for got, want := range map[driver.JobState]int{driver.JobOpen: 1, driver.JobRunning: 2, driver.JobLapsed: 3, driver.JobSuspended: 4, driver.JobDone: 5} {
		if int(got) != want {
			t.Errorf("%v is %d in the contract and %d in the table", got, got, want)
		}
	}
	for got, want := range map[driver.Cause]int{driver.ByLapse: 1, driver.ByError: 2, driver.ByNumber: 3} {
		if int(got) != want {
			t.Errorf("%q is %d in the contract and %d in the table", got, got, want)
		}
	}
}
