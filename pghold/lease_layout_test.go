//go:build unix

package pghold

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// layout1 makes a schema as the first layout did.
func layout1(tb testing.TB, p *testenv.Postgres) string {
	tb.Helper()
	schema := newSchema()
	text, err := step(1)
	if err != nil {
		tb.Fatal(err)
	}
	conn := connect(tb, p.URL())
	_, err = conn.Exec(testContext(tb), inSchema(createLayout+text+`INSERT INTO "holdlock".layout VALUES (1, 1, now())`, schema), pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		tb.Fatal(err)
	}
	return schema
}

// objects lists what is in a schema, without its name.
func objects(t *testing.T, p *testenv.Postgres, schema string) string {
	t.Helper()
	rows, err := p.Rows(inSchema(`SELECT replace(x, '"holdlock"', 'S') FROM (
		SELECT c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || a.attnotnull AS x FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
			WHERE c.relnamespace = '"holdlock"'::regnamespace AND a.attnum > 0 UNION ALL
		SELECT indexdef FROM pg_indexes WHERE quote_ident(schemaname) = '"holdlock"' UNION ALL
		SELECT pg_get_functiondef(f.oid) FROM pg_proc f WHERE f.pronamespace = '"holdlock"'::regnamespace) s ORDER BY 1`, schema))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(rows, "\n")
}

// A schema of layout 1 is brought up to date while programs of the release before, which have it open, go on: they and we exclude
// each other, and those of them who wait are woken.
func TestMigrateFromLayout1(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := layout1(t, p)
	ctx := testContext(t)
	// The statements of the release before are the driver's for plain leases, and have not been changed.
	sql := newLeaseSQL(schema)
	old := connect(t, p.URL())
	ask := func(sql string, args ...any) (answer string) {
		t.Helper()
		if err := old.QueryRow(ctx, sql, append([]any{execMode}, args...)...).Scan(&answer); err != nil {
			t.Fatal(err)
		}
		word, _, _ := strings.Cut(answer, " ")
		return word
	}
	acquire := func(key, nonce string) string {
		return ask(sql.acquire, "", key, nonce, time.Hour.Microseconds(), int64(0), "{}")
	}
	if got := acquire("theirs", "a"); got != "granted" {
		t.Fatalf("before: %s", got)
	}
	stand := func(key string) {
		t.Helper()
		if _, err := old.Exec(ctx, sql.stand, execMode, "", key, nil, "old "+schema, "w", nil); err != nil {
			t.Fatal(err)
		}
	}
	stand("theirs")
	if _, err := NewLeaseDriver(ctx, p.URL(), &LeaseOptions{Schema: schema}); !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), "holdlock migrate") {
		t.Errorf("this release on layout 1: %v", err)
	}
	var wg sync.WaitGroup
	for range 8 {
		conn := connect(t, p.URL())
		wg.Go(func() {
			if err := Migrate(ctx, conn, schema); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got, want := objects(t, p, schema), objects(t, p, migrated(t, p)); got != want {
		t.Errorf("the schema of layout 1 has become\n%s\nwant what a new one is:\n%s", got, want)
	}
	d := leaseDriver(t, p.URL(), schema, LeaseOptions{})
	if _, err := d.Acquire(ctx, jobRequest("theirs", time.Hour, driver.Rerun)); !isHeld(err) {
		t.Errorf("a claim of what the release before holds: %v", err)
	}
	ours := mustClaim(t, d, "ours", driver.Rerun)
	if got := acquire("ours", "b"); got != "held" {
		t.Errorf("what we hold is %s to the release before", got)
	}
	stand("ours")
	mustFinish(t, d, ours, "x")
	if got := acquire("ours", "c"); got != "granted" {
		t.Errorf("what we gave back is %s to the release before", got)
	}
	// On a busy machine this takes longer than a waiter that polls may be silent.
	p.Do(t, inSchema(`UPDATE "holdlock".waiter SET seen = now() + interval '1 minute'`, schema))
	if got := ask(sql.release, "", "theirs", "a", int64(0), false); got != "released" {
		t.Errorf("the release before gives back: %s", got)
	}
	rows, err := p.Rows(inSchema(strings.Replace(sql.poll, "$1", "'old "+schema+"'", 1), schema))
	if err != nil || len(rows) != 2 {
		t.Errorf("the release before polls and is told of %q, %v; want both keys", rows, err)
	}
}
