package sqlitehold

import (
	"errors"
	"fmt"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/holdlock/holdlock/driver"
)

// A refusal is an answer about the key, or about the file, as opposed to a failure of the store.
type refusal struct {
	verb, key string
	err       error
}

func (r *refusal) Error() string {
	return fmt.Sprintf("sqlitehold: %s: %v", called(r.verb, r.key), r.err)
}
func (r *refusal) Unwrap() error { return r.err }

// called names a call in an error.
func called(verb, key string) string {
	if key == "" {
		return verb
	}
	return fmt.Sprintf("%s %q", verb, key)
}

// explain words the failure of a call. Answers about the key pass as they are.
func (g *gate) explain(verb, key string, err error) error {
	var held *driver.HeldError
	var job *driver.JobError
	var about *refusal
	if err == nil || errors.As(err, &held) || errors.As(err, &job) || errors.As(err, &about) {
		return err
	}
	advice, untouched := diagnose(err)
	err = fmt.Errorf("sqlitehold: %s in %s: %s%w", called(verb, key), g.path, advice, err)
	if untouched && !errors.Is(err, driver.ErrNotApplied) {
		err = fmt.Errorf("%w (%w)", err, driver.ErrNotApplied)
	}
	return err
}

// diagnose says what can be done about an error of the engine, and whether the transaction has certainly not happened.
//
// A failed write or sync is not certain: the last page of the transaction may be in the log nevertheless, unseen by all
// who are running, and be found when the log is next read from its start.
func diagnose(err error) (advice string, untouched bool) {
	switch primaryCode(err) {
	case sqlite3.SQLITE_FULL:
		return "the disk is full, or a quota is used up: ", true
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_AUTH:
		return "this process may not write the file, or make NAME-wal and NAME-shm beside it; check owners and modes: ", true
	case sqlite3.SQLITE_CANTOPEN:
		return "the file, or NAME-wal or NAME-shm beside it, cannot be opened for writing; check owners and modes: ", true
	case sqlite3.SQLITE_NOTADB:
		return "the file is not a database; name another one, or move it away if it was one: ", true
	case sqlite3.SQLITE_CORRUPT:
		return "the file is damaged; stop the programs that use it, move it away with its -wal and -shm, " +
			"and a new one is made: ", true
	case sqlite3.SQLITE_IOERR:
		return "reading or writing the file failed: ", false
	default:
		return "", false
	}
}
