package pghold

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// DefaultSchema is where the tables are unless another schema is named.
const DefaultSchema = "holdlock"

// The layout is a wire format: programs built with different releases share it.
const (
	schemaVersion = 2 // what Migrate makes
	// oldestProgram is written into the schema: the oldest layout whose programs may still use this one. So a fleet can be
	// migrated before its last program is restarted with the new release.
	oldestProgram = 1
)

//go:embed sql
var migrations embed.FS

// ErrSchema is wrapped by errors about a schema that is missing, too old or too new for this program.
var ErrSchema = errors.New("the holdlock schema does not fit this program")

// Migrate makes the tables and functions that the stores of this package need, or brings them up to date. It does it in
// one transaction, under an advisory lock: any number of processes may call it at once. If there is nothing to do
// it writes nothing. An empty schema is DefaultSchema; the schema itself is made if it is not there.
//
// The error wraps ErrSchema if the schema was made by a newer release than programs of this one may use.
//
// It needs the right to create the schema, or, where an administrator has created it, to create in it. Programs that use
// the locks need less; see docs/stores/postgres.md. conn must not be in a transaction. Connections behind a pooler will do.
func Migrate(ctx context.Context, conn *pgx.Conn, schema string) error {
	schema, err := checkSchema(schema)
	if err != nil {
		return err
	}
	err = pgx.BeginTxFunc(ctx, conn, pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_catalog.pg_advisory_xact_lock($1)", execMode, LockID(schema, "/migrate")); err != nil {
			return err
		}
		have, err := readLayout(ctx, tx, schema)
		if err != nil {
			return err
		}
		if have.version >= schemaVersion {
			return have.check(schema)
		}
		for v := have.version + 1; v <= schemaVersion; v++ {
			text, err := step(v)
			if err != nil {
				return err
			}
			sql := inSchema(text, schema)
			if v == 1 {
				sql = inSchema(createLayout, schema) + sql
			}
			if _, err := tx.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
				return err
			}
		}
		_, err = tx.Exec(ctx, inSchema(`INSERT INTO "holdlock".layout (version, oldest_program, made) VALUES ($1, $2, now())`, schema),
			execMode, schemaVersion, oldestProgram)
		return err
	})
	if err != nil {
		return fmt.Errorf("pghold: migrating schema %q: %w", schema, err)
	}
	return nil
}

// step returns the text that makes layout v from the one before: N.sql, and what belongs to it in files called N-….sql.
func step(v int) (string, error) {
	more, err := fs.Glob(migrations, fmt.Sprintf("sql/%d-*.sql", v))
	if err != nil {
		return "", err
	}
	var text strings.Builder
	for _, name := range append([]string{fmt.Sprintf("sql/%d.sql", v)}, more...) {
		part, err := migrations.ReadFile(name)
		if err != nil {
			return "", err
		}
		text.Write(part)
	}
	return text.String(), nil
}

// createLayout makes what tells the layout. The schema may have been made by an administrator: CREATE SCHEMA, IF NOT EXISTS
// or not, asks for the right to create schemas even if there is nothing to create.
const createLayout = `
DO $do$ BEGIN
	IF to_regnamespace('"holdlock"') IS NULL THEN CREATE SCHEMA "holdlock"; END IF;
END $do$;
CREATE TABLE "holdlock".layout (version int PRIMARY KEY, oldest_program int NOT NULL, made timestamptz NOT NULL);
`

// execMode has pgx send the parameters with the statement and prepare nothing that lives longer, which no pooler
// minds.
const execMode = pgx.QueryExecModeExec

// layout is what a schema says about itself.
type layout struct{ version, oldestProgram int }

// querier is what a pool, a connection and a transaction have in common.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// readLayout returns version 0 if there is nothing.
func readLayout(ctx context.Context, q querier, schema string) (l layout, err error) {
	var exists bool
	err = q.QueryRow(ctx, "SELECT pg_catalog.to_regclass($1) IS NOT NULL", execMode, inSchema(`"holdlock".layout`, schema)).Scan(&exists)
	if err != nil || !exists {
		return l, err
	}
	err = q.QueryRow(ctx, inSchema(`SELECT version, oldest_program FROM "holdlock".layout ORDER BY version DESC LIMIT 1`, schema), execMode).
		Scan(&l.version, &l.oldestProgram)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return l, err
}

// check says why a program of this release cannot use the schema.
func (l layout) check(schema string) error {
	switch {
	case l.version == 0:
		return fmt.Errorf("%w: schema %q has no tables of holdlock; make them with `holdlock migrate` or pghold.Migrate", ErrSchema, schema)
	case l.oldestProgram > schemaVersion:
		return fmt.Errorf("%w: schema %q has layout %d, made by a newer release, which programs that know layout %d cannot use; "+
			"upgrade this program", ErrSchema, schema, l.version, schemaVersion)
	case l.version < schemaVersion:
		return fmt.Errorf("%w: schema %q has layout %d and this program needs %d; run `holdlock migrate` or pghold.Migrate",
			ErrSchema, schema, l.version, schemaVersion)
	}
	return nil
}

// checkLayout reads the layout and says why it does not fit.
func checkLayout(ctx context.Context, q querier, schema string) error {
	l, err := readLayout(ctx, q, schema)
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == "42501" { // insufficient_privilege
		return fmt.Errorf("%w: this user has no rights on schema %q; grant them as docs/stores/postgres.md says: %w", ErrSchema, schema, err)
	}
	if err != nil {
		return err
	}
	return l.check(schema)
}

// inSchema puts the schema into a text that calls it "holdlock".
func inSchema(sql, schema string) string {
	return strings.ReplaceAll(sql, `"holdlock"`, pgx.Identifier{schema}.Sanitize())
}

// checkSchema returns the name of the schema, or what is wrong with it.
func checkSchema(schema string) (string, error) {
	switch {
	case schema == "":
		return DefaultSchema, nil
	case len(schema) > 63 || !utf8.ValidString(schema) || strings.ContainsAny(schema, "\x00'$\\"):
		return "", fmt.Errorf("pghold: schema %.80q: a name of at most 63 bytes of UTF-8 without ' $ \\ and NUL is wanted", schema)
	case strings.HasPrefix(schema, "pg_"):
		return "", fmt.Errorf("pghold: schema %q: names that begin with pg_ are PostgreSQL's own", schema)
	}
	return schema, nil
}
