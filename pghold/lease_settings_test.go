//go:build unix

package pghold

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

func isHeld(err error) bool {
	var held *driver.HeldError
	return errors.As(err, &held)
}

// contend has several goroutines take and give back one key, and returns the errors that are neither success nor held.
func contend(t *testing.T, d *LeaseDriver, rounds int) (failed []error) {
	t.Helper()
	ctx := testContext(t)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range rounds {
				req := leaseRequest("contended", time.Minute)
				_, err := d.Acquire(ctx, req)
				if err == nil {
					err = d.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref})
				} else if isHeld(err) {
					continue
				}
				if err != nil {
					mu.Lock()
					failed = append(failed, err)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return failed
}

// A user whose transactions are SERIALIZABLE by default gets no serialization failures, neither from the start nor if the
// default is changed while the store is open.
func TestLeaseUnderSerializable(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	for _, level := range []string{"serializable", "repeatable read"} {
		d := leaseDriver(t, p.URL("default_transaction_isolation="+level), schema, LeaseOptions{Namespace: level, MaxConns: 8})
		if !d.explicit.Load() {
			t.Errorf("%s: not noticed at open", level)
		}
		for _, err := range contend(t, d, 25) {
			t.Errorf("%s: %v", level, err)
		}
		// It is noticed when it happens, too. explicit is set by a serialization failure alone, so one did come.
		d.explicit.Store(false)
		ctx := testContext(t)
		other, err := connect(t, p.URL()).Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := other.Exec(ctx, inSchema(`UPDATE "holdlock".lease SET used = now() WHERE namespace = $1`, schema), level); err != nil {
			t.Fatal(err)
		}
		granted := make(chan error, 1)
		go func() {
			_, err := d.Acquire(ctx, leaseRequest("contended", time.Minute))
			granted <- err
		}()
		testenv.Eventually(t, "the acquire waits for the row", func() bool {
			return p.Do(t, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%"+schema+"%'") == "1"
		})
		if err := other.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-granted; err != nil || !d.explicit.Load() {
			t.Errorf("%s: after a change: %v, noticed: %v", level, err, d.explicit.Load())
		}
	}
}

// The rules of the schema hold whatever the search_path is, also one that has other things under the same names.
func TestLeaseUnderAnotherSearchPath(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	evil := strings.ReplaceAll(strings.ToLower(newSchema()), " ", "_")
	p.Do(t, strings.ReplaceAll(`CREATE SCHEMA evil; CREATE TABLE evil.lease (x int);
		CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS 'SELECT to_timestamp(1)'`, "evil", evil))
	for _, path := range []string{"nowhere", evil + ",pg_catalog"} {
		d := leaseDriver(t, p.URL("search_path="+path), schema, LeaseOptions{Namespace: path})
		req := leaseRequest("k", time.Minute)
		g, err := d.Acquire(testContext(t), req)
		if err != nil || time.Since(time.UnixMicro(int64(g.Token))) > time.Hour {
			t.Errorf("search_path %s: token %d, %v", path, g.Token, err)
		}
		if _, err := d.Acquire(testContext(t), leaseRequest("k", time.Minute)); !isHeld(err) {
			t.Errorf("search_path %s: the rival got %v", path, err)
		}
	}
	// Without the search_path that the functions set for themselves, the second one takes over the clock.
	p.Do(t, inSchema(`ALTER FUNCTION "holdlock".acquire RESET search_path`, schema))
	d := leaseDriver(t, p.URL("search_path="+evil+",pg_catalog"), schema, LeaseOptions{Namespace: "control"})
	if g, err := d.Acquire(testContext(t), leaseRequest("k", time.Minute)); err == nil && time.Since(time.UnixMicro(int64(g.Token))) < time.Hour {
		t.Error("the other clock is not seen even without that: this test cannot fail")
	}
}

// Where nothing can be written the store says so, when it is opened and later.
func TestLeaseWhereNothingCanBeWritten(t *testing.T) {
	t.Parallel()
	p := testenv.StartPostgres(t)
	schema := migrated(t, p)
	open := func(url string) error {
		d, err := NewLeaseDriver(testContext(t), url, &LeaseOptions{Schema: schema})
		if err == nil {
			d.Close()
		}
		return err
	}
	if err := open(p.URL("default_transaction_read_only=on")); !errors.Is(err, errReadOnly) || !strings.Contains(err.Error(), "default_transaction_read_only") {
		t.Errorf("open with default_transaction_read_only: %v", err)
	}

	d := leaseDriver(t, p.URL(), schema, LeaseOptions{MaxConns: 1})
	held := leaseRequest("held", time.Minute)
	if _, err := d.Acquire(testContext(t), held); err != nil {
		t.Fatal(err)
	}
	replica := p.StartReplica(t)
	if err := open(replica.URL()); !errors.Is(err, errReadOnly) || !strings.Contains(err.Error(), "replica") {
		t.Errorf("open of a replica: %v", err)
	}
	// It has become a replica behind our back: what it knows of the key that is held may be old, so that is no answer.
	p.Do(t, `ALTER DATABASE postgres SET default_transaction_read_only = on`)
	p.Do(t, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holdlock'`)
	testenv.Eventually(t, "the old connection is gone", func() bool {
		_, err := d.Acquire(testContext(t), leaseRequest("held", time.Minute))
		return !isHeld(err) && code(err) == readOnlyTransaction
	})
	for _, key := range []string{"held", "free"} {
		_, err := d.Acquire(testContext(t), leaseRequest(key, time.Minute))
		if !errors.Is(err, errReadOnly) || !errors.Is(err, driver.ErrNotApplied) || code(err) != readOnlyTransaction {
			t.Errorf("acquire of the key that is %s: %v", key, err)
		}
	}
	if err := d.Release(testContext(t), &driver.ReleaseRequest{Ref: held.Ref}); !errors.Is(err, errReadOnly) {
		t.Errorf("release: %v", err)
	}
}

// The client's clock is only a hint.
func TestLeaseWithAWrongClientClock(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	d := leaseDriver(t, p.URL(), migrated(t, p), LeaseOptions{})
	last := driver.Token(0)
	for _, floor := range []driver.Token{
		driver.TokenAt(time.Now().Add(24 * time.Hour)), driver.MaxToken, driver.MaxToken + 5, 0, driver.TokenAt(time.Now().Add(-24 * time.Hour)),
	} {
		req := leaseRequest("k", time.Minute)
		req.Floor = floor
		g, err := d.Acquire(testContext(t), req)
		if err != nil || g.Token <= last {
			t.Errorf("floor %d: token %d after %d, %v", floor, g.Token, last, err)
		}
		if ahead := time.Until(time.UnixMicro(int64(g.Token))); ahead > 10*time.Second {
			t.Errorf("floor %d: the token is %v ahead of the clock", floor, ahead)
		}
		if _, err := d.Acquire(testContext(t), leaseRequest("k", time.Minute)); !isHeld(err) {
			t.Errorf("floor %d: the rival got %v", floor, err)
		}
		if err := d.Release(testContext(t), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
			t.Error(err)
		}
		last = g.Token
	}
}

// What the store says about itself follows from the server's settings.
func TestLeaseTraits(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		settings []string
		want     driver.Fencing
	}{
		{[]string{"fsync=on"}, driver.Durable},
		{[]string{"fsync=on", "synchronous_commit=off"}, driver.WhileDataSurvives},
		{[]string{"fsync=off"}, driver.WhileDataSurvives},
	} {
		p := testenv.StartPostgres(t, tt.settings...)
		d := leaseDriver(t, p.URL("password=sesame"), migrated(t, p), LeaseOptions{Namespace: "billing"})
		got := d.Traits()
		if got.Fencing != tt.want {
			t.Errorf("%v: Fencing is %v, want %v", tt.settings, got.Fencing, tt.want)
		}
		for _, f := range []Frozen{Block, Expire} {
			s, err := NewSessionDriver(testContext(t), p.URL(), &SessionOptions{Schema: d.schema, OnFrozen: f})
			if err != nil {
				t.Fatal(err)
			}
			traits, want := s.Traits(), SessionTraits(tt.want == driver.Durable, f)
			if want.Location = traits.Location; traits != want {
				t.Errorf("session locks report %+v, and the documents say %+v", traits, want)
			}
			s.Close()
		}
		if !strings.Contains(got.Location, p.Addr+"/postgres") || !strings.Contains(got.Location, `"billing"`) || strings.Contains(got.Location, "sesame") {
			t.Errorf("Location is %s", got.Location)
		}
	}
}

// A user with the rights that the page on this store names can use it, and nothing else.
func TestLeaseLeastPrivilege(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	role := strings.ReplaceAll(strings.ToLower(schema), " ", "_")
	url := strings.Replace(p.URL(), "postgres@", role+"@", 1)
	p.Do(t, `CREATE ROLE `+role+` LOGIN`)
	_, err := NewLeaseDriver(testContext(t), url, &LeaseOptions{Schema: schema})
	if !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), "grant") {
		t.Errorf("without any rights: %v", err)
	}
	if err := Grant(testContext(t), connect(t, p.URL()), schema, role); err != nil {
		t.Fatal(err)
	}
	d := leaseDriver(t, url, schema, LeaseOptions{})
	for _, err := range contend(t, d, 10) {
		t.Error(err)
	}
	_, stop, err := d.Watch(testContext(t), "k")
	if err != nil {
		t.Fatal(err)
	}
	stop()
	if _, err := d.collect(testContext(t), 10); err != nil {
		t.Error(err)
	}
	if _, err := d.List(testContext(t), "", "", 10); err != nil {
		t.Error(err)
	}
	_, err = d.pool.Exec(testContext(t), inSchema(`DROP TABLE "holdlock".lease`, schema))
	if code(err) != noRights {
		t.Errorf("DROP TABLE: %v", err)
	}
}

// Rows are removed a day after the last use of their key, and no sooner.
func TestLeaseCollection(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	d := leaseDriver(t, p.URL(), schema, LeaseOptions{})
	ctx := testContext(t)
	d.collector.wait() // we take the steps ourselves
	const n = 40
	for i := range n {
		req := leaseRequest(fmt.Sprintf("%02d", i), time.Hour)
		if _, err := d.Acquire(ctx, req); err != nil {
			t.Fatal(err)
		}
		if i%4 != 0 { // every fourth is still held
			if err := d.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
				t.Fatal(err)
			}
		}
	}
	steps := func() (removed int) {
		for range n/7 + 2 { // once around
			some, err := d.collect(ctx, 7)
			if err != nil {
				t.Fatal(err)
			}
			removed += some
		}
		return removed
	}
	if got := steps(); got != 0 {
		t.Errorf("%d fresh rows were removed", got)
	}
	p.Do(t, inSchema(`UPDATE "holdlock".lease SET used = used - interval '24 hours 1 second' WHERE key <> '01'`, schema))
	if got := steps(); got != n*3/4-1 {
		t.Errorf("%d old rows of released terms were removed, want %d", got, n*3/4-1)
	}
	p.Do(t, inSchema(`UPDATE "holdlock".lease SET expiry = expiry - interval '25 hours 1 second'`, schema))
	if got := steps(); got != n/4 {
		t.Errorf("%d rows of terms that ran out a day ago were removed, want %d", got, n/4)
	}
	if got := p.Do(t, inSchema(`SELECT string_agg(key, ' ') FROM "holdlock".lease`, schema)); got != "01" {
		t.Errorf("left is %q, want 01, which was used less than a day ago", got)
	}
}

// It happens by itself, beside the calls.
func TestLeaseCollectsByItself(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	d := leaseDriver(t, p.URL(), schema, LeaseOptions{})
	ctx := testContext(t)
	req := leaseRequest("old", time.Hour)
	if _, err := d.Acquire(ctx, req); err != nil {
		t.Fatal(err)
	}
	if err := d.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
		t.Fatal(err)
	}
	p.Do(t, inSchema(`UPDATE "holdlock".lease SET used = used - interval '2 days'`, schema))
	for range grantsPerStep {
		req := leaseRequest("new", time.Hour)
		mustGrant(t, d, req)
		mustRelease(t, d, req.Ref)
	}
	testenv.Eventually(t, "the old row is removed", func() bool {
		return p.Do(t, inSchema(`SELECT count(*) FROM "holdlock".lease WHERE key = 'old'`, schema)) == "0"
	})
}

func TestLeaseOptions(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	ctx := testContext(t)
	for what, opts := range map[string]*LeaseOptions{
		"namespace":        {Namespace: strings.Repeat("x", 256)},
		"NUL":              {Namespace: "a\x00b"},
		"MaxConns":         {MaxConns: -1},
		"pg_":              {Schema: "pg_locks"},
		"holdlock migrate": {Schema: newSchema()},
		"told so":          {Configure: func(*pgxpool.Config) error { return errors.New("told so") }},
	} {
		if d, err := NewLeaseDriver(ctx, p.URL(), opts); err == nil {
			d.Close()
			t.Errorf("%s: no error", what)
		} else if !strings.Contains(err.Error(), what) && what != "NUL" {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, dsn := range []string{"postgres://u:sesame@127.0.0.1:1/db", "postgres://u:sesame@[/db", "host=127.0.0.1 port=1 user=u password=sesame bad"} {
		if _, err := Open(ctx, dsn, nil); err == nil || strings.Contains(err.Error(), "sesame") {
			t.Errorf("%v", err)
		}
	}
	var seen atomic.Bool
	d := leaseDriver(t, p.URL(), migrated(t, p), LeaseOptions{Configure: func(c *pgxpool.Config) error {
		c.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { seen.Store(true); return nil }
		return nil
	}})
	if !seen.Load() || d.pool.Config().MaxConns != defaultMaxConns {
		t.Errorf("Configure was not used (%v), or the pool has %d connections", seen.Load(), d.pool.Config().MaxConns)
	}
}
