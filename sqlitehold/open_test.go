package sqlitehold

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// snapshot tells what is in a directory, byte for byte.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	check(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%v %s", info.Mode(), path)
		if info.Mode().IsRegular() {
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, " %d %x", len(content), sha256.Sum256(content))
		}
		fmt.Fprintln(&b)
		return nil
	}))
	return b.String()
}

// database makes a database by hand, of which nothing is left in the log unless keepLog.
func database(t *testing.T, path string, keepLog bool, statements ...string) {
	t.Helper()
	w, err := connect(path, "rwc", false)
	check(t, err)
	for _, q := range statements {
		if _, err := w.once(q); err != nil {
			t.Fatalf("%s: %v", q, err)
		}
	}
	if keepLog {
		check(t, w.closeKeepingLog(path, false))
	} else {
		check(t, w.close())
	}
}

// A file that is not ours is refused, in one line that names it, and not touched.
func TestOtherFiles(t *testing.T) {
	t.Parallel()
	ours := []string{
		createTerm, createWaiter, createWaiterKey,
		fmt.Sprintf("PRAGMA application_id = %d", applicationID), "PRAGMA journal_mode = WAL",
	}
	for name, tt := range map[string]struct {
		make func(t *testing.T, path string)
		want string
	}{
		"directory": {
			func(t *testing.T, path string) { check(t, os.Mkdir(path, 0o755)) },
			"is a directory",
		},
		"text": {
			func(t *testing.T, path string) { check(t, os.WriteFile(path, []byte("owner: billing\n"), 0o644)) },
			"not a database",
		},
		"one byte": {
			func(t *testing.T, path string) { check(t, os.WriteFile(path, []byte("\n"), 0o644)) },
			"not a database",
		},
		"ours, but without tables": {
			func(t *testing.T, path string) {
				database(t, path, false, fmt.Sprintf("PRAGMA application_id = %d", applicationID), fmt.Sprintf("PRAGMA user_version = %d", schemaVersion))
			},
			"no tables",
		},
		"long text": {
			func(t *testing.T, path string) {
				check(t, os.WriteFile(path, []byte(strings.Repeat("owner: billing\n", 1000)), 0o644))
			},
			"not a database",
		},
		"tables of someone else": {
			func(t *testing.T, path string) { database(t, path, false, "CREATE TABLE account (id INTEGER)") },
			"another application",
		},
		"tables of someone else, with a log": {
			func(t *testing.T, path string) {
				database(t, path, false, "PRAGMA journal_mode = WAL", "CREATE TABLE account (id INTEGER)")
			},
			"another application",
		},
		"tables of someone else who was killed": {
			func(t *testing.T, path string) {
				database(t, path, true, "PRAGMA journal_mode = WAL", "CREATE TABLE account (id INTEGER)")
			},
			"another application",
		},
		"an empty database of someone else": {
			func(t *testing.T, path string) { database(t, path, false, "PRAGMA application_id = 42", "VACUUM") },
			"another application",
		},
		"a newer release": {
			func(t *testing.T, path string) { database(t, path, false, append(ours, "PRAGMA user_version = 4")...) },
			"newer release",
		},
		"a newer release that is running or was killed": {
			func(t *testing.T, path string) { database(t, path, true, append(ours, "PRAGMA user_version = 4")...) },
			"newer release",
		},
		"a layout that never was": {
			func(t *testing.T, path string) { database(t, path, false, ours...) },
			"which no release has made",
		},
		"a damaged schema": {
			func(t *testing.T, path string) {
				database(t, path, false, append(ours, "PRAGMA user_version = 1")...)
				damage(t, path, 100, 4096)
			},
			"damaged",
		},
		"a truncated file": {
			func(t *testing.T, path string) {
				database(t, path, false, append(ours, "PRAGMA user_version = 1")...)
				check(t, os.Truncate(path, 4096))
			},
			"damaged",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, "locks.db")
			tt.make(t, path)
			// The index of the log holds no data and is made anew by everyone who comes first.
			content := func() string {
				return strings.Join(slices.DeleteFunc(strings.Split(snapshot(t, dir), "\n"),
					func(line string) bool { return strings.Contains(line, "-shm ") }), "\n")
			}
			before := content()
			d, err := NewDriver(path, nil)
			if err == nil {
				d.Close()
				t.Fatal("it was opened")
			}
			if !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q; want one line with %q and the path", err, tt.want)
			}
			if after := content(); after != before {
				t.Errorf("the directory was changed\nfrom %s\nto   %s", before, after)
			}
		})
	}
}

// damage overwrites a part of a file.
func damage(t *testing.T, path string, from, to int) {
	t.Helper()
	content, err := os.ReadFile(path)
	check(t, err)
	for i := from; i < to; i++ {
		content[i] = 0xee
	}
	check(t, os.WriteFile(path, content, 0o600))
}

// What is damaged inside shows when it is used, as a failure of the store.
func TestDamagedTable(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	d := open(t, path)
	mustAcquire(t, d, "job", time.Hour)
	check(t, d.Close())
	w, err := connect(path, "rw", false)
	check(t, err)
	check(t, w.close()) // copies the log back
	info, err := os.Stat(path)
	check(t, err)
	damage(t, path, 4096, int(info.Size()))

	d = open(t, path)
	_, err = d.Acquire(ctx, acquire("job", time.Hour))
	if err == nil || isHeld(err) || !errors.Is(err, driver.ErrNotApplied) || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("Acquire in a damaged file: %v", err)
	}
	if _, err := d.List(ctx, "", "", 10); err == nil || !strings.Contains(err.Error(), "damaged") {
		t.Errorf("List of a damaged file: %v", err)
	}
}

func TestFileIsMade(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "holdlock")
	path := filepath.Join(dir, "locks.db")
	d := open(t, path)
	mustAcquire(t, d, "job", time.Hour)
	for name, want := range map[string]fs.FileMode{
		dir: 0o700, path: 0o600, path + "-wal": 0o600, path + "-shm": 0o600,
	} {
		info, err := os.Stat(name)
		check(t, err)
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", name, got, want)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 3 {
		t.Errorf("in the directory are %v (%v), want the file and its log", entries, err)
	}
}

// A slip of the pen makes no tree of directories: one is made, as the default file needs it, and what is missing above is named.
func TestPathsWithoutDirectories(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	_, err := NewDriver(filepath.Join(top, "typo", "dir", "locks.db"), nil)
	if err == nil || !strings.Contains(err.Error(), filepath.Join(top, "typo")+";") {
		t.Errorf("two directories are missing: %v, want that the first is named", err)
	}
	if entries, err := os.ReadDir(top); err != nil || len(entries) > 0 {
		t.Errorf("made were %v (%v)", entries, err)
	}
}

func TestModesAreLeftAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "locks.db")
	check(t, os.Chmod(dir, 0o755))
	check(t, os.WriteFile(path, nil, 0o640))
	check(t, os.Chmod(path, 0o660)) // whatever the umask
	mustAcquire(t, open(t, path), "job", time.Hour)
	for name, want := range map[string]fs.FileMode{dir: 0o755, path: 0o660} {
		info, err := os.Stat(name)
		check(t, err)
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o now, had %o", name, got, want)
		}
	}
}

func TestOddPaths(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a b", "a?mode=memory", "a#b", "a%41", "a;b&c=d", "ä🔒", "'\"", ":memory:", "file:x"} {
		path := filepath.Join(t.TempDir(), name, name)
		d := open(t, path)
		mustAcquire(t, d, "job", time.Hour)
		if _, err := os.Stat(path); err != nil {
			t.Errorf("%q: %v", name, err)
		}
		if want := "sqlite:" + path; d.Traits().Location != want {
			t.Errorf("Location is %q, want %q", d.Traits().Location, want)
		}
		if _, err := open(t, path).Acquire(ctx, acquire("job", time.Hour)); !isHeld(err) {
			t.Errorf("%q: the second driver is not excluded: %v", name, err)
		}
	}
	if _, err := NewDriver("", nil); err == nil {
		t.Error("a file without a name was opened")
	}
}

func TestSymbolicLinks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	check(t, os.Mkdir(filepath.Join(dir, "real"), 0o700))
	check(t, os.Symlink("real", filepath.Join(dir, "dir")))
	path, byDir, byFile := filepath.Join(dir, "real", "locks.db"), filepath.Join(dir, "dir", "locks.db"), filepath.Join(dir, "locks.db")
	check(t, os.Symlink(path, byFile))
	if _, err := NewDriver(byFile, nil); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("a link to nothing: %v", err)
	}
	mustAcquire(t, open(t, byDir), "job", time.Hour)
	for _, name := range []string{path, byDir, byFile} {
		d := open(t, name)
		if _, err := d.Acquire(ctx, acquire("job", time.Hour)); !isHeld(err) {
			t.Errorf("%s: not excluded: %v", name, err)
		}
		if want := "sqlite:" + path; d.Traits().Location != want {
			t.Errorf("Location is %q, want %q", d.Traits().Location, want)
		}
	}
}

func TestNamespaces(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	for _, ns := range []string{"", "billing", "Billing", "a/b"} {
		d, err := NewDriver(path, &Options{Namespace: ns})
		check(t, err)
		defer d.Close()
		mustAcquire(t, d, "job", time.Hour)
		if terms, err := d.List(ctx, "", "", 10); err != nil || len(terms) != 1 {
			t.Errorf("namespace %q lists %v (%v), want its own term only", ns, terms, err)
		}
		if got := d.Traits().Location; ns != "" && !strings.HasSuffix(got, fmt.Sprintf("namespace %q", ns)) {
			t.Errorf("Location is %q", got)
		}
	}
	for _, ns := range []string{"a\x00b", "\xff", strings.Repeat("x", 256)} {
		if _, err := NewDriver(path, &Options{Namespace: ns}); err == nil {
			t.Errorf("namespace %q was accepted", ns)
		}
	}
}

func TestDurable(t *testing.T) {
	t.Parallel()
	for durable, want := range map[bool]int{false: 1, true: 2} { // PRAGMA synchronous: NORMAL, FULL
		d, err := NewDriver(tempFile(t), &Options{Durable: durable})
		check(t, err)
		defer d.Close()
		var sync, timeout int
		_, err = d.writer.once("PRAGMA synchronous", &sync)
		check(t, err)
		_, err = d.writer.once("PRAGMA busy_timeout", &timeout)
		check(t, err)
		if sync != want || timeout != 0 {
			t.Errorf("Durable = %v: synchronous %d, busy_timeout %d; want %d and 0", durable, sync, timeout, want)
		}
		if got := d.Traits().Fencing == driver.Durable; got != durable {
			t.Errorf("Durable = %v: Fencing is %v", durable, d.Traits().Fencing)
		}
	}
}

// A file system that is reached from other machines is refused before anything is made on it.
func TestFileSystems(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		kind    fileSystem
		durable bool
		want    string // empty: no error
	}{
		{fileSystem{}, true, ""},
		{fileSystem{shared: "NFS"}, false, "network file system (NFS)"},
		{fileSystem{memory: "tmpfs"}, false, ""},
		{fileSystem{memory: "tmpfs"}, true, "a reboot empties"},
	} {
		for _, exists := range []bool{false, true} {
			dir := t.TempDir()
			path := filepath.Join(dir, "locks.db")
			if exists {
				check(t, os.WriteFile(path, nil, 0o600))
			} else {
				path = filepath.Join(dir, "a", "locks.db")
			}
			before := snapshot(t, dir)
			e := newMachine().env()
			e.fileSystem = func(string) (fileSystem, error) { return tt.kind, nil }
			d, err := newDriver(path, &Options{Durable: tt.durable}, e)
			if err == nil {
				d.Close()
			}
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("%+v: %v", tt.kind, err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), dir)):
				t.Errorf("%+v: error %v, want %q", tt.kind, err, tt.want)
			case tt.want != "" && snapshot(t, dir) != before:
				t.Errorf("%+v: something was written", tt.kind)
			}
		}
	}
}

// A file that is not there yet, or is empty, may be opened by many at once: one makes it ready, and none sees it half ready.
func TestRaceToOpen(t *testing.T) {
	t.Parallel()
	for round := range 6 {
		path := tempFile(t)
		if round >= 3 {
			check(t, os.WriteFile(path, nil, 0o600))
		}
		const n = 8
		var all sync.WaitGroup
		for i := range n {
			all.Go(func() {
				d, err := NewDriver(path, nil)
				if err != nil {
					t.Error(err)
					return
				}
				defer d.Close()
				if _, err := d.Acquire(ctx, acquire(fmt.Sprint(i), time.Hour)); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if got := count(t, path, "term"); got != n {
			t.Errorf("there are %d terms, want %d", got, n)
		}
		if left, err := filepath.Glob(filepath.Join(filepath.Dir(path), ".*")); err != nil || len(left) != 0 {
			t.Errorf("there is left: %q (%v)", left, err)
		}
	}
}

// Closing leaves the log beside the file: the last of many short-lived processes must not pay for copying it.
func TestCloseKeepsTheLog(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	var first []byte
	for range 3 {
		d := open(t, path)
		ref, _ := mustAcquire(t, d, "nightly-report", time.Hour)
		check(t, d.Release(ctx, release(ref)))
		check(t, d.Close())
		content, err := os.ReadFile(path)
		check(t, err)
		if first == nil {
			first = content
		}
		if !bytes.Equal(content, first) || bytes.Contains(content, []byte("nightly-report")) {
			t.Error("Close copied the log into the file")
		}
		if _, err := os.Stat(path + "-wal"); err != nil {
			t.Errorf("Close removed the log: %v", err)
		}
	}
}

// The log is copied back by those who work, so it stays small however many short-lived processes there are.
func TestLogStaysSmall(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	for range 12 {
		d := open(t, path)
		for i := range 100 {
			ref, _ := mustAcquire(t, d, fmt.Sprint("job", i), time.Hour)
			check(t, d.Release(ctx, release(ref)))
		}
		check(t, d.Close())
	}
	info, err := os.Stat(path + "-wal")
	check(t, err)
	if limit := int64(2 * logPages * 4096); info.Size() > limit {
		t.Errorf("the log has %d bytes, want at most %d", info.Size(), limit)
	}
}

func TestDefaultPath(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		uid  int
		vars map[string]string
		want string
	}{
		{1000, map[string]string{"HOME": "/home/ada"}, "/home/ada/.local/state/holdlock/locks.db"},
		{1000, map[string]string{"HOME": "/home/ada", "XDG_STATE_HOME": "/state"}, "/state/holdlock/locks.db"},
		{1000, map[string]string{"HOME": "/home/ada", "XDG_STATE_HOME": "state"}, "/home/ada/.local/state/holdlock/locks.db"},
		{1000, map[string]string{"XDG_STATE_HOME": "/state"}, "/state/holdlock/locks.db"},
		{1000, nil, ""},
		{1000, map[string]string{"HOME": "here"}, ""},
		{0, map[string]string{"HOME": "/home/ada", "XDG_STATE_HOME": "/state"}, "/var/lib/holdlock/locks.db"},
		{0, nil, "/var/lib/holdlock/locks.db"},
	} {
		got, err := defaultPath(tt.uid, func(name string) string { return tt.vars[name] })
		if filepath.ToSlash(got) != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("uid %d, %v: %q, %v; want %q", tt.uid, tt.vars, got, err, tt.want)
		}
		if err != nil && !strings.Contains(err.Error(), "HOME") {
			t.Errorf("error %q does not say what is missing", err)
		}
	}
}
