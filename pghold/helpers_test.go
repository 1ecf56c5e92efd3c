//go:build unix

package pghold

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdlock/holdlock/internal/testenv"
)

// patience bounds what should come soon, on machines that may be busy.
const patience = 60 * time.Second

func testContext(tb testing.TB) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	tb.Cleanup(cancel)
	return ctx
}

// connect returns a connection of its own.
func connect(tb testing.TB, url string) *pgx.Conn {
	tb.Helper()
	conn, err := pgx.Connect(testContext(tb), url)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

var schemas atomic.Int64

// newSchema returns a name that no other test uses.
func newSchema() string { return fmt.Sprintf("Test %d", schemas.Add(1)) }

// migrated returns a schema of its own with all tables.
func migrated(tb testing.TB, p *testenv.Postgres) string {
	tb.Helper()
	schema := newSchema()
	conn := connect(tb, p.URL())
	if err := Migrate(testContext(tb), conn, schema); err != nil {
		tb.Fatal(err)
	}
	conn.Close(context.Background())
	return schema
}
