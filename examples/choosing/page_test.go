//go:build unix

package choosing

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const page = "../../docs/choosing.md"

// The Go code on the page is the code of this package, line by line.
func TestPage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		code.Write(b)
	}
	blocks := strings.Split(string(text), "```go\n")[1:]
	if len(blocks) != 6 {
		t.Errorf("the page has %d blocks of code, want one for each answer", len(blocks))
	}
	for _, block := range blocks {
		block, _, closed := strings.Cut(block, "```")
		if !closed || !strings.Contains(code.String(), block) {
			t.Errorf("this is not code that is tested here:\n%s", block)
		}
	}
}
