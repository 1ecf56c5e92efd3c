package pghold

import (
	"database/sql"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// NotCommitted reports whether err, which Commit of a transaction has returned, says for certain that this Commit has committed nothing: a
// constraint that is checked at the end, a statement that had failed before, a transaction that had been ended before. It is the work's
// own failure then, and the same work would fail again. Otherwise only the record of Once says whether the transaction was committed. A
// statement in a transaction can be asked about as well.
//
// It knows the errors of pgx and database/sql, and those of other drivers that have a method SQLState() string.
func NotCommitted(err error) bool {
	switch {
	case err == nil:
		return false
	case errors.Is(err, pgx.ErrTxCommitRollback), errors.Is(err, pgx.ErrTxClosed), errors.Is(err, sql.ErrTxDone):
		return true
	case pgconn.SafeToRetry(err): // nothing was sent, as on a connection whose rows were not read to their end
		return true
	}
	var state interface{ SQLState() string }
	if !errors.As(err, &state) {
		return false
	}
	code := state.SQLState()
	var server *pgconn.PgError
	if errors.As(err, &server) && server.Severity != "ERROR" && server.SeverityUnlocalized != "ERROR" {
		return code == idleInTransaction // other ends of a connection may come after the commit, and before its answer
	}
	return len(code) == 5 && code != completionUnknown && !slices.Contains(unclearClasses, code[:2]) && code[:3] != operatorIntervened
}

const (
	idleInTransaction  = "25P03" // the server ends a transaction that is idle, so it had not begun to commit
	completionUnknown  = "40003"
	operatorIntervened = "57P" // a shutdown or a crash, or a server that is not up
)

// Connections, resources, the system and the inside of the server: what failed there is not the work's fault, and may have been after the commit.
var unclearClasses = []string{"08", "53", "58", "XX"}
