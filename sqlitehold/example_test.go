package sqlitehold_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/sqlitehold"
)

// Every process of the machine that opens the same file is kept out while the work runs.
func ExampleOpen() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()

	locks, err := sqlitehold.Open(filepath.Join(dir, "locks.db"), nil) // "" is the user's own file
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Shutdown(ctx)

	report, err := locks.NewLock("nightly-report", &holdlock.LockOptions{Purpose: "writes the report"})
	if err != nil {
		log.Fatal(err)
	}
	err = report.Do(ctx, func(context.Context, *holdlock.Lease) error {
		fmt.Println("built")
		return nil
	})
	fmt.Println(err)
	// Output:
	// built
	// <nil>
}
