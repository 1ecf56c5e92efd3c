package sqlitehold

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// claim returns a request for a run of a job.
func claim(key string, ttl time.Duration, policy driver.Policy) *driver.AcquireRequest {
	req := acquire(key, ttl)
	req.Once = &driver.Claim{OnLapse: policy, Keep: 48 * time.Hour}
	return req
}

func mustClaim(tb testing.TB, d *Driver, key string, policy driver.Policy) driver.Ref {
	tb.Helper()
	req := claim(key, time.Minute, policy)
	_, err := d.Acquire(ctx, req)
	check(tb, err)
	return req.Ref
}

func finish(ref driver.Ref, result string) *driver.ReleaseRequest {
	rec := &driver.Record{State: driver.JobDone, Result: []byte(result), Keep: 24 * time.Hour}
	return &driver.ReleaseRequest{Ref: ref, Record: rec}
}

// layout1 is what the first layout of the file was made by. It never changes.
func layout1(t *testing.T, path string) {
	t.Helper()
	database(t, path, false, createTerm, createWaiter, createWaiterKey,
		fmt.Sprintf("PRAGMA application_id = %d", applicationID), "PRAGMA user_version = 1", "PRAGMA journal_mode = WAL")
}

// acquire2 is how programs of layouts 1 and 2 take a key.
const acquire2 = `
INSERT INTO term AS t (namespace, key, nonce, state, token, boot, expiry, acquired, used, holder, previous)
VALUES (?1, ?2, ?3, 1, ?4, ?5, ?7, ?8, ?8, ?9, 0)
ON CONFLICT (namespace, key) DO UPDATE SET
	nonce    = excluded.nonce,
	state    = 1,
	token    = iif(t.expiry > ?6 AND t.boot = ?5, t.token, max(t.token + 1, excluded.token)),
	boot     = excluded.boot,
	expiry   = iif(t.expiry > ?6 AND t.boot = ?5, max(t.expiry, excluded.expiry), excluded.expiry),
	acquired = iif(t.expiry > ?6 AND t.boot = ?5, t.acquired, excluded.acquired),
	used     = excluded.used,
	holder   = excluded.holder,
	broken   = NULL,
	previous = CASE
		WHEN t.expiry > ?6 AND t.boot = ?5 THEN t.previous
		WHEN t.broken IS NOT NULL THEN 3
		WHEN t.state = 1 THEN 2
		WHEN t.previous > 1 THEN t.previous -- the last one was undone
		ELSE 1 END,
	prior    = CASE
		WHEN t.expiry > ?6 AND t.boot = ?5 THEN t.prior
		WHEN t.broken IS NOT NULL OR t.state = 1 THEN json_object('nonce', t.nonce, 'token', t.token,
			'holder', t.holder, 'acquired', t.acquired, 'broken', t.broken)
		ELSE t.prior END
WHERE t.expiry <= ?6 OR t.boot <> ?5 OR (t.nonce = ?3 AND t.state = 1 AND t.broken IS NULL)
RETURNING token, previous, prior`

// objects lists what is in the file, as SQL.
func objects(t *testing.T, path string) string {
	t.Helper()
	w, err := connect(path, "ro", false)
	check(t, err)
	defer w.close()
	var b strings.Builder
	var name, sql string
	check(t, w.all(`SELECT name, coalesce(sql, '') FROM sqlite_schema ORDER BY name`, nil, []any{&name, &sql},
		func() { fmt.Fprintln(&b, name, sql) }))
	id, err := w.identify()
	check(t, err)
	fmt.Fprintf(&b, "%+v", id)
	return b.String()
}

// A file of layout 1 is brought up to date by whoever opens it first, while processes of the release before, which have
// it open, go on: they and we exclude each other.
func TestMigration(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	layout1(t, path)
	old, err := connect(path, "rw", false)
	check(t, err)
	defer old.close()
	oldAcquire := func(d *Driver, key, nonce string) bool {
		t.Helper()
		m := d.moment()
		var token int64
		var previous int
		var prior any
		got, err := old.row(acquire2, []any{
			"", key, nonce, int64(driver.TokenAt(m.wall)), d.boot, m.now, m.after(time.Hour), m.micro(), `{}`,
		}, &token, &previous, &prior)
		check(t, err)
		return got
	}
	_, err = old.once("SELECT 1 FROM term") // it has read the layout as it was
	check(t, err)

	const n = 8
	drivers := make([]*Driver, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			var err error
			if drivers[i], err = NewDriver(path, nil); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	for _, d := range drivers {
		defer d.Close()
	}
	fresh := tempFile(t)
	open(t, fresh)
	if got, want := objects(t, path), objects(t, fresh); got != want {
		t.Errorf("the file of layout 1 has become\n%s\nwant what a new one is:\n%s", got, want)
	}

	d := drivers[0]
	ref, _ := mustAcquire(t, d, "ours", time.Hour)
	if oldAcquire(d, "ours", strings.Repeat("a", 32)) {
		t.Error("the release before got what we hold")
	}
	check(t, d.Release(ctx, release(ref)))
	if !oldAcquire(d, "ours", strings.Repeat("a", 32)) {
		t.Error("the release before did not get what we gave back")
	}
	if _, err := d.Acquire(ctx, claim("ours", time.Hour, driver.Rerun)); !isHeld(err) {
		t.Errorf("a claim of what the release before holds: %v", err)
	}
	job := mustClaim(t, d, "job", driver.Rerun)
	check(t, drivers[1].Release(ctx, finish(job, "done")))
	if _, err := drivers[2].Acquire(ctx, claim("job", time.Hour, driver.Rerun)); !errors.Is(err, driver.ErrDone) {
		t.Errorf("after the migration a job that was done: %v", err)
	}
}

// A record that this release cannot read is an error to whoever asks for the job, and never a run.
func TestBadRecords(t *testing.T) {
	t.Parallel()
	for what, tt := range map[string]struct{ set, want string }{
		"another layout": {"layout = 2", "layout 2"},
		"no layout":      {"layout = 0", "damaged"},
		"no such state":  {"state = 9", "no state 9"},
		"no such cause":  {"why = 17", "damaged"},
		"runs below 0":   {"runs = -1", "damaged"},
		"no holder":      {"holder = 'x'", "damaged"},
		"no such policy": {"hold = 7", "damaged"},
		"too much":       {"result = zeroblob(70000)", "damaged"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			path := tempFile(t)
			d := open(t, path)
			running := mustClaim(t, d, "running", driver.Rerun)
			check(t, d.Release(ctx, finish(mustClaim(t, d, "done", driver.Rerun), "x")))
			for _, key := range []string{"after", "eldest"} {
				mustClaim(t, d, key, driver.Rerun)
			}
			// The control: as it is, it can be read.
			jobs, err := d.Jobs(ctx, &driver.JobQuery{Limit: 10})
			if check(t, err); len(jobs) != 4 {
				t.Fatalf("%d jobs, want 4", len(jobs))
			}
			w, err := connect(path, "rw", false)
			check(t, err)
			defer w.close()
			_, err = w.exec("UPDATE job SET " + tt.set + " WHERE key IN ('running', 'done')")
			check(t, err)

			bad := func(what string, err error) {
				t.Helper()
				if !errors.Is(err, driver.ErrBadRecord) || !strings.Contains(err.Error(), tt.want) {
					t.Errorf("%s: %v, want ErrBadRecord with %q", what, err, tt.want)
				}
				if newer := tt.want == "layout 2"; errors.Is(err, driver.ErrNewer) != newer || driver.Damaged(err) == newer {
					t.Errorf("%s: of a newer version %v, damaged %v: %v", what, errors.Is(err, driver.ErrNewer), driver.Damaged(err), err)
				}
			}
			for _, key := range []string{"running", "done"} {
				_, err = d.Acquire(ctx, claim(key, time.Minute, driver.Rerun))
				bad("Acquire with Once of "+key, err)
				if !errors.Is(err, driver.ErrNotApplied) || !strings.Contains(err.Error(), key) {
					t.Errorf("Acquire with Once: %v, want the key and ErrNotApplied", err)
				}
				_, _, err = d.Job(ctx, key)
				bad("Job", err)
				bad("Settle", d.Settle(ctx, &driver.SettleRequest{Key: key, By: "x"}))
			}
			jobs, err = d.Jobs(ctx, &driver.JobQuery{Limit: 10})
			if check(t, err); len(jobs) != 4 {
				t.Fatalf("%d jobs are listed, want 4", len(jobs))
			}
			for i, key := range []string{"after", "done", "eldest", "running"} { // what cannot be read hides none of the others
				switch j := jobs[i]; {
				case j.Key != key:
					t.Errorf("job %d in the list is %q, want %q", i, j.Key, key)
				case i%2 == 0 && (j.Damaged != nil || j.State != driver.JobRunning):
					t.Errorf("%s is listed as %+v", key, j)
				case i%2 == 1 && tt.set != "result = zeroblob(70000)": // lists do not read results
					bad("Jobs", j.Damaged)
				}
			}
			bad("Release with Record", d.Release(ctx, finish(running, "x")))
			if _, err := d.Acquire(ctx, acquire("running", time.Minute)); !isHeld(err) {
				t.Errorf("the term of a run whose record was refused: %v, want held", err)
			}
			mustAcquire(t, d, "done", time.Minute) // locks are another matter
		})
	}
}

// What a job was begun or done is known after a reboot, which ends every term.
func TestJobsOutliveTheBoot(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	m := newMachine()
	d := openOn(t, path, m)
	for key, policy := range map[string]driver.Policy{"hold": driver.Hold, "rerun": driver.Rerun} {
		mustClaim(t, d, key, policy)
	}
	check(t, d.Release(ctx, finish(mustClaim(t, d, "done", driver.Rerun), "receipt")))
	check(t, d.Close())

	m.bootID = "boot-2"
	m.boot.Store(int64(time.Second))
	m.wall.Add(time.Minute.Microseconds())
	d = openOn(t, path, m)
	for _, key := range []string{"hold", "rerun"} {
		if j, ok, err := d.Job(ctx, key); err != nil || !ok || j.State != driver.JobLapsed {
			t.Errorf("after the reboot %s is %+v, %v, %v; want lapsed", key, j, ok, err)
		}
	}
	if _, err := d.Acquire(ctx, claim("hold", time.Minute, driver.Rerun)); !errors.Is(err, driver.ErrSuspended) {
		t.Errorf("after the reboot, a job to be held: %v", err)
	}
	if g, err := d.Acquire(ctx, claim("rerun", time.Minute, driver.Rerun)); err != nil || g.Job.Runs != 2 || g.Job.Lapses != 1 {
		t.Errorf("after the reboot, a job to be run again: %+v, %v", g.Job, err)
	}
	var about *driver.JobError
	if _, err := d.Acquire(ctx, claim("done", time.Minute, driver.Rerun)); !errors.As(err, &about) || string(about.Job.Result) != "receipt" {
		t.Errorf("after the reboot, a job that was done: %v", err)
	}
}

// Records go when nobody is to know of them any more, and no sooner.
func TestJobsAreCollected(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	m := newMachine()
	d := openOn(t, path, m)
	for i := range 300 {
		check(t, d.Release(ctx, finish(mustClaim(t, d, fmt.Sprint("done", i), driver.Rerun), "x")))
	}
	mustClaim(t, d, "hold", driver.Hold)
	mustClaim(t, d, "rerun", driver.Rerun) // kept for 48 h
	collect := func() {
		t.Helper()
		for range 20 {
			_, err := d.collectStep(ctx)
			check(t, err)
		}
	}
	m.pass(24*time.Hour - time.Second)
	if collect(); count(t, path, "job") != 302 {
		t.Errorf("%d records after a day less a second, want all 302", count(t, path, "job"))
	}
	m.pass(2 * time.Second)
	if collect(); count(t, path, "job") != 2 {
		t.Errorf("%d records after a day, want 2", count(t, path, "job"))
	}
	m.pass(25 * time.Hour)
	if collect(); count(t, path, "job") != 1 {
		t.Errorf("%d records after two days, want 1", count(t, path, "job"))
	}
	m.pass(10000 * time.Hour)
	collect()
	if _, err := d.Acquire(ctx, claim("hold", time.Minute, driver.Hold)); !errors.Is(err, driver.ErrSuspended) {
		t.Errorf("a job to be held, a year later: %v", err)
	}
}

// The steps that must survive a power failure are synced; leases are not.
func TestJobsAreSynced(t *testing.T) {
	t.Parallel()
	d := open(t, tempFile(t))
	level := func(w *writer) (n int) {
		_, err := w.once("PRAGMA synchronous", &n)
		check(t, err)
		return n
	}
	const normal, full = 1, 2
	check(t, d.call(ctx, "test", "", func(w *writer) error {
		if got := level(w); got != normal {
			t.Errorf("outside of the steps of jobs synchronous is %d", got)
		}
		err := d.atomically(w, func(moment) error {
			if got := level(w); got != full {
				t.Errorf("in a step of a job synchronous is %d, want %d", got, full)
			}
			return errors.New("changed nothing")
		})
		if got := level(w); got != normal || err == nil {
			t.Errorf("afterwards synchronous is %d, want %d", got, normal)
		}
		return nil
	}))
}

func TestNamespacesHaveJobsOfTheirOwn(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	a := open(t, path)
	b, err := NewDriver(path, &Options{Namespace: "other"})
	check(t, err)
	defer b.Close()
	check(t, a.Release(ctx, finish(mustClaim(t, a, "job", driver.Rerun), "x")))
	mustClaim(t, b, "job", driver.Rerun)
	if jobs, err := a.Jobs(ctx, &driver.JobQuery{Limit: 10}); err != nil || len(jobs) != 1 || jobs[0].State != driver.JobDone {
		t.Errorf("the jobs of one namespace: %+v, %v", jobs, err)
	}
}

// On a file system that a reboot empties, records are not said to be durable.
func TestRecordsInMemory(t *testing.T) {
	t.Parallel()
	for memory, want := range map[string]driver.Keeping{"": driver.SyncedRecords, "tmpfs": driver.WhileItLasts} {
		e := newMachine().env()
		e.fileSystem = func(string) (fileSystem, error) { return fileSystem{memory: memory}, nil }
		d, err := newDriver(tempFile(t), nil, e)
		check(t, err)
		if got := d.Traits().Records; got != want {
			t.Errorf("on %q records are %q, want %q", memory, got, want)
		}
		check(t, d.Close())
	}
}

// The numbers in the file are those of the contract, for ever.
func TestStatesAreFrozen(t *testing.T) {
	t.Parallel()
	for got, want := range map[driver.JobState]int{
		driver.JobOpen: jobOpen, driver.JobRunning: jobRunning, driver.JobSuspended: jobSuspended, driver.JobDone: jobDone,
	} {
		if int(got) != want {
			t.Errorf("%v is %d in the contract and %d in the file", got, got, want)
		}
	}
	for got, want := range map[driver.Cause]int{driver.ByLapse: 1, driver.ByError: 2, driver.ByNumber: 3} {
		if int(got) != want {
			t.Errorf("%q is %d in the contract and %d in the file", got, got, want)
		}
	}
}

// One step is judged by one reading of the clock: a run whose term ends in the middle of it is either running or lapsed.
func TestATermThatEndsDuringAClaim(t *testing.T) {
	t.Parallel()
	for early := range int64(10) {
		path := tempFile(t)
		m := newMachine()
		d := openOn(t, path, m)
		mustClaim(t, d, "job", driver.Hold) // for a minute
		e := m.env()
		e.now = func() time.Duration { return time.Duration(m.boot.Add(1)) } // time goes on with every look
		other, err := newDriver(path, nil, e)
		check(t, err)
		m.boot.Store(int64(1000*time.Hour+time.Minute) - early)
		g, err := other.Acquire(ctx, claim("job", time.Minute, driver.Hold))
		if !isHeld(err) && !errors.Is(err, driver.ErrSuspended) {
			t.Errorf("asked %d ns before its end: granted %+v, %v", early, g.Job, err)
		}
		check(t, other.Close())
	}
}
