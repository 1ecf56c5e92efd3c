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

// TryAcquire is for work that does not fit into one function. Every lease needs a Release, also a lost one.
func ExampleLock_TryAcquire() {
	ctx := context.Background()
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(ctx)
	reindex, err := locks.NewLock("reindex", nil)
	if err != nil {
		log.Fatal(err)
	}

	lease, err := reindex.TryAcquire(ctx)
	if err != nil {
		log.Fatal(err)
	}
	_, err = reindex.TryAcquire(ctx)
	fmt.Println("a second one:", errors.Is(err, holdlock.ErrHeld))

	if err := lease.Release(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("after the release:", lease.Err())
	// Output:
	// a second one: true
	// after the release: lease was released
}

// Release gives back what is still ours and says so if it no longer was. It works after ctx has ended, and twice.
func ExampleLease_Release() {
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(context.Background())
	cleanup, err := locks.NewLock("cleanup", nil)
	if err != nil {
		log.Fatal(err)
	}

	ctx, cancel := context.WithCancel(context.Background())
	lease, err := cleanup.TryAcquire(ctx)
	if err != nil {
		log.Fatal(err)
	}
	cancel()
	fmt.Println(lease.Release(ctx))
	fmt.Println(lease.Release(ctx))
	// Output:
	// <nil>
	// lease was released
}

// Right before an effect, Check asks whether there is time for it.
func ExampleLease_Check() {
	ctx := context.Background()
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(ctx)
	mail, err := locks.NewLock("mail", &holdlock.LockOptions{TTL: 30 * time.Second})
	if err != nil {
		log.Fatal(err)
	}

	_ = mail.Do(ctx, func(_ context.Context, lease *holdlock.Lease) error {
		fmt.Println("5 s to send a message:", lease.Check(5*time.Second))
		fmt.Println("an hour:", errors.Is(lease.Check(time.Hour), holdlock.ErrShort))
		return nil
	})
	// Output:
	// 5 s to send a message: <nil>
	// an hour: true
}

// WithContext gives a context to the work of a lease that Acquire or TryAcquire returned. It ends with the lease.
func ExampleLease_WithContext() {
	ctx := context.Background()
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(ctx)
	index, err := locks.NewLock("index", nil)
	if err != nil {
		log.Fatal(err)
	}

	lease, err := index.TryAcquire(ctx)
	if err != nil {
		log.Fatal(err)
	}
	work, cancel := lease.WithContext(ctx)
	defer cancel()
	fmt.Println("while held:", work.Err())
	if err := lease.Release(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println("afterwards:", work.Err(), "-", context.Cause(work))
	// Output:
	// while held: <nil>
	// afterwards: context canceled - lease was released
}

// A program that already has a loop waits for the end of the lease in it.
func ExampleLease_Done() {
	ctx := context.Background()
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(ctx)
	poll, err := locks.NewLock("poll", nil)
	if err != nil {
		log.Fatal(err)
	}

	lease, err := poll.TryAcquire(ctx)
	if err != nil {
		log.Fatal(err)
	}
	polls := make(chan string, 1)
	polls <- "first"
	for lease.Err() == nil {
		select {
		case p := <-polls:
			fmt.Println("the", p, "poll")
			go lease.Release(ctx) // it could as well be lost
		case <-lease.Done():
		}
	}
	fmt.Println(lease.Err())
	// Output:
	// the first poll
	// lease was released
}

// Deadline is for people and plans: the work may believe in the lease until then, unless it is renewed before.
func ExampleLease_Deadline() {
	ctx := context.Background()
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(ctx)
	l, err := locks.NewLock("backup", &holdlock.LockOptions{TTL: time.Hour})
	if err != nil {
		log.Fatal(err)
	}

	_ = l.Do(ctx, func(_ context.Context, lease *holdlock.Lease) error {
		fmt.Println("about", time.Until(lease.Deadline()).Round(time.Minute)) // TTL less a tenth of it
		return nil
	})
	// Output: about 54m0s
}
