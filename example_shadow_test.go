package holdlock_test

import (
	"context"
	"fmt"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/memhold"
)

// A lock in shadow mode lets everybody run. What it would have prevented is counted for holdlock review.
func ExampleMode() {
	ctx := context.Background()
	locks, err := memhold.Open(nil)
	if err != nil {
		panic(err)
	}
	defer locks.Shutdown(ctx)
	refresh, err := locks.NewLock("refresh-cache", &holdlock.LockOptions{Mode: holdlock.Shadow, DoubleRun: holdlock.Harmless})
	if err != nil {
		panic(err)
	}
	_ = refresh.Do(ctx, func(ctx context.Context, _ *holdlock.Lease) error {
		return refresh.Do(ctx, func(context.Context, *holdlock.Lease) error { // an enforced lock would not let it in
			fmt.Println("two at once")
			return nil
		})
	})

	_, err = locks.NewLock("charge-card", &holdlock.LockOptions{Mode: holdlock.Shadow, DoubleRun: holdlock.Harmful})
	fmt.Println(err)
	// Output:
	// two at once
	// Mode shadow is not allowed: its double run is declared harmful, and in shadow mode runs overlap, whatever risk is accepted
}
