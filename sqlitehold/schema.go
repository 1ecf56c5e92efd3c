package sqlitehold

import "fmt"

// The layout of the file. It is a wire format: programs built with different releases share the file, so a change of the
// layout raises schemaVersion, and golden_test.go notices one that does not. SQLite stores these texts, comments and all,
// in the file, where an operator can read them.
const (
	applicationID = 0x686f6c64 // "hold", in the header of the file
	schemaVersion = 3          // user_version in the header; 1 had neither job nor usage, 2 not term.written

	createTerm = `CREATE TABLE term (
	id        INTEGER PRIMARY KEY,
	namespace TEXT    NOT NULL,
	key       TEXT    NOT NULL,
	nonce     TEXT    NOT NULL, -- names the term; empty once it is released
	state     INTEGER NOT NULL, -- 1 held, 2 released but cooling until expiry, 3 over before expiry
	token     INTEGER NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
	boot      TEXT    NOT NULL, -- the boot in which expiry counts; in any other one the key is free
	expiry    INTEGER NOT NULL, -- nanoseconds since boot; from then on the key is free
	acquired  INTEGER NOT NULL, -- microseconds since 1970, for people
	used      INTEGER NOT NULL, -- likewise: the last change
	holder    TEXT    NOT NULL, -- JSON
	broken    TEXT,             -- which operator ended the term, and why
	previous  INTEGER NOT NULL, -- how the term before ended: 0 unknown, 1 released, 2 lapsed, 3 broken
	prior     TEXT,             -- the term before, if it was not released: JSON
	UNIQUE (namespace, key)
) STRICT`

	// Layout 3. It is 0 in rows that programs of layout 2 have made, which proves nothing about them; see someBoot and env.ends.
	addWritten = `ALTER TABLE term ADD COLUMN written INTEGER NOT NULL DEFAULT 0 /* nanoseconds since boot: when expiry was set */`

	createWaiter = `CREATE TABLE waiter (
	seq       INTEGER PRIMARY KEY, -- the order of the line
	namespace TEXT    NOT NULL,
	key       TEXT    NOT NULL,
	net       TEXT    NOT NULL, -- the network namespace in which the address means something
	address   TEXT    NOT NULL, -- abstract unix datagram socket of the waiting process
	boot      TEXT    NOT NULL,
	since     INTEGER NOT NULL  -- nanoseconds since boot
) STRICT`

	createWaiterKey = `CREATE INDEX waiter_key ON waiter (namespace, key)`
)

// The values of term.state.
const (
	stateHeld = 1 + iota
	stateCooling
	stateOver
)

// identity is what a file says about itself.
type identity struct {
	application, version int
	objects              int // tables, indexes, …
}

// identify reads the identity in one transaction, since another process may be about to set it.
func (w *writer) identify() (id identity, err error) {
	err = w.transaction("BEGIN", func() error {
		id, err = w.identity()
		return err
	})
	return id, err
}

func (w *writer) identity() (id identity, err error) {
	if _, err = w.once("PRAGMA application_id", &id.application); err != nil {
		return id, err
	}
	if _, err = w.once("PRAGMA user_version", &id.version); err != nil {
		return id, err
	}
	_, err = w.once("SELECT count(*) FROM sqlite_schema", &id.objects)
	return id, err
}

// check says why a file is not one of ours.
func (id identity) check(path string) error {
	var err error
	switch {
	case id.application == applicationID && id.version == schemaVersion && id.objects > 0:
		return nil
	case id.application == applicationID && 1 <= id.version && id.version <= schemaVersion && id.objects == 0:
		err = fmt.Errorf("%s is damaged: it has no tables; move it away", path)
	case id.application == applicationID && id.version > schemaVersion:
		err = fmt.Errorf("%s was made by a newer release (layout %d, this one knows %d); upgrade this program",
			path, id.version, schemaVersion)
	case id.application == applicationID: // the earlier ones have been brought up to date before
		err = fmt.Errorf("%s has layout %d, which no release has made; move it away", path, id.version)
	default:
		err = fmt.Errorf("%s is the database of another application (application_id %d, %d tables and indexes); "+
			"name a file of its own for the locks", path, id.application, id.objects)
	}
	return &refusal{"open", "", err}
}

// setUp makes an empty file ours and leaves one that is ours as it is. It writes nothing to any other file. Many
// processes may do this at once; it is to be called again while the file is locked.
func (w *writer) setUp(path string) error {
	id, err := w.identify()
	if err == nil && id == (identity{}) {
		if err = w.initialise(); err == nil {
			id, err = w.identify()
		}
	}
	if err == nil && id.application == applicationID && 1 <= id.version && id.version < schemaVersion && id.objects > 0 {
		if err = w.migrate(); err == nil {
			id, err = w.identify()
		}
	}
	if err == nil {
		err = id.check(path)
	}
	if err != nil {
		return err
	}
	var mode string
	if _, err := w.once("PRAGMA journal_mode = WAL", &mode); err != nil {
		return err
	}
	if mode != "wal" {
		return &refusal{"open", "", fmt.Errorf("no write-ahead log can be kept beside %s (the journal mode is %q); "+
			"put the file on another file system", path, mode)}
	}
	return nil
}

// initialise makes an empty file ours, unless another process was faster. The journal is not yet a log then, so that the
// file itself says whose it is from its first page on. A file that was not there is initialised before anyone can see it
// (see createFile); this is done in view of others only to one that was empty.
func (w *writer) initialise() error {
	return w.transaction("BEGIN IMMEDIATE", func() error {
		if id, err := w.identity(); err != nil || id != (identity{}) {
			return err
		}
		for _, q := range []string{
			createTerm, addWritten, createWaiter, createWaiterKey, createJob, createJobUndone, createJobExpires, createUsage,
			fmt.Sprintf("PRAGMA application_id = %d", applicationID),
			fmt.Sprintf("PRAGMA user_version = %d", schemaVersion),
		} {
			if _, err := w.once(q); err != nil {
				return err
			}
		}
		return nil
	})
}

// migrate adds what the layouts before had not, unless another process was faster. Programs of the release before that have the file
// open go on: what they know of is as it was. They refuse to open it from then on.
func (w *writer) migrate() error {
	return w.transaction("BEGIN IMMEDIATE", func() error {
		id, err := w.identity()
		if err != nil || id.version >= schemaVersion {
			return err
		}
		steps := []string{addWritten, fmt.Sprintf("PRAGMA user_version = %d", schemaVersion)}
		if id.version == 1 {
			steps = append(steps, createJob, createJobUndone, createJobExpires, createUsage)
		}
		for _, q := range steps {
			if _, err := w.once(q); err != nil {
				return err
			}
		}
		return nil
	})
}
