//go:build unix

package pghold

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"io"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/holdlock/holdlock/internal/testenv"
)

// What a server has refused to commit is told from what may have been committed.
func TestNotCommittedOnAServer(t *testing.T) {
	t.Parallel()
	p := testenv.SharedPostgres(t)
	schema := migrated(t, p)
	p.Do(t, inSchema(`CREATE TABLE "holdlock".effects (id text, UNIQUE (id) DEFERRABLE INITIALLY DEFERRED); INSERT INTO "holdlock".effects VALUES ('dup')`, schema))
	insert := func(id string) string {
		return inSchema(fmt.Sprintf(`INSERT INTO "holdlock".effects VALUES ('%s')`, id), schema)
	}
	for _, w := range ways(t, p) {
		for what, work := range map[string]func(ctx context.Context, tx Tx){
			"a constraint that is checked at the end": func(ctx context.Context, tx Tx) { _, _ = tx.Exec(ctx, insert("dup")) },
			"an error that was passed over":           func(ctx context.Context, tx Tx) { _, _ = tx.Exec(ctx, "SELECT 1/0") },
			"a rollback before":                       func(ctx context.Context, tx Tx) { _ = tx.Rollback(ctx) },
		} {
			ctx := testContext(t)
			tx := w.begin(t, "")
			work(ctx, tx)
			if err := tx.Commit(ctx); err == nil || !NotCommitted(err) {
				t.Errorf("%s, %s: %v", w.name, what, err)
			}
		}
	}
	if got := p.Do(t, inSchema(`SELECT count(*) FROM "holdlock".effects`, schema)); got != "1" {
		t.Errorf("%s effects", got)
	}

	// A connection whose rows were not read to their end.
	ctx := testContext(t)
	conn, err := pgx.Connect(ctx, p.URL())
	must(t, err)
	defer conn.Close(context.Background())
	tx, err := conn.Begin(ctx)
	must(t, err)
	if _, err := tx.Query(ctx, "SELECT generate_series(1, 10)"); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(ctx); err == nil || !NotCommitted(err) {
		t.Errorf("rows that were not read: %v", err)
	}

	// The answer to a commit is lost: it has happened, or it has not.
	proxy := testenv.StartProxy(t, p.Addr, nil)
	far, err := pgxpool.New(ctx, testenv.PostgresURL(proxy.Addr))
	must(t, err)
	defer far.Close()
	for id, verdict := range map[string]testenv.Verdict{"answer lost": testenv.LoseReply, "request lost": testenv.Cut} {
		proxy.SetScript(nil)
		tx, err := far.Begin(ctx)
		must(t, err)
		_, err = tx.Exec(ctx, insert(id))
		must(t, err)
		proxy.SetScript(func(up bool, data []byte) testenv.Verdict {
			if up && bytes.Contains(data, []byte("commit")) {
				return verdict
			}
			return testenv.Pass
		})
		if err := tx.Commit(ctx); err == nil || NotCommitted(err) {
			t.Errorf("%s: %v", id, err)
		}
	}
}

func TestNotCommitted(t *testing.T) {
	t.Parallel()
	server := func(severity, code string) error {
		return fmt.Errorf("commit: %w", &pgconn.PgError{Severity: severity, SeverityUnlocalized: severity, Code: code})
	}
	for what, c := range map[string]struct {
		err  error
		want bool
	}{
		"nil":                       {nil, false},
		"unique":                    {server("ERROR", "23505"), true},
		"foreign key":               {server("ERROR", "23503"), true},
		"serialization":             {server("ERROR", "40001"), true},
		"cancelled":                 {server("ERROR", "57014"), true},
		"disk full":                 {server("ERROR", "53100"), false},
		"localized":                 {&pgconn.PgError{Severity: "FEHLER", SeverityUnlocalized: "ERROR", Code: "23505"}, true},
		"disk full for the log":     {server("PANIC", "53100"), false},
		"idle for too long":         {server("FATAL", "25P03"), true},
		"transaction_timeout":       {server("FATAL", "25P04"), false},
		"shutdown":                  {server("FATAL", "57P01"), false},
		"shutdown, as an error":     {server("ERROR", "57P01"), false},
		"completion unknown":        {server("ERROR", "40003"), false},
		"connection":                {server("ERROR", "08006"), false},
		"i/o":                       {server("ERROR", "58030"), false},
		"internal":                  {server("ERROR", "XX000"), false},
		"cut":                       {io.ErrUnexpectedEOF, false},
		"deadline":                  {context.DeadlineExceeded, false},
		"rolled back":               {pgx.ErrTxCommitRollback, true},
		"ended":                     {fmt.Errorf("commit: %w", pgx.ErrTxClosed), true},
		"ended, database/sql":       {sql.ErrTxDone, true},
		"another driver":            {coded("23505"), true},
		"another driver, shutdown":  {coded("57P01"), false},
		"another driver, no code":   {coded(""), false},
		"a statement of Once fails": {&TxError{Op: "SetResult", Code: "25P02", Err: server("ERROR", "25P02")}, true},
	} {
		if got := NotCommitted(c.err); got != c.want {
			t.Errorf("%s: %v", what, got)
		}
	}
}

// coded is the error of a driver that is not pgx.
type coded string

func (c coded) Error() string    { return "refused" }
func (c coded) SQLState() string { return string(c) }
