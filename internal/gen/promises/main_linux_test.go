package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The test is for Linux because the clock of a store can depend on the system, and the documents describe Linux.
func TestGeneratedFilesAreCurrent(t *testing.T) {
	t.Parallel()
	const root = "../../.."
	files, err := generate(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Error(err)
		} else if !bytes.Equal(got, want) {
			t.Errorf("%s does not say what the stores report; run make generate", name)
		}
	}
}

func TestTable(t *testing.T) {
	t.Parallel()
	stores, err := open()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(table(stores)), "\n")
	if len(lines) != len(stores)+2 {
		t.Errorf("%d lines for %d stores", len(lines), len(stores))
	}
	for _, line := range lines {
		if n := strings.Count(line, "|"); n != len(columns)+2 {
			t.Errorf("%d bars in %q", n, line)
		}
	}
}

func TestEmbed(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"no marks\n": "no marks\n",
		"a\n<!-- promises -->\nold\n<!-- /promises -->\nb\n": "a\n<!-- promises -->\nnew\n<!-- /promises -->\nb\n",
		"a\n<!-- promises -->\n<!-- /promises -->":           "a\n<!-- promises -->\nnew\n<!-- /promises -->",
	} {
		got, err := embed([]byte(in), "new\n")
		if err != nil || string(got) != want {
			t.Errorf("embed(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	if _, err := embed([]byte("<!-- promises -->\nold"), "new"); err == nil {
		t.Error("a block without an end is not an error")
	}
}

// Without a README there is one file, with a README without marks it is left as it is.
func TestWrite(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "docs"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := write(root); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "README.md")); err == nil {
		t.Error("a README was made")
	}
	readme := filepath.Join(root, "README.md")
	if err := os.WriteFile(readme, []byte("x\n"+begin+end+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := write(root); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(readme)
	if err != nil || !strings.Contains(string(got), "| `sqlitehold` | one machine |") {
		t.Errorf("README is %q (%v)", got, err)
	}
}
