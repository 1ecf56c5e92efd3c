package sqlitehold

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write testdata/schema.golden")

// TestSchema notices every change of the layout, which programs of other releases read: raise schemaVersion with it.
func TestSchema(t *testing.T) {
	path := tempFile(t)
	d := open(t, path)
	id, err := d.writer.identify()
	check(t, err)
	var b strings.Builder
	fmt.Fprintf(&b, "application_id %#x\nuser_version %d\n", id.application, id.version)
	var kind, name, sql string
	check(t, d.writer.all(`SELECT type, name, coalesce(sql, '') FROM sqlite_schema ORDER BY name`, nil,
		[]any{&kind, &name, &sql}, func() { fmt.Fprintf(&b, "\n%s %s\n%s\n", kind, name, sql) }))

	golden := filepath.Join("testdata", "schema.golden")
	if *update {
		check(t, os.WriteFile(golden, []byte(b.String()), 0o644))
	}
	want, err := os.ReadFile(golden)
	check(t, err)
	if b.String() != string(want) {
		t.Errorf("the layout of the file has changed:\n%s\nwant:\n%s\nIf that is meant, raise schemaVersion and run: "+
			"go test -run TestSchema -update", b.String(), want)
	}
}

// Two processes that both found an empty file: the slower one leaves it as it is then.
func TestInitialiseTwice(t *testing.T) {
	t.Parallel()
	path := tempFile(t)
	mustAcquire(t, open(t, path), "job", time.Hour)
	w, err := connect(path, "rw", false)
	check(t, err)
	defer w.close()
	check(t, w.initialise())
	if got := count(t, path, "term"); got != 1 {
		t.Errorf("there are %d terms, want the one from before", got)
	}
}

// Whoever opens the file while another process makes it ready sees it empty or complete.
func TestIdentityIsWhole(t *testing.T) {
	t.Parallel()
	for range 8 {
		path := tempFile(t)
		looker, err := connect(path, "rwc", false)
		check(t, err)
		maker, err := connect(path, "rw", false)
		check(t, err)
		ready := make(chan error, 1)
		go func() {
			err := maker.initialise()
			for isLocked(err) {
				err = maker.initialise()
			}
			ready <- err
		}()
		for whole := false; !whole; {
			id, err := looker.identify()
			switch {
			case isLocked(err) || id == (identity{}):
			case err != nil:
				t.Fatal(err)
			default:
				whole = true
				check(t, id.check(path))
			}
		}
		check(t, <-ready)
		maker.close()
		looker.close()
	}
}
