//go:build unix

package pghold

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdlock/holdlock/internal/testenv"
)

func TestMigrateManyAtOnce(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := newSchema()
	ctx := testContext(t)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			conn, err := pgx.Connect(ctx, p.URL("default_transaction_isolation=serializable"))
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close(ctx)
			if err := Migrate(ctx, conn, schema); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	conn := connect(t, p.URL())
	if err := checkLayout(ctx, conn, schema); err != nil {
		t.Error(err)
	}
	var rows int
	if err := conn.QueryRow(ctx, inSchema(`SELECT count(*) FROM "holdlock".layout`, schema)).Scan(&rows); err != nil || rows != 1 {
		t.Errorf("%d rows in layout, %v", rows, err)
	}
}

// Without the lock the same processes fail, so the test above can.
func TestMigrateNeedsItsLock(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	ctx := testContext(t)
	text, err := migrations.ReadFile("sql/1.sql")
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		schema := newSchema()
		var failed sync.Map
		var wg sync.WaitGroup
		for i := range 16 {
			conn := connect(t, p.URL())
			wg.Go(func() {
				defer conn.Close(ctx)
				if _, err := conn.Exec(ctx, inSchema(createLayout+string(text), schema)); err != nil {
					failed.Store(i, err)
				}
			})
		}
		wg.Wait()
		n := 0
		failed.Range(func(_, _ any) bool { n++; return true })
		if n > 0 {
			return
		}
	}
	t.Error("16 processes made the same tables at once, twenty times, and none failed")
}

func TestMigrateWithoutTheRightToCreateSchemas(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	ctx := testContext(t)
	schema := newSchema()
	role := strings.ReplaceAll(strings.ToLower(schema), " ", "_") + "_migrator" // the server is shared, also with another run
	p.Do(t, inSchema(`CREATE ROLE `+role+` LOGIN; CREATE SCHEMA "holdlock" AUTHORIZATION `+role, schema))
	conn := connect(t, strings.Replace(p.URL(), "postgres@", role+"@", 1))
	if err := Migrate(ctx, conn, newSchema()); errorCode(err) != "42501" {
		t.Errorf("migrating a schema that is not there: %v", err)
	}
	for range 2 {
		if err := Migrate(ctx, conn, schema); err != nil {
			t.Error(err)
		}
	}
}

func TestMigrateRefusesNewer(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	ctx := testContext(t)
	schema := migrated(t, p)
	conn := connect(t, p.URL())
	for _, tt := range []struct {
		version, oldest int
		want            string
	}{
		{schemaVersion + 1, schemaVersion, ""}, // a release that has thought of the programs before it
		{schemaVersion + 2, schemaVersion + 1, "made by a newer release"},
	} {
		_, err := conn.Exec(ctx, inSchema(`INSERT INTO "holdlock".layout VALUES ($1, $2, now())`, schema), tt.version, tt.oldest)
		if err != nil {
			t.Fatal(err)
		}
		for what, err := range map[string]error{"check": checkLayout(ctx, conn, schema), "Migrate": Migrate(ctx, conn, schema)} {
			if tt.want == "" && err != nil || tt.want != "" && (!errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("layout %d for programs from %d on: %s: %v", tt.version, tt.oldest, what, err)
			}
		}
	}
}

func TestLayoutOfNothing(t *testing.T) {
	t.Parallel()
	conn := connect(t, testenv.SharedPostgres(t).URL())
	err := checkLayout(testContext(t), conn, newSchema())
	if !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), "holdlock migrate") {
		t.Error(err)
	}
}

func TestSchemaNames(t *testing.T) {
	for _, bad := range []string{"pg_holdlock", "a'b", "a$b", `a\b`, "a\x00", "\xff", strings.Repeat("x", 64)} {
		if _, err := checkSchema(bad); err == nil {
			t.Errorf("schema %q is allowed", bad)
		}
	}
	if got, err := checkSchema(""); got != DefaultSchema || err != nil {
		t.Errorf("the default is %q, %v", got, err)
	}
}

// layouts are the sums of what Migrate runs. That of a layout which has been released never changes: programs built with it
// are in use, and a new layout is a new file. While one is being made, put its sum here.
var layouts = map[int]string{1: "d7d058d4563cce73", 2: "5d1b6cbbbbc86fa2"}

func TestLayoutGolden(t *testing.T) {
	for v := 1; v <= schemaVersion; v++ {
		text, err := step(v)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%x", sha256.Sum256([]byte(text)))[:16]; got != layouts[v] {
			t.Errorf("layout %d has been changed: its sum is %s, was %s", v, got, layouts[v])
		}
	}
}

func errorCode(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}
