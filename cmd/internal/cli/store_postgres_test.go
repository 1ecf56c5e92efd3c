//go:build unix

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
	"github.com/holdlock/holdlock/pghold"
)

func TestMain(m *testing.M) {
	code := m.Run()
	testenv.End()
	os.Exit(code)
}

func TestPostgresURLs(t *testing.T) {
	for _, tt := range []struct{ url, dsn, schema, wrong string }{
		{"postgres://u:p@h:1,i:2/db?sslmode=disable", "postgres://u:p@h:1,i:2/db?sslmode=disable", "holdlock", ""},
		{"postgresql://h?schema=a%20b&connect_timeout=3", "postgres://h?connect_timeout=3", "a b", ""},
		{"postgres+advisory://h/db?on_frozen=expire&schema=x", "postgres://h/db", "x", ""},
		{"postgres://", "postgres:///", "holdlock", ""},
		{"postgres://u:a?b@h/db?schema=x", "postgres://u:a?b@h/db", "x", ""},
		{"postgres:h", "", "", "write it as"},
		{"postgres://h?on_frozen=expire", "", "", "is for postgres+advisory"},
		{"postgres+advisory://h?on_frozen=maybe", "", "", "block or expire"},
	} {
		scheme, rest, _ := strings.Cut(tt.url, ":")
		u, err := parsePostgres(scheme, rest)
		switch {
		case tt.wrong != "":
			if err == nil || !strings.Contains(err.Error(), tt.wrong) {
				t.Errorf("%s: %v", tt.url, err)
			}
		case err != nil || u.dsn != tt.dsn || u.schema != tt.schema || u.advisory != strings.Contains(tt.url, "advisory"):
			t.Errorf("%s: %+v, %v", tt.url, u, err)
		}
	}
	for scheme, want := range map[string]bool{
		"postgres": true, "postgresql": true, "postgres+advisory": true, "postgresql+advisory": true, "postgres+": false, "postgres+x": false, "pg": false,
	} {
		if _, ok := postgresKind(scheme); ok != want {
			t.Errorf("scheme %q is one of PostgreSQL's: %v", scheme, ok)
		}
	}
}

// invoke runs the command line.
func invoke(args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = Main(args, &out, &err)
	return code, out.String(), err.String()
}

// From an empty database to locks that are held, listed and broken, by what the URL and the environment say.
func TestPostgresCommands(t *testing.T) {
	p := testenv.StartPostgres(t)
	// As for psql: nothing in the URL, and a password file.
	host, port, _ := strings.Cut(p.Addr, ":")
	passfile := filepath.Join(t.TempDir(), "pgpass")
	if err := os.WriteFile(passfile, []byte("*:*:*:app:sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"PGHOST": host, "PGPORT": port, "PGDATABASE": "postgres", "PGUSER": "postgres", "PGSSLMODE": "disable", "PGPASSFILE": passfile} {
		t.Setenv(name, value)
	}
	const store = "postgres://"
	if code, _, stderr := invoke("ls", "--store", store); code != exitUnavailable || !strings.Contains(stderr, "holdlock migrate") {
		t.Errorf("ls before migrate: %d %s", code, stderr)
	}
	p.Do(t, "CREATE ROLE app LOGIN PASSWORD 'sesame'")
	for range 2 {
		if code, _, stderr := invoke("migrate", "--store", store, "--grant", "app"); code != exitOK {
			t.Fatalf("migrate: %d %s", code, stderr)
		}
	}
	// From here on the server wants a password, which the file has.
	hba := filepath.Join(p.Data, "pg_hba.conf")
	if err := os.WriteFile(hba, []byte("host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p.Do(t, "SELECT pg_reload_conf()")
	t.Setenv("PGUSER", "app")
	testenv.Eventually(t, "the password is asked for", func() bool {
		t.Setenv("PGPASSFILE", "/dev/null")
		code, _, stderr := invoke("ls", "--store", store)
		t.Setenv("PGPASSFILE", passfile)
		return code == exitUnavailable && strings.Contains(stderr, "password")
	})
	wrong := "postgres://app:wrong-sesame@" + p.Addr + "/postgres"
	if code, stdout, stderr := invoke("ls", "--store", wrong); code != exitUnavailable || strings.Contains(stdout+stderr, "sesame") {
		t.Errorf("with a wrong password: %d %s", code, stderr)
	}
	if code, stdout, stderr := invoke("ls", "--store", "postgres://app:ses/ame@host:port/db"); code != exitUsage || strings.Contains(stdout+stderr, "ame@") {
		t.Errorf("a URL that cannot be read: %d %s", code, stderr)
	}

	for _, url := range []string{store, "postgres+advisory://"} {
		d, err := openStore(url, "")
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		ref := driver.Ref{Key: "nightly/1", Nonce: "0123456789abcdef0123456789abcdef"}
		if url != store {
			ref.Nonce = strings.Repeat("f", 32)
		}
		g, err := d.Acquire(t.Context(), &driver.AcquireRequest{
			Ref: ref, TTL: time.Minute, Holder: driver.Holder{Host: "worker", PID: 7, Purpose: "settles the day"},
		})
		if err != nil {
			t.Fatalf("%s: %v", url, err)
		}
		code, stdout, stderr := invoke("ls", "--store", url, "night")
		if code != exitOK || !strings.Contains(stdout, "nightly/1") || !strings.Contains(stdout, "settles the day") {
			t.Errorf("%s: ls: %d %s%s", url, code, stdout, stderr)
		}
		code, stdout, stderr = invoke("inspect", "nightly/1", "--json", "--store", url)
		var shown struct{ Token, State, Store string }
		if err := json.Unmarshal([]byte(stdout), &shown); err != nil || shown.Token != fmt.Sprint(uint64(g.Token)) || shown.State != "held" {
			t.Errorf("%s: inspect: %d %s%s (%v)", url, code, stdout, stderr, err)
		}
		code, _, stderr = invoke("break", "nightly/1", "--store", url, "--token", shown.Token, "--reason", "test", "--now")
		if code != exitOK {
			t.Errorf("%s: break: %d %s", url, code, stderr)
		}
		if code, stdout, _ = invoke("inspect", "nightly/1", "--store", url); code != exitOK || !strings.Contains(stdout, "free") {
			t.Errorf("%s: inspect after break: %d %s", url, code, stdout)
		}
		if err := d.Close(); err != nil {
			t.Errorf("%s: Close: %v", url, err)
		}
	}
	if code, _, stderr := invoke("migrate", "--store", "sqlite:x"); code != exitUsage || !strings.Contains(stderr, "postgres://") {
		t.Errorf("migrate of another store: %d %s", code, stderr)
	}
}

// ls shows who waits for a lock in a transaction, and which backend is in the way.
func TestPostgresClaims(t *testing.T) {
	p := testenv.SharedPostgres(t)
	url := p.URL("schema=claims", "application_name=settler")
	if code, _, stderr := invoke("migrate", "--store", url); code != exitOK {
		t.Fatalf("migrate: %d %s", code, stderr)
	}
	ctx := t.Context()
	locks, err := pghold.Open(ctx, p.URL("application_name=settler"), &pghold.LeaseOptions{Schema: "claims"})
	if err != nil {
		t.Fatal(err)
	}
	defer locks.Shutdown(ctx)
	settle, err := locks.NewLock("settle", nil)
	if err != nil {
		t.Fatal(err)
	}
	var pids [2]uint32
	done := make(chan error, 1)
	var first pgx.Tx
	for i := range pids {
		conn, err := pgx.Connect(ctx, p.URL("application_name=settler"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close(ctx)
		pids[i] = conn.PgConn().PID()
		tx, err := conn.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = tx
			if err := pghold.Lock(ctx, tx, settle.For("monday")); err != nil {
				t.Fatal(err)
			}
			continue
		}
		go func() { done <- pghold.Lock(ctx, tx, settle.For("monday")) }()
	}
	var lines []string
	testenv.Eventually(t, "both are shown", func() bool {
		_, stdout, _ := invoke("ls", "--json", "--store", url)
		lines = strings.Split(strings.TrimSpace(stdout), "\n")
		return len(lines) == 2
	})
	for i, want := range []string{"holds", "waiting"} {
		var got struct {
			Lock, Key, State, Program string
			Backend                   uint32
			BlockedBy                 []uint32 `json:"blocked_by"`
		}
		err := json.Unmarshal([]byte(lines[i]), &got)
		if err != nil || got.Lock != "settle" || got.Key != "monday" || got.State != want || got.Program != "settler" || got.Backend != pids[i] ||
			(i == 1) != slices.Contains(got.BlockedBy, pids[0]) {
			t.Errorf("%s (%v)", lines[i], err)
		}
	}
	if _, stdout, _ := invoke("ls", "--store", url); !strings.Contains(stdout, "BLOCKED BY") || !strings.Contains(stdout, fmt.Sprint(pids[0])) {
		t.Errorf("ls: %s", stdout)
	}
	if err := first.Commit(ctx); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
