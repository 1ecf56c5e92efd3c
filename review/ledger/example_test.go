package ledger_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/review/ledger"
	"github.com/holdlock/holdlock/sqlitehold"
)

// counted is the code of docs/review.md, which TestReviewPage holds to it.
func counted(ctx context.Context, file string) error {
	locks, err := sqlitehold.Open(file, &sqlitehold.Options{
		Client: holdlock.ClientOptions{Recorder: ledger.New(nil)},
	})
	if err != nil {
		return err
	}
	defer locks.Shutdown(ctx) // sends the last counts

	report, err := locks.NewLock("daily-report", &holdlock.LockOptions{DoubleRun: holdlock.Costly})
	if err != nil {
		return err
	}
	return report.Do(ctx, func(context.Context, *holdlock.Lease) error { return nil })
}

// A program counts what its locks do, and a review reads it.
func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	file, ctx := filepath.Join(dir, "locks.db"), context.Background()
	if err := counted(ctx, file); err != nil {
		fmt.Println(err)
		return
	}

	store, err := sqlitehold.NewDriver(file, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	book, _ := driver.As[driver.Ledger](store)
	today := driver.DayOf(time.Now())
	locks, problems, err := ledger.Load(ctx, book, today-30, today+1)
	fmt.Println(problems, err)
	for _, l := range locks {
		fmt.Println(l.Name, l.Total().Get(ledger.Granted))
	}
	// Output:
	// [] <nil>
	// daily-report 1
}

// The code in docs/review.md compiles and runs: it is the code above.
func TestReviewPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/review.md")
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, code, ok := strings.Cut(string(page), "```go\n")
	code, _, closed := strings.Cut(code, "```")
	if !ok || !closed {
		t.Fatal("docs/review.md has no code")
	}
	var indented strings.Builder
	for line := range strings.Lines(code) {
		if line != "\n" {
			line = "\t" + line
		}
		indented.WriteString(line)
	}
	if !strings.Contains(string(own), indented.String()) {
		t.Errorf("this code of docs/review.md is not that of the example:\n%s", code)
	}
}
