package holdlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/memhold"
)

// List shows what is held, here all keys of all locks whose name starts with "charge".
func ExampleClient_List() {
	ctx := context.Background()
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(ctx)
	charge, err := locks.NewLock("charge", nil)
	if err != nil {
		log.Fatal(err)
	}
	for _, key := range []string{"8", "7"} {
		lease, err := charge.For(key).TryAcquire(ctx)
		if err != nil {
			log.Fatal(err)
		}
		defer lease.Release(ctx)
	}

	for info, err := range locks.List(ctx, "charge") {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(info.Name, info.Key)
	}
	// Output:
	// charge 7
	// charge 8
}

// Inspect shows who holds one lock.
func ExampleClient_Inspect() {
	ctx := context.Background()
	locks, _ := memhold.Open(&memhold.Options{Client: holdlock.ClientOptions{Label: "billing"}})
	defer locks.Shutdown(ctx)
	l, err := locks.NewLock("close-month", &holdlock.LockOptions{Purpose: "closes the books"})
	if err != nil {
		log.Fatal(err)
	}

	_, held, err := locks.Inspect(ctx, "close-month", "")
	fmt.Println(held, err)
	_ = l.Do(ctx, func(ctx context.Context, _ *holdlock.Lease) error {
		info, held, err := locks.Inspect(ctx, "close-month", "")
		fmt.Println(held, err, info.Holder.Label, info.Holder.Purpose)
		return nil
	})
	// Output:
	// false <nil>
	// true <nil> billing closes the books
}

// Break ends a term that an operator has looked at. Its holder is told at its next renewal, and the key passes on when
// the present term has ended, so that nobody overlaps.
func ExampleClient_Break() {
	ctx := context.Background()
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(ctx)
	l, err := locks.NewLock("stuck", nil)
	if err != nil {
		log.Fatal(err)
	}

	err = l.Do(ctx, func(ctx context.Context, _ *holdlock.Lease) error {
		info, _, err := locks.Inspect(ctx, "stuck", "")
		if err != nil {
			return err
		}
		err = locks.Break(ctx, "stuck", "", info.Token-1, holdlock.BreakOptions{By: "ann: it hangs"})
		fmt.Println("another term:", errors.Is(err, holdlock.ErrStaleToken))
		err = locks.Break(ctx, "stuck", "", info.Token, holdlock.BreakOptions{By: "ann: it hangs"})
		fmt.Println("this term:", err)
		info, _, err = locks.Inspect(ctx, "stuck", "")
		fmt.Println("broken by", info.Broken)
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// another term: true
	// this term: <nil>
	// broken by ann: it hangs
}

// Traits are facts about the store. A program that needs one of them asks, and does not look at the store's name.
func ExampleClient_Traits() {
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(context.Background())

	t := locks.Traits()
	fmt.Println("excludes:", t.Scope)
	fmt.Println("tokens:", t.Fencing)
	fmt.Println("forgets:", t.Forgets)
	// Output:
	// excludes: one process
	// tokens: rise while the data survives
	// forgets: only what dies with every holder (end of the process, reboot)
}

// ParseName reads what people write in a shell. A lock's name holds no slash, so the first one ends it.
func ExampleParseName() {
	fmt.Println(holdlock.ParseName("nightly-report"))
	fmt.Println(holdlock.ParseName("copy/2026/11/30"))
	// Output:
	// nightly-report  <nil>
	// copy 2026/11/30 <nil>
}
