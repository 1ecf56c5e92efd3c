package once_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/memhold"
	"github.com/holdlock/holdlock/once"
)

// A consumer acknowledges a message if, and only if, the error is nil.
func ExampleDo() {
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(context.Background())
	charges, _ := locks.NewLock("charge", &holdlock.LockOptions{Purpose: "calls the payments API"})

	for _, delivery := range []string{"first", "second"} {
		out, err := once.Do(context.Background(), charges.For("order 17"), nil,
			func(_ context.Context, run *once.Run) ([]byte, error) {
				fmt.Println("charging, with an idempotency key of", len(run.Key), "digits")
				return []byte("receipt 4711"), nil
			})
		if err != nil {
			fmt.Println("deliver again:", err)
			continue
		}
		fmt.Printf("%s delivery: %v, %s\n", delivery, out.Status, out.Result)
	}
	// Output:
	// charging, with an idempotency key of 32 digits
	// first delivery: ran, receipt 4711
	// second delivery: already done, receipt 4711
}

// What must not happen twice is held after a lapse: here after three runs that failed.
func ExampleOptions() {
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(context.Background())
	mails, _ := locks.NewLock("welcome-mail", nil)
	opts := &once.Options{OnLapse: once.Hold, MaxRuns: 3, Keep: 30 * 24 * time.Hour, Input: []byte("ann@example.com")}
	for {
		out, err := once.Do(context.Background(), mails.For("user 5"), opts, func(context.Context, *once.Run) ([]byte, error) {
			return nil, errors.New("mailbox full")
		})
		fmt.Println(out.Status, out.Runs, "put aside:", errors.Is(err, once.ErrSuspended))
		if errors.Is(err, once.ErrSuspended) {
			break
		}
	}
	// Output:
	// failed 1 put aside: false
	// failed 2 put aside: false
	// failed 3 put aside: true
}

// The result can be any value that can be written as JSON.
func ExampleJSON() {
	type receipt struct{ Number int }
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(context.Background())
	charges, _ := locks.NewLock("charge", nil)
	for _, number := range []int{1, 2} {
		got, out, err := once.JSON(context.Background(), charges.For("order 17"), nil,
			func(context.Context, *once.Run) (receipt, error) { return receipt{number}, nil })
		fmt.Println(got.Number, out.Status, err)
	}
	// Output:
	// 1 ran <nil>
	// 1 already done <nil>
}

// A client far below sends the key of the job that it is called for.
func ExampleKeyFrom() {
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(context.Background())
	charges, _ := locks.NewLock("charge", nil)
	call := func(ctx context.Context) { fmt.Println("Idempotency-Key:", once.KeyFrom(ctx)) }
	_, _ = once.Do(context.Background(), charges.For("17"), nil, func(ctx context.Context, _ *once.Run) ([]byte, error) {
		call(ctx)
		return nil, nil
	})
	// Output: Idempotency-Key: f600001403507141655237b2e27718ee
}

func ExampleKey() {
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(context.Background())
	charges, _ := locks.NewLock("charge", nil)
	fmt.Println(once.Key(charges.For("17")))
	// Output: f600001403507141655237b2e27718ee
}
