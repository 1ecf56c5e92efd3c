package redishold

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every line of the table of faults names tests that exist, and a control.
func TestDocumentedFaultsAreTested(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../docs/stores/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		code.Write(text)
	}
	_, table, _ := strings.Cut(string(doc), "| fault | what happens |")
	table, _, _ = strings.Cut(table, "\n\n")
	lines := strings.Split(table, "\n")[2:]
	if len(lines) < 20 {
		t.Fatalf("the table of faults has %d lines", len(lines))
	}
	names, same := regexp.MustCompile("`(Test[A-Za-z0-9]+)`"), "the same"
	for _, line := range lines {
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if len(cells) != 4 || strings.TrimSpace(cells[3]) == "" {
			t.Errorf("not fault, outcome, test and control: %s", line)
			continue
		}
		found := names.FindAllStringSubmatch(cells[2], -1)
		if len(found) == 0 && strings.TrimSpace(cells[2]) != same {
			t.Errorf("no test: %s", line)
		}
		for _, name := range found {
			if !strings.Contains(code.String(), "func "+name[1]+"(t *testing.T)") {
				t.Errorf("there is no %s: %s", name[1], line)
			}
		}
	}
}
