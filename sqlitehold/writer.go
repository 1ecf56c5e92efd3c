package sqlitehold

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"modernc.org/sqlite"
)

// Settings of every connection. The engine must never sleep for a lock, since it cannot hear a context then: see busy.go.
//
// The log is copied back into the file when it has logPages pages, by whoever's commit gets there. That bounds its size,
// and with it the time that the first process takes to read it again (measured: 0.6 ms for a full one), while the two
// syncs of a copy are shared by some 250 pairs of acquire and release.
const (
	logPages  = 512
	logExcess = 8 << 20 // bytes; a log that could not be copied back for a while is cut to this afterwards
)

// dsn names the file to the engine, with the settings of a connection.
func dsn(path, mode string, durable bool) string {
	sync := "NORMAL"
	if durable {
		sync = "FULL"
	}
	p := filepath.ToSlash(path)
	if !strings.HasPrefix(p, "/") {
		p = "/" + p // C:/…
	}
	u := url.URL{Scheme: "file", Path: p, RawQuery: url.Values{
		"mode": {mode},
		"_pragma": {
			"busy_timeout(0)", "synchronous(" + sync + ")", "trusted_schema(0)",
			fmt.Sprintf("wal_autocheckpoint(%d)", logPages), fmt.Sprintf("journal_size_limit(%d)", logExcess),
		},
	}.Encode()}
	return u.String()
}

// A writer is a connection to the file, with its prepared statements. It is used by one goroutine at a time.
//
// No context is given to the engine: to end one it would interrupt a statement halfway, to save microseconds, and leave
// the caller without an answer.
type writer struct {
	db       *sql.DB
	conn     *sql.Conn
	prepared map[string]*sql.Stmt
}

func connect(path, mode string, durable bool) (*writer, error) {
	c, err := sqlite.NewConnector(dsn(path, mode, durable))
	if err != nil {
		return nil, err
	}
	w := &writer{db: sql.OpenDB(c), prepared: map[string]*sql.Stmt{}}
	w.db.SetMaxOpenConns(1)
	if w.conn, err = w.db.Conn(context.Background()); err != nil {
		w.db.Close()
		return nil, err
	}
	return w, nil
}

// statement returns query prepared; it stays so.
func (w *writer) statement(query string) (*sql.Stmt, error) {
	if st, ok := w.prepared[query]; ok {
		return st, nil
	}
	st, err := w.conn.PrepareContext(context.Background(), query)
	if err == nil {
		w.prepared[query] = st
	}
	return st, err
}

// row runs a statement that returns one row or none, to its end, and says whether there was one.
func (w *writer) row(query string, args []any, dest ...any) (bool, error) {
	st, err := w.statement(query)
	if err != nil {
		return false, err
	}
	rows, err := st.QueryContext(context.Background(), args...)
	if err != nil {
		return false, err
	}
	return only(rows, dest)
}

// exec runs a statement that returns no rows, and tells how many it changed.
func (w *writer) exec(query string, args ...any) (int64, error) {
	st, err := w.statement(query)
	if err != nil {
		return 0, err
	}
	r, err := st.ExecContext(context.Background(), args...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// only reads rows to the end: what a statement changes is committed there, and may fail there.
func only(rows *sql.Rows, dest []any) (found bool, err error) {
	defer rows.Close()
	for rows.Next() {
		if found = true; len(dest) == 0 {
			continue
		}
		if err := rows.Scan(dest...); err != nil {
			return false, err
		}
	}
	if err := rows.Err(); err != nil {
		return false, err
	}
	return found, rows.Close()
}

// once is row for a statement that is not run again.
func (w *writer) once(query string, dest ...any) (bool, error) {
	rows, err := w.conn.QueryContext(context.Background(), query)
	if err != nil {
		return false, err
	}
	return only(rows, dest)
}

// all calls f for every row of a query, each of which it scans into dest.
func (w *writer) all(query string, args, dest []any, f func()) error {
	st, err := w.statement(query)
	if err != nil {
		return err
	}
	rows, err := st.QueryContext(context.Background(), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(dest...); err != nil {
			return err
		}
		f()
	}
	return rows.Err()
}

// transaction runs f in a transaction, which is kept only if f succeeds.
func (w *writer) transaction(begin string, f func() error) error {
	if _, err := w.exec(begin); err != nil {
		return err
	}
	err := f()
	if err == nil {
		if err = w.commit(); err == nil {
			return nil
		}
	}
	// Fails if the engine has rolled back already, as it does after some errors.
	_, _ = w.exec("ROLLBACK")
	return err
}

// commit commits. Only while the file has no log yet can readers be in the way. None can come in as long as we try, so we
// try for a moment rather than begin again: among many who look, that might not succeed for long.
func (w *writer) commit() error {
	for tries := 0; ; tries++ {
		if _, err := w.exec("COMMIT"); !isLocked(err) || tries == 50 {
			return err
		}
		time.Sleep(time.Millisecond)
	}
}

// readOnly says whether the engine could not open the file for writing.
func (w *writer) readOnly() (ro bool, err error) {
	err = w.conn.Raw(func(c any) error {
		ro, err = c.(interface{ IsReadOnly(string) (bool, error) }).IsReadOnly("main")
		return err
	})
	return ro, err
}

// close closes the connection. If it is the last one to the file, the engine copies the log back and removes it.
func (w *writer) close() error {
	for _, st := range w.prepared {
		st.Close()
	}
	err := w.conn.Close()
	if e := w.db.Close(); err == nil {
		err = e
	}
	return err
}

// closeKeepingLog is close without the copying, which would cost every short-lived process two syncs. Only a connection
// that can write does it, and only if it is the last one: so one that cannot write goes last.
func (w *writer) closeKeepingLog(path string, durable bool) error {
	last, err := connect(path, "ro", durable)
	if err != nil {
		return w.close()
	}
	_, _ = last.once("PRAGMA user_version") // takes the lock by which it is seen
	err = w.close()
	_ = last.close()
	return err
}
