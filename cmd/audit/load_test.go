package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// module writes files into a new module and returns its directory. A name that ends in / is no file.
func module(t *testing.T, files map[string]string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if files["go.mod"] == "" {
		files["go.mod"] = "module example.com/m\n\ngo 1.26.0\n"
	}
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// locking is a file with one lock, of this number, and no import but the standard library's.
func locking(pkg, number string) string {
	return "package " + pkg + `

import (
	"context"
	"database/sql"
)

func Lock(ctx context.Context, c *sql.Conn) error {
	_, err := c.ExecContext(ctx, "SELECT pg_advisory_lock(` + number + `)")
	return err
}
`
}

func run(t *testing.T, dir string, o LoadOptions, patterns ...string) *Report {
	t.Helper()
	o.Dir, o.Env = dir, append(os.Environ(), "GOWORK=off", "GOFLAGS=")
	if len(patterns) == 0 {
		patterns = []string{"./..."}
	}
	r, err := Run(context.Background(), &o, patterns...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// numbers are the names of all locks of a report, in order of name.
func numbers(r *Report) string {
	var out []string
	for _, l := range r.Locks {
		out = append(out, l.Name.Text)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestBroken audits modules that do not compile, each in its own way: what can be read is told, and that something
// could not.
func TestBroken(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		files   map[string]string
		locks   string
		problem string // in the text of a problem
	}{
		"a type error beside a lock": {
			map[string]string{"a/a.go": strings.Replace(locking("a", "1"), "return err", "return undefined", 1), "b/b.go": locking("b", "2")},
			"1 2", "undefined: undefined",
		},
		"a syntax error after a lock": {
			map[string]string{"a/a.go": locking("a", "1") + "\nfunc {", "b/b.go": locking("b", "2")},
			"1 2", "expected",
		},
		"a missing module": {
			map[string]string{"a/a.go": strings.Replace(locking("a", "1"), `"context"`, `"context"`+"\n\t"+`_ "example.com/nowhere/x"`, 1), "b/b.go": locking("b", "2")},
			"1 2", "example.com/nowhere/x",
		},
		"a package that cannot be imported": {
			map[string]string{"a/a.go": "package a\n\nvar X int = \"no\"\n", "b/b.go": locking("b", "2") + "\nimport _ \"example.com/m/a\"\n"},
			"2", "cannot use",
		},
		"an import cycle": {
			map[string]string{
				"a/a.go": "package a\n\nimport _ \"example.com/m/b\"\n", "b/b.go": "package b\n\nimport _ \"example.com/m/a\"\n", "c/c.go": locking("c", "3"),
			},
			"3", "cycle",
		},
		"two packages in one directory": {
			map[string]string{"a/a.go": locking("a", "1"), "a/b.go": "package b\n", "c/c.go": locking("c", "3")},
			"3", "found packages",
		},
		"no packages": {map[string]string{"a/readme": ""}, "", "no packages match ./..."},
		"a pattern that matches nothing": {
			map[string]string{"a/a.go": locking("a", "1")}, "", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := module(t, c.files)
			var r *Report
			if name == "a pattern that matches nothing" {
				r = run(t, dir, LoadOptions{}, "./nowhere")
			} else {
				r = run(t, dir, LoadOptions{})
			}
			if !r.Incomplete() {
				t.Error("the report is not incomplete")
			}
			if got := numbers(r); got != c.locks && !(name == "two packages in one directory" && got == "1 3") {
				t.Errorf("locks %q, want %q", got, c.locks)
			}
			found := false
			for _, p := range r.Problems {
				found = found || strings.Contains(p.Message, c.problem)
			}
			if !found {
				t.Errorf("no problem mentions %q: %+v", c.problem, r.Problems)
			}
			var text bytes.Buffer
			if err := r.WriteText(&text, dir, false); err != nil || !strings.Contains(text.String(), "INCOMPLETE") {
				t.Errorf("the text does not say INCOMPLETE: %s, %v", text.String(), err)
			}
		})
	}
}

// TestNoGoCommand has nothing to list packages with.
func TestNoGoCommand(t *testing.T) {
	dir := module(t, map[string]string{"a/a.go": locking("a", "1")})
	t.Setenv("PATH", dir)
	if _, err := Run(context.Background(), &LoadOptions{Dir: dir}, "./..."); err == nil || !strings.Contains(err.Error(), "go command") {
		t.Errorf("error %v", err)
	}
}

// TestCancelled ends early.
func TestCancelled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, &LoadOptions{Dir: module(t, map[string]string{"a/a.go": locking("a", "1")})}, "./..."); err == nil {
		t.Error("no error")
	}
}

// TestWhatIsRead checks generated code, vendored code and tests, which are left out unless they are asked for.
func TestWhatIsRead(t *testing.T) {
	t.Parallel()
	dir := module(t, map[string]string{
		"go.mod":                     "module example.com/m\n\ngo 1.26.0\n\nrequire example.com/v v1.0.0\n",
		"a/a.go":                     strings.Replace(locking("a", "1"), `"context"`, `"context"`+"\n\t"+`_ "example.com/v"`, 1),
		"a/gen.go":                   "// Code generated by hand. DO NOT EDIT.\n\n" + strings.Replace(locking("a", "2"), "Lock(", "Generated(", 1),
		"a/a_test.go":                strings.Replace(locking("a", "3"), "Lock(", "Tested(", 1),
		"a/x_test.go":                locking("a_test", "4"),
		"vendor/modules.txt":         "# example.com/v v1.0.0\n## explicit; go 1.26\nexample.com/v\n",
		"vendor/example.com/v/v.go":  locking("v", "5"),
		"testdata/t.go":              locking("t", "6"),
		"_old/o.go":                  locking("o", "7"),
		"a/other_os.go":              "//go:build plan9\n\n" + strings.Replace(locking("a", "8"), "Lock(", "Other(", 1),
		"a/tagged.go":                "//go:build integration\n\n" + strings.Replace(locking("a", "9"), "Lock(", "Tagged(", 1),
		"nested/go.mod":              "module example.com/nested\n",
		"nested/n.go":                locking("nested", "10"),
		"vendor/example.com/v/LICEN": "",
	})
	for _, c := range []struct {
		o    LoadOptions
		want string
	}{
		{LoadOptions{}, "1"},
		{LoadOptions{All: true}, "1 2 5"},
		{LoadOptions{Tests: true}, "1 3 4"},
		{LoadOptions{Tests: true, All: true}, "1 2 3 4 5"},
	} {
		r := run(t, dir, c.o)
		if got := numbers(r); got != c.want || r.Incomplete() {
			t.Errorf("%+v: locks %q, want %q; %+v", c.o, got, c.want, r.Problems)
		}
	}
}

// TestCgo reads a package with C in it without running cgo, and does not call that incomplete.
func TestCgo(t *testing.T) {
	t.Parallel()
	r := run(t, module(t, map[string]string{
		"a/a.go": locking("a", "1"),
		"a/c.go": "package a\n\n// #include <stdlib.h>\nimport \"C\"\n\nfunc Abs(n int) int { return int(C.abs(C.int(n))) }\n",
	}), LoadOptions{})
	if got := numbers(r); got != "1" || r.Incomplete() {
		t.Errorf("locks %q, %+v", got, r.Problems)
	}
}

// TestSilence checks that a comment needs the fault's name and a reason, and stands on the line or the one above.
func TestSilence(t *testing.T) {
	t.Parallel()
	source := func(above, beside string) string {
		return "package a\n\nimport (\n\t\"context\"\n\t\"database/sql\"\n)\n\nfunc Lock(ctx context.Context, db *sql.DB) error {\n" + above +
			"\n\t_, err := db.ExecContext(ctx, \"SELECT pg_advisory_lock(1)\") " + beside + "\n\treturn err\n}\n"
	}
	cases := []struct {
		above, beside string
		silent        bool
	}{
		{"", "", false},
		{"//holdlock:ignore session-on-pool one replica, one connection", "", true},
		{"", "//holdlock:ignore session-on-pool one replica, one connection", true},
		{"//holdlock:ignore session-on-pool", "", false},
		{"//holdlock:ignore no-expiry another fault", "", false},
		{"// holdlock:ignore session-on-pool a space before", "", false},
	}
	files := map[string]string{}
	for i, c := range cases {
		files[fmt.Sprintf("p%d/a.go", i)] = source(c.above, c.beside)
	}
	r := run(t, module(t, files), LoadOptions{})
	if len(r.Locks) != len(cases) {
		t.Fatalf("%d locks in %d packages", len(r.Locks), len(cases))
	}
	for i, c := range cases {
		if got := len(r.Locks[i].Findings) == 0; got != c.silent {
			t.Errorf("%q %q: silent %v", c.above, c.beside, got)
		}
	}
}

// TestJSON reads the records back and compares their fields with the table in the documentation.
func TestJSON(t *testing.T) {
	t.Parallel()
	r, err := analyze(t.Context(), &LoadOptions{}, loadFixtures(t), "")
	if err != nil {
		t.Fatal(err)
	}
	r.Problems = []Problem{{Package: "example.com/p", Pos: "p.go:1:2", Message: "no"}}
	var out bytes.Buffer
	if err := r.WriteJSON(&out, ""); err != nil {
		t.Fatal(err)
	}
	seen := map[string]map[string]bool{}
	dec := json.NewDecoder(&out)
	for dec.More() {
		var rec map[string]any
		if err := dec.Decode(&rec); err != nil {
			t.Fatal(err)
		}
		kind := rec["record"].(string)
		if seen[kind] == nil {
			seen[kind] = map[string]bool{}
		}
		for k := range rec {
			seen[kind][k] = true
		}
	}
	doc, err := os.ReadFile("../../docs/audit.md")
	if err != nil {
		t.Fatal(err)
	}
	for kind, fields := range seen {
		documented := documentedFields(string(doc), kind)
		for f := range fields {
			if !documented[f] {
				t.Errorf("docs/audit.md does not have the field %s of %s", f, kind)
			}
		}
		for f := range documented {
			if !fields[f] {
				t.Errorf("docs/audit.md has a field %s of %s that no record has", f, kind)
			}
		}
	}
	if len(seen) != 4 {
		t.Errorf("records %v", seen)
	}
}

// TestDocumentedText compares the example of the documentation with what is really printed.
func TestDocumentedText(t *testing.T) {
	t.Parallel()
	dir, err := filepath.Abs(fixturesDir)
	if err != nil {
		t.Fatal(err)
	}
	r, err := analyze(t.Context(), &LoadOptions{}, loadFixtures(t), "")
	if err != nil {
		t.Fatal(err)
	}
	r.Packages = 1
	r.Findings = nil
	r.Locks = slices.DeleteFunc(r.Locks, func(l Lock) bool { return !strings.HasSuffix(l.Package, "/report") })
	var out bytes.Buffer
	if err := r.WriteText(&out, dir, false); err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../docs/audit.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(doc), "$ holdlock audit\n")
	example, _, _ = strings.Cut(example, "```")
	if out.String() != example {
		t.Errorf("docs/audit.md shows\n%s\nand it prints\n%s", example, out.String())
	}
}

// documentedFields are the words in backquotes of the first column of the table below a heading.
func documentedFields(doc, kind string) map[string]bool {
	out := map[string]bool{}
	_, rest, _ := strings.Cut(doc, "\n### `"+kind+"` records\n")
	table, _, _ := strings.Cut(rest, "\n#")
	started := false
	for _, line := range strings.Split(table, "\n") {
		if !strings.HasPrefix(line, "|") {
			if started {
				break
			}
			continue
		}
		started = true
		cell := strings.Split(line, "|")[1]
		for i, part := range strings.Split(cell, "`") {
			if i%2 == 1 {
				out[part] = true
			}
		}
	}
	return out
}
