package holdlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/faultdriver"
	"github.com/holdlock/holdlock/memhold"
)

func ExampleHeldError() {
	ctx := context.Background()
	locks, _ := memhold.Open(&memhold.Options{Client: holdlock.ClientOptions{Label: "billing"}})
	defer locks.Shutdown(ctx)
	l, err := locks.NewLock("close-month", &holdlock.LockOptions{TTL: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	lease, err := l.TryAcquire(ctx)
	if err != nil {
		log.Fatal(err)
	}

	_, err = l.TryAcquire(ctx)
	var held *holdlock.HeldError
	if errors.As(err, &held) {
		fmt.Println("held by", held.Holder.Label)
		fmt.Println("token", held.Token == lease.Token())
		fmt.Println("free within a minute unless renewed:", held.FreeIn <= time.Minute)
	}
	_ = lease.Release(ctx)
	// Output:
	// held by billing
	// token true
	// free within a minute unless renewed: true
}

// When the lease is lost the work's context ends, with the reason as its cause, and Do returns it once the work has
// returned.
func ExampleLostError() {
	ctx := context.Background()
	locks, _ := memhold.Open(nil)
	l, err := locks.NewLock("import", nil)
	if err != nil {
		log.Fatal(err)
	}

	err = l.Do(ctx, func(ctx context.Context, _ *holdlock.Lease) error {
		atOnce, cancel := context.WithCancel(ctx)
		cancel()
		_ = locks.Shutdown(atOnce) // one of the ways to lose a lease: the program stops and does not wait
		<-ctx.Done()
		fmt.Println("the work is told:", errors.Is(context.Cause(ctx), holdlock.ErrLost))
		return nil
	})
	var lost *holdlock.LostError
	if errors.As(err, &lost) {
		fmt.Println("lock", lost.Name, "was lost:", lost.Reason)
	}
	// Output:
	// the work is told: true
	// lock import was lost: shutdown
}

// A failure of the store is never mistaken for an answer about the lock.
func ExampleStoreError() {
	ctx := context.Background()
	down := faultdriver.On(faultdriver.Acquire, 1, 0, faultdriver.Fault{Drop: true, Err: driver.ErrNotApplied})
	locks, err := holdlock.NewClient(faultdriver.New(memhold.NewDriver(nil), down), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer locks.Shutdown(ctx)
	l, err := locks.NewLock("sync", nil)
	if err != nil {
		log.Fatal(err)
	}

	_, err = l.TryAcquire(ctx)
	fmt.Println("held:", errors.Is(err, holdlock.ErrHeld))
	fmt.Println("unreachable:", errors.Is(err, holdlock.ErrUnreachable))
	var failed *holdlock.StoreError
	if errors.As(err, &failed) {
		fmt.Println(failed.Op, "of", failed.Name)
	}
	// Output:
	// held: false
	// unreachable: true
	// acquire of sync
}

// A lock whose double run does harm is refused on a store that cannot prevent one.
func ExampleRefusedError() {
	ctx := context.Background()
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(ctx)
	pay, err := locks.NewLock("pay-out", &holdlock.LockOptions{DoubleRun: holdlock.Harmful})
	if err != nil {
		log.Fatal(err)
	}

	err = pay.Do(ctx, nil)
	var refused *holdlock.RefusedError
	if errors.As(err, &refused) {
		fmt.Println("refused:", refused.Missing)
	}
	// Output: refused: no Guard is declared
}

func ExampleInvalidError() {
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(context.Background())

	_, err := locks.NewLock("charge/7", nil)
	fmt.Println(err)
	_, err = locks.NewLock("charge", &holdlock.LockOptions{TTL: time.Millisecond})
	fmt.Println(err)
	// Output:
	// lock name "charge/7" is not allowed: it contains a slash; put what varies into a key with For
	// TTL 1ms is not allowed: at least 100ms on this store
}

// A lock that its store cannot protect is found when the program starts, and not when the first job does not run.
func ExampleLock_Usable() {
	ctx := context.Background()
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(ctx)
	payouts, err := locks.NewLock("payouts", &holdlock.LockOptions{DoubleRun: holdlock.Harmful})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(errors.Is(payouts.Usable(), holdlock.ErrRefused))
	// Output: true
}
