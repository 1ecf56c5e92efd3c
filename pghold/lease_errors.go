package pghold

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/holdlock/holdlock/driver"
)

// The codes of PostgreSQL that mean something to a lease row.
const (
	serializationFailure = "40001"
	deadlockDetected     = "40P01"
	readOnlyTransaction  = "25006"
	noRights             = "42501"
	noFunction           = "42883"
	noTable              = "42P01"
	noSchema             = "3F000"
	tooManyConnections   = "53300"
)

var errReadOnly = errors.New("the database cannot be written")

// unsentError is an error from before anything was sent.
type unsentError struct{ err error }

func (e *unsentError) Error() string { return e.err.Error() }

func (e *unsentError) Unwrap() error { return e.err }

// leaseFailure makes the error of a step that the store did not answer. pgx's own error stays reachable with errors.As.
func leaseFailure(verb, key string, err error) error {
	err = advise(err)
	if certain(err) && !errors.Is(err, driver.ErrNotApplied) {
		return fmt.Errorf("pghold: %s %q: %w (%w)", verb, key, err, driver.ErrNotApplied)
	}
	return fmt.Errorf("pghold: %s %q: %w", verb, key, err)
}

// connectError puts what the server has said before what else was tried. pgx tries every address with TLS and without, and
// tells of all of it in several lines.
type connectError struct {
	err  *pgconn.ConnectError
	said *pgconn.PgError
}

func (e *connectError) Error() string { return "the server refused the connection: " + e.said.Error() }

func (e *connectError) Unwrap() error { return e.err }

// Refusal returns an error of pgx's connecting with what the server has said in front, in one line, if it has said anything;
// otherwise err itself. The stores do it; it is for programs that connect for Migrate and Grant.
func Refusal(err error) error {
	var tried *pgconn.ConnectError
	var said *pgconn.PgError
	var known *connectError
	if errors.As(err, &known) || !errors.As(err, &tried) || !errors.As(tried, &said) {
		return err
	}
	return &connectError{tried, said}
}

// advise says what to do about the errors that people meet.
func advise(err error) error {
	err = Refusal(err)
	switch code(err) {
	case readOnlyTransaction:
		return fmt.Errorf("%w: it has become a replica, or default_transaction_read_only is on: %w", errReadOnly, err)
	case noFunction, noTable, noSchema:
		return fmt.Errorf("%w: tables or functions are missing; run `holdlock migrate` or pghold.Migrate: %w", ErrSchema, err)
	case noRights:
		return fmt.Errorf("%w: this user lacks rights in it; grant them with `holdlock migrate --grant`, or as docs/stores/postgres.md says: %w", ErrSchema, err)
	case tooManyConnections:
		return fmt.Errorf("the server has no connection left (max_connections); this store opens MaxConns and one to listen: %w", err)
	}
	return err
}

// certain says whether a step that failed has certainly changed nothing. A statement that the server refuses is rolled back
// as a whole. What ends the connection (FATAL, or no answer) can come after the commit.
func certain(err error) bool {
	var unsent *unsentError
	var connecting *pgconn.ConnectError // Refusal leaves nothing else of an unsentError
	var refused *pgconn.PgError
	switch {
	case errors.As(err, &unsent), errors.As(err, &connecting), pgconn.SafeToRetry(err):
		return true
	case errors.As(err, &refused):
		return refused.SeverityUnlocalized == "ERROR"
	}
	return false
}

// code returns the SQLSTATE of an error, or "".
func code(err error) string {
	var refused *pgconn.PgError
	if errors.As(err, &refused) {
		return refused.Code
	}
	return ""
}
