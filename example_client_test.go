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

// A client on a driver. Programs use the Open function of the store's package, which does the same.
func ExampleNewClient() {
	locks, err := holdlock.NewClient(memhold.NewDriver(nil), &holdlock.ClientOptions{Label: "billing", CallTimeout: time.Second})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(locks.Shutdown(context.Background()))
	// Output: <nil>
}

// Locks are declared once, where a program starts, so that a setting that is not allowed is found there.
func ExampleClient_NewLock() {
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(context.Background())

	l, err := locks.NewLock("charge-card", &holdlock.LockOptions{
		TTL:       30 * time.Second, // a dead holder is noticed after that
		MaxHold:   10 * time.Minute, // a stuck one loses the lock after that
		Purpose:   "calls the payments API",
		DoubleRun: holdlock.Harmless, // the API knows the order's idempotency key
	})
	fmt.Println(l.Name(), err)
	fmt.Println(l.For("order-7").Key())
	// Output:
	// charge-card <nil>
	// order-7
}

// At the end of a program, Shutdown waits for the work that holds locks, for as long as its context lasts.
func ExampleClient_Shutdown() {
	ctx, stop := context.WithCancel(context.Background()) // a service: signal.NotifyContext(…, syscall.SIGTERM)
	locks, _ := memhold.Open(nil)
	l, err := locks.NewLock("export", nil)
	if err != nil {
		log.Fatal(err)
	}
	started, done := make(chan struct{}), make(chan error)
	go func() {
		done <- l.Do(ctx, func(ctx context.Context, _ *holdlock.Lease) error {
			close(started)
			<-ctx.Done()
			fmt.Println("the work stops")
			return nil
		})
	}()
	<-started

	stop()
	grace, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	fmt.Println(locks.Shutdown(grace))
	fmt.Println(<-done)
	_, err = l.TryAcquire(context.Background())
	fmt.Println(errors.Is(err, holdlock.ErrShutdown))
	// Output:
	// the work stops
	// <nil>
	// <nil>
	// true
}
