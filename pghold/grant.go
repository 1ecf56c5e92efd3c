package pghold

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// What a program needs that uses the locks and does not migrate. docs/stores/postgres.md shows the same.
const grants = `GRANT USAGE ON SCHEMA "holdlock" TO "role";
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA "holdlock" TO "role";
REVOKE INSERT, UPDATE, DELETE ON "holdlock".layout FROM "role";
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA "holdlock" TO "role";`

// Grant gives a role the rights that a program needs to use the locks of a schema, and no more. It is to be called again
// after a Migrate that has made something.
func Grant(ctx context.Context, conn *pgx.Conn, schema, role string) error {
	schema, err := checkSchema(schema)
	if err != nil {
		return err
	}
	sql := strings.ReplaceAll(inSchema(grants, schema), `"role"`, pgx.Identifier{role}.Sanitize())
	if _, err := conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("pghold: granting rights on schema %q to %q: %w", schema, role, err)
	}
	return nil
}
