package ledger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

func spoolFiles(t *testing.T, dir string) []string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Programs that end while the store is away leave their counts to whoever reaches it next, and these count once.
func TestSpool(t *testing.T) {
	for _, c := range []struct {
		name       string
		spool      bool
		down, deaf bool
		want       uint64
	}{
		{"the store is away", true, true, false, 12},
		{"the store has taken them and not said so", true, false, true, 12},
		{"without a spool they are lost", false, true, false, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, opts := newLedger(), &Options{}
			dir := filepath.Join(t.TempDir(), "not", "yet")
			if c.spool {
				opts.Spool = dir
			}
			l.down, l.deaf = c.down, c.deaf
			for i := range 5 { // five runs of a command, on some day
				r := started(l, opts)
				r.Declare("a", holdlock.LockOptions{TTL: time.Minute, DoubleRun: holdlock.Costly})
				granted(r, "a", 2)
				if err := r.Stop(t.Context()); (err != nil) == c.spool {
					t.Errorf("run %d: Stop: %v", i, err)
				}
				if c.deaf && i == 0 {
					l.deaf, l.down = false, true // or the number of the first flush would be pushed out of the record
				}
			}
			if n := len(spoolFiles(t, dir)); c.spool && n != 5 {
				t.Errorf("%d files are spooled, want 5", n)
			}
			l.down, l.deaf = false, false
			r := started(l, opts)
			granted(r, "a", 2)
			if err := r.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			wantGrants(t, l, "a", c.want)
			if left := spoolFiles(t, dir); len(left) > 0 {
				t.Errorf("%v are left", left)
			}
			if locks, _, err := Load(t.Context(), l, 1, 1<<30); c.spool && (err != nil || len(locks) != 1 || len(locks[0].Declared) != 1) {
				t.Errorf("the declaration is not there: %+v, %v", locks, err)
			}
		})
	}
}

// Several programs that find the same files at once do not count them twice.
func TestSpoolRace(t *testing.T) {
	l, opts := newLedger(), &Options{Spool: t.TempDir()}
	l.down = true
	for i := range 20 {
		r := started(l, opts)
		granted(r, fmt.Sprint("lock", i), 1)
		if err := r.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	l.down = false
	var programs sync.WaitGroup
	for range 4 {
		programs.Go(func() {
			if err := started(l, opts).Flush(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	programs.Wait()
	for i := range 20 {
		wantGrants(t, l, fmt.Sprint("lock", i), 1)
	}
}

// What cannot be read is left alone until it is too old for any record, and does not keep the rest from being sent.
func TestSpoolUnreadable(t *testing.T) {
	l, opts := newLedger(), &Options{Spool: t.TempDir()}
	l.down = true
	r := started(l, opts)
	granted(r, "a", 1)
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"new-0.usage": "what", "new-1.usage": `[{"v":99}]`, "new-2.usage": `[{"v":1,"d":3,"usage":{"a":"/w=="}}]`, "new-3": "half of it", "new-old.usage": "what",
	} {
		path := filepath.Join(opts.Spool, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if name == "new-old.usage" {
			old := time.Now().Add(-driver.RecordTTL - time.Hour)
			if err := os.Chtimes(path, old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
	l.down = false
	if err := started(l, opts).Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantGrants(t, l, "a", 1)
	if left := spoolFiles(t, opts.Spool); len(left) != 4 {
		t.Errorf("left are %v, want the four that may be of use to somebody", left)
	}
}

// A spool has an end, and a directory that cannot be written is told.
func TestSpoolBounds(t *testing.T) {
	dir := t.TempDir()
	for i := range maxSpooled {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("new-%d.usage", i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, spool := range []string{dir, file} {
		l := newLedger()
		l.down = true
		r := started(l, &Options{Spool: spool})
		granted(r, "a", 1)
		if err := r.Stop(t.Context()); !errors.Is(err, errDown) || err.Error() == errDown.Error() {
			t.Errorf("Stop: %v, want why the store and why the spool did not take it", err)
		}
	}
	if n := len(spoolFiles(t, dir)); n != maxSpooled {
		t.Errorf("%d files", n)
	}
}

// A store that keeps no records can have another one for them.
func TestOtherStore(t *testing.T) {
	l := newLedger()
	r := New(&Options{Store: l})
	if err := r.Start(nil, "host"); err != nil {
		t.Fatal(err)
	}
	granted(r, "a", 3)
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantGrants(t, l, "a", 3)
}
