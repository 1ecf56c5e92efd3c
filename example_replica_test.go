package holdlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/memhold"
)

// whileLeader runs work in one of all the replicas that call it with the same lock, until ctx ends. When the one that
// runs it stops, fails, or loses the lock, another takes over; the first goes back to waiting.
//
// The lock wants Wait and MaxHold to be Forever. Its TTL is how long nobody works after a replica has died.
func whileLeader(ctx context.Context, lock *holdlock.Lock, work func(ctx context.Context) error) error {
	for {
		err := lock.Do(ctx, func(ctx context.Context, _ *holdlock.Lease) error { return work(ctx) })
		switch {
		case ctx.Err() != nil:
			return err
		case errors.Is(err, holdlock.ErrRefused), errors.Is(err, holdlock.ErrInvalid), errors.Is(err, holdlock.ErrShutdown):
			return err // this will not get better
		case err != nil: // the lock was lost, the store is down, or the work has failed
			slog.Warn("going back to waiting", "lock", lock.Name(), "err", err)
		}
		select {
		case <-time.After(time.Second): // also when work returns at once, so that nobody spins
		case <-ctx.Done():
		}
	}
}

// Only one replica of a service runs this loop.
func Example_oneReplica() {
	store := memhold.NewStore() // stands for a server that both replicas reach
	replica := func(ctx context.Context, name string, ticks chan<- string) error {
		locks, err := memhold.Open(&memhold.Options{Store: store, Client: holdlock.ClientOptions{Label: name}})
		if err != nil {
			return err
		}
		defer locks.Shutdown(context.Background())
		lock, err := locks.NewLock("relay-outbox", &holdlock.LockOptions{
			TTL: 15 * time.Second, Wait: holdlock.Forever, MaxHold: holdlock.Forever, Purpose: "relays the outbox",
		})
		if err != nil {
			return err
		}
		return whileLeader(ctx, lock, func(ctx context.Context) error {
			for ctx.Err() == nil { // ctx also ends when the lock is lost
				select {
				case ticks <- name + " relays":
				case <-ctx.Done():
				}
			}
			return nil
		})
	}

	first, stopFirst := context.WithCancel(context.Background())
	second, stopSecond := context.WithCancel(context.Background())
	ticks1, ticks2 := make(chan string), make(chan string)
	done := make(chan error)
	go func() { done <- replica(first, "first", ticks1) }()
	fmt.Println(<-ticks1)
	go func() { done <- replica(second, "second", ticks2) }()
	fmt.Println(<-ticks1)
	stopFirst() // a rolling deploy: the first gives the lock back, the second has it at once
	if err := <-done; err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-ticks2)
	stopSecond()
	if err := <-done; err != nil {
		log.Fatal(err)
	}
	// Output:
	// first relays
	// first relays
	// second relays
}
