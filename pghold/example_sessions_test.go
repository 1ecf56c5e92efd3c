package pghold_test

import (
	"context"
	"log"
	"os"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/pghold"
)

func ExampleOpenSessions() {
	ctx := context.Background()
	locks, err := pghold.OpenSessions(ctx, os.Getenv("DATABASE_URL"), nil)
	if err != nil {
		log.Fatal(err) // also if a pooler in transaction mode is in between
	}
	defer locks.Shutdown(ctx)
	index, err := locks.NewLock("build-index", &holdlock.LockOptions{TTL: 10 * time.Second, DoubleRun: holdlock.Costly})
	if err != nil {
		log.Fatal(err)
	}
	err = index.Do(ctx, func(ctx context.Context, lease *holdlock.Lease) error {
		return nil // ctx ends within milliseconds if the connection does
	})
	log.Println(err)
}
