package holdlock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/memhold"
)

// A schedule that fires on several machines needs a MinHold that is longer than their clocks differ.
func ExampleLock_MinHold() {
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(context.Background())
	l, err := locks.NewLock("nightly", &holdlock.LockOptions{MinHold: 5 * time.Second})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(l.MinHold())
	// Output: 5s
}
