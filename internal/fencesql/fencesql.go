// Package fencesql has the statements of the SQL fences, which reach a database by different libraries.
package fencesql

import (
	"fmt"
	"regexp"
	"strings"
)

// Dialect is how a database is spoken to.
type Dialect uint8

// The dialects.
const (
	PostgreSQL Dialect = iota
	SQLite
)

// Statements are for one table of marks. The arguments of Mark are lock and token, of Seen the lock, of Sweep the age in
// seconds.
type Statements struct{ Create, Mark, Seen, Sweep string }

// tables are plain names, with a schema or not: they are put into statements as they are.
var tables = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,62}(\.[A-Za-z_][A-Za-z0-9_]{0,62})?$`)

// For returns the statements for a table.
func For(d Dialect, table string) (Statements, error) {
	if !tables.MatchString(table) {
		return Statements{}, fmt.Errorf("table of marks %.80q: letters, digits and _ are allowed, and one dot after a schema", table)
	}
	if d > SQLite {
		return Statements{}, fmt.Errorf("dialect %d is not known: PostgreSQL or SQLite", d)
	}
	types, now, old := "text PRIMARY KEY, token bigint NOT NULL, marked_at timestamptz NOT NULL", "clock_timestamp()",
		"clock_timestamp() - $1 * interval '1 second'"
	if d == SQLite {
		types, now, old = "TEXT PRIMARY KEY, token INTEGER NOT NULL, marked_at INTEGER NOT NULL", "unixepoch()", "unixepoch() - $1"
	}
	bare := table[strings.IndexByte(table, '.')+1:] // in ON CONFLICT the table goes by its own name
	return Statements{
		Create: fmt.Sprintf("CREATE TABLE IF NOT EXISTS %s (lock %s)", table, types),
		// The WHERE makes a stale token change no row; the row is locked either way, until the transaction ends.
		Mark: fmt.Sprintf("INSERT INTO %[1]s (lock, token, marked_at) VALUES ($1, $2, %[3]s) ON CONFLICT (lock) DO UPDATE "+
			"SET token = excluded.token, marked_at = excluded.marked_at WHERE %[2]s.token <= excluded.token", table, bare, now),
		Seen:  fmt.Sprintf("SELECT token FROM %s WHERE lock = $1", table),
		Sweep: fmt.Sprintf("DELETE FROM %s WHERE marked_at < %s", table, old),
	}, nil
}
