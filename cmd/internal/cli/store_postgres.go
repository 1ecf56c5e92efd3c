package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/pghold"
)

// PostgreSQL URLs:
//
//	postgres://[USER[:PASSWORD]@][HOST[:PORT],…][/DATABASE][?NAME=VALUE&…]            lease rows
//	postgres+advisory://…                                                            session locks
//
// postgresql:// is the same. What a URL does not say comes from the environment and the files that psql reads: PGHOST,
// PGUSER, PGPASSWORD, PGSERVICE, ~/.pgpass and so on. Behind the ? stands what libpq knows (sslmode, sslrootcert, passfile,
// target_session_attrs, …), and, of our own: schema=NAME, and for session locks on_frozen=block|expire.

// postgresKind says whether a scheme is one of PostgreSQL's, and which store it means.
func postgresKind(scheme string) (advisory, ok bool) {
	kind, rest, _ := strings.Cut(scheme, "+")
	if kind != "postgres" && kind != "postgresql" {
		return false, false
	}
	return rest == "advisory", rest == "" && kind == scheme || rest == "advisory"
}

// postgresURL is what such a URL says.
type postgresURL struct {
	dsn      string // for pgx
	advisory bool
	schema   string
	frozen   pghold.Frozen
}

func parsePostgres(scheme, rest string) (*postgresURL, error) {
	u := &postgresURL{schema: pghold.DefaultSchema}
	u.advisory, _ = postgresKind(scheme)
	if !strings.HasPrefix(rest, "//") {
		return nil, errors.New("write it as " + scheme + "://HOST/DATABASE, or " + scheme + ":// for what the environment says")
	}
	// Our own options are taken out; the rest goes to pgx as it is.
	where, query, _ := strings.Cut(rest, "?")
	if at := strings.LastIndexByte(rest, '?'); at >= 0 {
		where, query = rest[:at], rest[at+1:]
	}
	var keep []string
	for option := range strings.SplitSeq(query, "&") {
		name, value, _ := strings.Cut(option, "=")
		switch {
		case option == "":
		case name == "schema":
			u.schema = unescape(value)
		case name == "on_frozen" && !u.advisory:
			return nil, errors.New("on_frozen is for postgres+advisory: a lease row always expires")
		case name == "on_frozen" && value == "block":
			u.frozen = pghold.Block
		case name == "on_frozen" && value == "expire":
			u.frozen = pghold.Expire
		case name == "on_frozen":
			return nil, errors.New("on_frozen is block or expire")
		default:
			keep = append(keep, option)
		}
	}
	if authority, _, _ := strings.Cut(strings.TrimPrefix(where, "//"), "/"); strings.Count(authority, "@") > 1 {
		// What stands behind the first @ would be taken for a host, and printed.
		return nil, errors.New("there is more than one @ before the database: write %40 for those in the user or the password")
	}
	u.dsn = "postgres:" + where
	if where == "//" {
		u.dsn = "postgres:///" // all from the environment
	}
	if len(keep) > 0 {
		u.dsn += "?" + strings.Join(keep, "&")
	}
	return u, nil
}

func openPostgres(ctx context.Context, scheme, rest, namespace string, timeout time.Duration) (driver.Driver, error) {
	u, err := parsePostgres(scheme, rest)
	if err != nil {
		return nil, usage("--store " + scheme + ": " + err.Error())
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if u.advisory {
		d, err := pghold.NewSessionDriver(ctx, u.dsn, &pghold.SessionOptions{Schema: u.schema, Namespace: namespace, OnFrozen: u.frozen})
		if err != nil {
			return nil, hidePostgres(scheme, err)
		}
		return d, nil
	}
	d, err := pghold.NewLeaseDriver(ctx, u.dsn, &pghold.LeaseOptions{Schema: u.schema, Namespace: namespace})
	if err != nil {
		return nil, hidePostgres(scheme, err)
	}
	return d, nil
}

// hidePostgres replaces an error about a URL that cannot be read: pgx shows the URL in it, and cannot tell for certain where
// in such a one the password ends.
func hidePostgres(scheme string, err error) error {
	var parse *pgconn.ParseConfigError
	if errors.As(err, &parse) {
		return usage("--store " + scheme + ": the URL, or what the environment adds to it, cannot be read; in a user or password, signs " +
			"like / ? # @ % are written as %2F %3F %23 %40 %25, or the password stands in PGPASSWORD or ~/.pgpass")
	}
	return err
}

type migrateCmd struct {
	Grant string `help:"Also grant what a program needs to use the locks to this role." placeholder:"ROLE"`
}

// Run makes or updates the tables of a PostgreSQL store.
func (m *migrateCmd) Run(g *globals) error {
	var scheme, rest string
	if s := g.stores(); len(s.URLs) == 1 {
		scheme, rest, _ = strings.Cut(s.URLs[0], ":")
	}
	if _, ok := postgresKind(scheme); !ok {
		return usage("migrate is for postgres:// stores; the others need none")
	}
	u, err := parsePostgres(scheme, rest)
	if err != nil {
		return usage("--store " + scheme + ": " + err.Error())
	}
	ctx, cancel := context.WithTimeout(context.Background(), max(g.Timeout, time.Minute))
	defer cancel()
	config, err := pgx.ParseConfig(u.dsn)
	if err != nil {
		return hidePostgres(scheme, err)
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeExec // a pooler may be in between
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return pghold.Refusal(err)
	}
	defer conn.Close(ctx)
	if m.Grant != "" { // before anything is made
		var known bool
		if err := conn.QueryRow(ctx, "SELECT pg_catalog.to_regrole($1) IS NOT NULL", pgx.Identifier{m.Grant}.Sanitize()).Scan(&known); err != nil {
			return err
		}
		if !known {
			return usage(fmt.Sprintf("--grant %q: the server has no such role; nothing was made or changed", m.Grant))
		}
	}
	if err := pghold.Migrate(ctx, conn, u.schema); err != nil {
		return err
	}
	if m.Grant != "" {
		if err := pghold.Grant(ctx, conn, u.schema, m.Grant); err != nil {
			return fmt.Errorf("schema %s is up to date, and the rights could not be granted: %w", u.schema, err)
		}
	}
	g.say("migrated", "schema "+u.schema+" is up to date", map[string]any{"schema": u.schema})
	return nil
}
