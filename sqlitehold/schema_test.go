package sqlitehold

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
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
