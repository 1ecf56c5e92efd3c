//go:build unix

package pghold

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// asks has a server of its own and examines it.
type asks func(t *testing.T, p *testenv.Postgres) []driver.Diagnosis

// role makes a user of its own with the rights that programs need, and settings; it returns the URL of that user.
func role(t *testing.T, p *testenv.Postgres, schema string, settings ...string) string {
	t.Helper()
	name := "role_" + strings.ReplaceAll(schema, " ", "_")
	p.Do(t, fmt.Sprintf("CREATE ROLE %q LOGIN", name))
	for _, s := range settings {
		p.Do(t, fmt.Sprintf("ALTER ROLE %q SET %s", name, s))
	}
	if err := Grant(testContext(t), connect(t, p.URL()), schema, name); err != nil {
		t.Fatal(err)
	}
	return strings.Replace(p.URL(), "postgres://postgres@", "postgres://"+name+"@", 1)
}

// Each set-up is bad in one way, which the doctor names.
func TestDoctorOnBadDatabases(t *testing.T) {
	shared := testenv.SharedPostgres(t)
	look := func(url, schema string, scope Scope) []driver.Diagnosis {
		return Diagnose(t.Context(), url, &DoctorOptions{Scope: scope, Schema: schema})
	}
	// with examines as a user with settings of its own.
	with := func(scope Scope, settings ...string) asks {
		return func(t *testing.T, _ *testenv.Postgres) []driver.Diagnosis {
			schema := migrated(t, shared)
			return look(role(t, shared, schema, settings...), schema, scope)
		}
	}
	// server examines one of its own with some settings.
	server := func(scope Scope, spoil func(t *testing.T, p *testenv.Postgres), settings ...string) asks {
		return func(t *testing.T, _ *testenv.Postgres) []driver.Diagnosis {
			p := testenv.StartPostgres(t, settings...)
			schema := migrated(t, p)
			if spoil != nil {
				spoil(t, p)
			}
			return look(p.URL(), schema, scope)
		}
	}
	for name, c := range map[string]struct {
		found asks
		check string
		want  driver.Verdict
		word  string // in what it says
	}{
		"no server": {func(*testing.T, *testenv.Postgres) []driver.Diagnosis {
			return look("postgres://postgres@127.0.0.1:1/postgres?sslmode=disable", "", Rows)
		}, "connection", driver.Refuse, "the network"},
		"a DSN that cannot be read": {func(*testing.T, *testenv.Postgres) []driver.Diagnosis {
			return look("postgres://host:port/x", "", Rows)
		}, "connection", driver.Refuse, "as for psql"},
		"no such database": {func(t *testing.T, p *testenv.Postgres) []driver.Diagnosis {
			return look(strings.Replace(p.URL(), "/postgres?", "/nothing?", 1), "", Rows)
		}, "connection", driver.Refuse, `CREATE DATABASE "nothing"`},
		"wrong password": {func(t *testing.T, _ *testenv.Postgres) []driver.Diagnosis {
			p := testenv.StartPostgres(t)
			p.Do(t, "CREATE ROLE app LOGIN PASSWORD 'sesame'")
			if err := os.WriteFile(filepath.Join(p.Data, "pg_hba.conf"), []byte("host all app 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			p.Restart(t)
			return look(strings.Replace(p.URL(), "postgres@", "app:wrong@", 1), "", Rows)
		}, "connection", driver.Refuse, "password is wrong"},
		"standby": {func(t *testing.T, _ *testenv.Postgres) []driver.Diagnosis {
			p := testenv.StartPostgres(t)
			return look(p.StartReplica(t).URL(), "", Rows)
		}, "role", driver.Refuse, "target_session_attrs=read-write"},
		"read-only": {with(Rows, "default_transaction_read_only = on"), "role", driver.Refuse, "SET default_transaction_read_only = off"},
		"no tables": {func(t *testing.T, p *testenv.Postgres) []driver.Diagnosis {
			return look(p.URL(), newSchema(), Rows)
		}, "schema", driver.Refuse, "holdlock migrate --grant postgres"},
		"tables of a newer release": {func(t *testing.T, p *testenv.Postgres) []driver.Diagnosis {
			schema := migrated(t, p)
			p.Do(t, fmt.Sprintf("UPDATE %q.layout SET oldest_program = 99", schema))
			return look(p.URL(), schema, Rows)
		}, "schema", driver.Refuse, "newer release"},
		"no rights on the schema": {func(t *testing.T, p *testenv.Postgres) []driver.Diagnosis {
			schema := migrated(t, p)
			url := role(t, p, schema)
			p.Do(t, fmt.Sprintf("REVOKE ALL ON SCHEMA %q FROM %q", schema, "role_"+strings.ReplaceAll(schema, " ", "_")))
			return look(url, schema, Rows)
		}, "schema", driver.Refuse, "holdlock migrate --grant"},
		"no rights on a table": {func(t *testing.T, p *testenv.Postgres) []driver.Diagnosis {
			schema := migrated(t, p)
			url := role(t, p, schema)
			p.Do(t, fmt.Sprintf("REVOKE DELETE ON %q.waiter FROM %q", schema, "role_"+strings.ReplaceAll(schema, " ", "_")))
			return look(url, schema, Rows)
		}, "rights", driver.Refuse, `."waiter" TO `},
		"fsync off":              {with(Rows), "durability", driver.Caution, "ALTER SYSTEM SET fsync = on"},
		"full_page_writes off":   {server(Rows, nil, "fsync=on", "full_page_writes=off"), "durability", driver.Caution, "full_page_writes = on"},
		"synchronous_commit off": {server(Sessions, nil, "fsync=on", "synchronous_commit=off"), "durability", driver.Caution, "SET synchronous_commit = on"},
		"short statements":       {with(Rows, "statement_timeout = '200ms'"), "timeouts", driver.Caution, "SET statement_timeout = 0"},
		"short waits for locks":  {with(Rows, "lock_timeout = '200ms'"), "timeouts", driver.Caution, "SET lock_timeout = 0"},
		"idle transactions are ended": {
			with(Transactions, "idle_in_transaction_session_timeout = '10s'"), "timeouts", driver.Caution,
			"SET idle_in_transaction_session_timeout = 0",
		},
		"long statements are ended":  {with(Transactions, "statement_timeout = '10s'"), "timeouts", driver.Caution, "SET statement_timeout = 0"},
		"idle sessions are ended":    {with(Transactions, "idle_session_timeout = '5s'"), "timeouts", driver.Caution, "SET idle_session_timeout = 0"},
		"dead machines go unnoticed": {with(Transactions, "tcp_keepalives_idle = 7200"), "keepalives", driver.Caution, "SET tcp_keepalives_idle = 60"},
		"lease rows through a pooler": {func(t *testing.T, p *testenv.Postgres) []driver.Diagnosis {
			return look(testenv.StartPgbouncer(t, p, "transaction", "default_pool_size = 5").URL(), migrated(t, p), Rows)
		}, "pooler", driver.Caution, "pool_mode = session"},
		"sessions through a pooler": {func(t *testing.T, p *testenv.Postgres) []driver.Diagnosis {
			return look(testenv.StartPgbouncer(t, p, "transaction").URL(), migrated(t, p), Sessions)
		}, "pooler", driver.Refuse, "pool_mode = session"},
		"sessions through a pool of sessions": {func(t *testing.T, p *testenv.Postgres) []driver.Diagnosis {
			return look(testenv.StartPgbouncer(t, p, "session").URL(), migrated(t, p), Sessions)
		}, "pooler", driver.Caution, "client_idle_timeout = 0"},
		"standby that lags": {server(Rows, func(t *testing.T, p *testenv.Postgres) {
			p.StartReplica(t)
			testenv.Eventually(t, "the replica is connected", func() bool {
				return p.Do(t, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'") == "1"
			})
		}, "fsync=on"), "standbys", driver.Caution, "synchronous_standby_names = 'ANY 1 (*)'"},
		"standby that is missing": {server(Rows, func(t *testing.T, p *testenv.Postgres) {
			p.Do(t, "ALTER SYSTEM SET synchronous_standby_names = 'other'")
			p.Do(t, "SELECT pg_reload_conf()")
			testenv.Eventually(t, "commits wait", func() bool { return p.Do(t, "SHOW synchronous_standby_names") == "other" })
		}, "fsync=on"), "standbys", driver.Refuse, "synchronous_standby_names = ''"},
		"standby of another name": {server(Rows, func(t *testing.T, p *testenv.Postgres) {
			p.StartReplica(t)
			testenv.Eventually(t, "the replica is connected", func() bool {
				return p.Do(t, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'") == "1"
			})
			p.Do(t, "ALTER SYSTEM SET synchronous_standby_names = 'other'")
			p.Do(t, "SELECT pg_reload_conf()")
			testenv.Eventually(t, "commits wait", func() bool { return p.Do(t, "SHOW synchronous_standby_names") == "other" })
		}, "fsync=on"), "standbys", driver.Refuse, "primary_conninfo"},
		"lock table nearly full": {server(Rows, func(t *testing.T, p *testenv.Postgres) {
			conn := connect(t, p.URL())
			if _, err := conn.Exec(t.Context(), "SELECT count(pg_advisory_lock(n)) FROM generate_series(1, 1700) n"); err != nil {
				t.Fatal(err)
			}
		}, "max_connections=20", "max_locks_per_transaction=100"), "lock table", driver.Caution, "max_locks_per_transaction = 200"},
		"connections nearly used up": {server(Rows, func(t *testing.T, p *testenv.Postgres) {
			for range 10 {
				connect(t, p.URL())
			}
		}, "max_connections=15"), "connections", driver.Caution, "max_connections = 30"},
		"far away": {func(t *testing.T, p *testenv.Postgres) []driver.Diagnosis {
			schema := migrated(t, p)
			proxy := testenv.StartProxy(t, p.Addr, func(up bool, _ []byte) testenv.Verdict {
				if up {
					time.Sleep(60 * time.Millisecond) // the way there
				}
				return testenv.Pass
			})
			return Diagnose(t.Context(), testenv.PostgresURL(proxy.Addr), &DoctorOptions{Schema: schema, TTL: 500 * time.Millisecond})
		}, "round trip", driver.Caution, "a TTL of"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := c.found(t, shared)
			for _, f := range all {
				if f.Check == c.check && f.Verdict == c.want && strings.Contains(f.Found+f.Harm+f.Setting, c.word) {
					if f.Harm == "" || f.Setting == "" {
						t.Errorf("%+v says no harm, or not what to change", f)
					}
					return
				}
			}
			t.Errorf("no %s of %q with %q in %+v", c.want, c.check, c.word, all)
		})
	}
}

// What is in order is not complained of, in each scope and for a user who may do no more than use locks; and that one is told
// what was not seen.
func TestDoctorOnGoodDatabases(t *testing.T) {
	p := testenv.StartPostgres(t, "fsync=on", "tcp_keepalives_idle=60", "tcp_keepalives_interval=10", "tcp_keepalives_count=3")
	schema := migrated(t, p)
	user := role(t, p, schema)
	rows, err := NewLeaseDriver(t.Context(), user, &LeaseOptions{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	sessions, err := NewSessionDriver(t.Context(), user, &SessionOptions{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	defer sessions.Close()
	silent := func(t *testing.T, found []driver.Diagnosis, unseen bool) {
		t.Helper()
		any := false
		for _, f := range found {
			any = any || f.Verdict == driver.Unseen
			if f.Verdict >= driver.Caution && f.Check != "round trip" { // that is for a busy machine to say
				t.Errorf("%+v", f)
			}
		}
		if len(found) < 10 || any != unseen {
			t.Errorf("something was not seen: %v, want %v, in %d findings: %+v", any, unseen, len(found), found)
		}
	}
	for name, found := range map[string]func() []driver.Diagnosis{
		"rows": func() []driver.Diagnosis { return Diagnose(t.Context(), user, &DoctorOptions{Schema: schema}) },
		"sessions": func() []driver.Diagnosis {
			return Diagnose(t.Context(), user, &DoctorOptions{Schema: schema, Scope: Sessions})
		},
		"transactions": func() []driver.Diagnosis {
			return Diagnose(t.Context(), user, &DoctorOptions{Schema: schema, Scope: Transactions})
		},
		"an open store":      func() []driver.Diagnosis { return rows.Diagnose(t.Context(), driver.DoctorOptions{}) },
		"open session store": func() []driver.Diagnosis { return sessions.Diagnose(t.Context(), driver.DoctorOptions{}) },
	} {
		t.Run(name, func(t *testing.T) { silent(t, found(), false) })
	}
	t.Run("a standby that the user may not see", func(t *testing.T) {
		p.StartReplica(t)
		p.Do(t, "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'")
		p.Do(t, "SELECT pg_reload_conf()")
		testenv.Eventually(t, "the replica is synchronous", func() bool {
			return p.Do(t, "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'quorum'") == "1"
		})
		silent(t, Diagnose(t.Context(), user, &DoctorOptions{Schema: schema}), true)
		silent(t, Diagnose(t.Context(), p.URL(), &DoctorOptions{Schema: schema}), false)
	})
	// What the doctor takes it gives back.
	if left := p.Do(t, fmt.Sprintf("SELECT count(*) FROM %s.lease WHERE state = 1", pgx.Identifier{schema}.Sanitize())); left != "0" {
		t.Errorf("%s terms are left", left)
	}
}
