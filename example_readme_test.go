package holdlock_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/sqlitehold"
)

// readme is the program of README.md, which TestReadme holds to it.
func readme(ctx context.Context, file string, job struct{ ID string }, pay func(context.Context, holdlock.Token) error) error {
	locks, err := sqlitehold.Open(file, nil)
	if err != nil {
		return err
	}
	defer locks.Shutdown(ctx)

	charges, err := locks.NewLock("charge-card", &holdlock.LockOptions{
		TTL: 30 * time.Second, Purpose: "calls the payments API", DoubleRun: holdlock.Costly,
	})
	if err != nil {
		return err
	}
	err = charges.For(job.ID).Do(ctx, func(ctx context.Context, lease *holdlock.Lease) error {
		return pay(ctx, lease.Token()) // ctx ends, with a cause, before the lease can pass on
	})
	switch {
	case errors.Is(err, holdlock.ErrHeld): // someone else has it: *HeldError says who, since when, until when
	case errors.Is(err, holdlock.ErrLost): // ours ended early: *LostError says why; the work may have overlapped
	}
	return err
}

func Example_charges() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	err = readme(context.Background(), filepath.Join(dir, "locks.db"), struct{ ID string }{"4711"},
		func(_ context.Context, token holdlock.Token) error {
			fmt.Println("paid under a token:", token > 0)
			return nil
		})
	fmt.Println(err)
	// Output:
	// paid under a token: true
	// <nil>
}

// The code in README.md compiles and runs: it is the code above.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("example_readme_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, code, _ := strings.Cut(string(text), "```go\n")
	code, _, ok := strings.Cut(code, "```")
	if !ok {
		t.Fatal("README.md has no Go code")
	}
	rest := strings.ReplaceAll(string(source), "sqlitehold.Open(file, nil)", `sqlitehold.Open("", nil)`)
	for line := range strings.Lines(code) {
		line = strings.TrimSpace(line)
		_, after, found := strings.Cut(rest, line)
		if !found {
			t.Fatalf("README.md has the line %q, the example does not", line)
		}
		rest = after
	}
}
