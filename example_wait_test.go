package holdlock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/memhold"
)

// Acquire waits for its turn, for as long as its context lasts. The lease lasts until Release.
func ExampleLock_Acquire() {
	ctx := context.Background()
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(ctx)
	migrate, err := locks.NewLock("migrate", nil)
	if err != nil {
		log.Fatal(err)
	}

	first, err := migrate.Acquire(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("first")

	go first.Release(ctx)
	wait, cancel := context.WithTimeout(ctx, time.Minute) // then the error would be ErrHeld and context.DeadlineExceeded
	defer cancel()
	second, err := migrate.Acquire(wait)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("second")
	if err := second.Release(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// first
	// second
}

// Wait lets Do wait as well, here for at most a minute.
func ExampleLockOptions_wait() {
	ctx := context.Background()
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(ctx)
	deploy, err := locks.NewLock("deploy", &holdlock.LockOptions{Wait: time.Minute})
	if err != nil {
		log.Fatal(err)
	}

	started, waited := make(chan struct{}), make(chan error)
	go func() {
		<-started
		waited <- deploy.Do(ctx, func(context.Context, *holdlock.Lease) error {
			fmt.Println("second deploy")
			return nil
		})
	}()
	err = deploy.Do(ctx, func(context.Context, *holdlock.Lease) error {
		close(started)
		fmt.Println("first deploy")
		return nil
	})
	fmt.Println(err, <-waited)
	// Output:
	// first deploy
	// second deploy
	// <nil> <nil>
}
