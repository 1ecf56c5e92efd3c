package holdlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/memhold"
)

// A job that may be started in several places runs in one at a time.
func Example() {
	ctx := context.Background()
	locks, err := memhold.Open(nil) // a program with more than one process opens sqlitehold instead
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Shutdown(ctx)

	report, err := locks.NewLock("nightly-report", &holdlock.LockOptions{
		TTL:       30 * time.Second,
		Purpose:   "writes the report of the day",
		DoubleRun: holdlock.Costly,
	})
	if err != nil {
		log.Fatal(err)
	}

	err = report.Do(ctx, func(ctx context.Context, _ *holdlock.Lease) error {
		fmt.Println("writing the report")
		return ctx.Err() // ctx ends before anyone else can get the lock
	})
	switch {
	case errors.Is(err, holdlock.ErrHeld):
		fmt.Println("somebody else is at it:", err)
	case errors.Is(err, holdlock.ErrLost):
		fmt.Println("stopped, and it may have run twice:", err)
	case err != nil:
		fmt.Println("failed:", err)
	}
	// Output: writing the report
}

// Do makes one attempt. Whoever comes second is told who came first, and its work is not run.
func ExampleLock_Do() {
	ctx := context.Background()
	store := memhold.NewStore() // stands for a server that both programs reach
	first, _ := memhold.Open(&memhold.Options{Store: store, Client: holdlock.ClientOptions{Label: "first"}})
	second, _ := memhold.Open(&memhold.Options{Store: store, Client: holdlock.ClientOptions{Label: "second"}})
	defer first.Shutdown(ctx)
	defer second.Shutdown(ctx)

	run := func(ctx context.Context, locks *holdlock.Client, work func(context.Context, *holdlock.Lease) error) error {
		invoices, err := locks.NewLock("invoices", &holdlock.LockOptions{Purpose: "sends the invoices"})
		if err != nil {
			return err
		}
		return invoices.Do(ctx, work)
	}

	err := run(ctx, first, func(ctx context.Context, _ *holdlock.Lease) error {
		fmt.Println("first: sending")
		err := run(ctx, second, func(context.Context, *holdlock.Lease) error {
			fmt.Println("second: sending")
			return nil
		})
		var held *holdlock.HeldError
		if errors.As(err, &held) {
			fmt.Printf("second: lock %s is held by %s, which %s\n", held.Name, held.Holder.Label, held.Holder.Purpose)
		}
		return nil
	})
	fmt.Println("first:", err)
	// Output:
	// first: sending
	// second: lock invoices is held by first, which sends the invoices
	// first: <nil>
}

// One lock, many jobs: each key is held by itself.
func ExampleLock_For() {
	ctx := context.Background()
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(ctx)

	charge, err := locks.NewLock("charge-card", nil)
	if err != nil {
		log.Fatal(err)
	}
	err = charge.For("order-7").Do(ctx, func(ctx context.Context, _ *holdlock.Lease) error {
		nothing := func(context.Context, *holdlock.Lease) error { return nil }
		fmt.Println("order-7 again:", errors.Is(charge.For("order-7").Do(ctx, nothing), holdlock.ErrHeld))
		fmt.Println("order-8:", charge.For("order-8").Do(ctx, nothing))
		return nil
	})
	fmt.Println("order-7:", err)
	// Output:
	// order-7 again: true
	// order-8: <nil>
	// order-7: <nil>
}

// Several machines run the same schedule, with clocks that differ by a second. MinHold keeps the key of a short job
// taken until the slowest of them has fired.
func ExampleLockOptions_minHold() {
	ctx := context.Background()
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(ctx)

	digest, err := locks.NewLock("hourly-digest", &holdlock.LockOptions{MinHold: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	for _, machine := range []string{"a", "b"} {
		err := digest.Do(ctx, func(context.Context, *holdlock.Lease) error {
			fmt.Println("machine", machine, "sends the digest")
			return nil
		})
		var held *holdlock.HeldError
		if errors.As(err, &held) {
			fmt.Println("machine", machine, "skips: cooling", held.Cooling)
		}
	}
	// Output:
	// machine a sends the digest
	// machine b skips: cooling true
}
