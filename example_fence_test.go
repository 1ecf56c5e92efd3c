package holdlock_test

import (
	"context"
	"fmt"
	"log"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/memhold"
)

// file is a resource that protects itself: it refuses a write by anyone who has been overtaken.
type file struct {
	content string
	last    holdlock.Token // of the latest write
}

func (f *file) write(content string, token holdlock.Token) error {
	if token < f.last {
		return fmt.Errorf("refused: token %d came after %d", token, f.last)
	}
	f.content, f.last = content, token
	return nil
}

// No lock can stop a holder that was paused between its last check and its write. The resource can: it remembers the
// largest token it has seen and refuses smaller ones. In a database that is a condition of the UPDATE.
func ExampleLease_Token() {
	ctx := context.Background()
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(ctx)
	l, err := locks.NewLock("config", nil)
	if err != nil {
		log.Fatal(err)
	}

	var f file
	paused, err := l.TryAcquire(ctx)
	if err != nil {
		log.Fatal(err)
	}
	// The holder is paused. Its lease is taken away from it, and the next one gets the lock and writes.
	err = locks.Break(ctx, "config", "", paused.Token(), holdlock.BreakOptions{By: "the example", Now: true})
	if err != nil {
		log.Fatal(err)
	}
	next, err := l.TryAcquire(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("the next one:", f.write("new", next.Token()))
	// The paused one goes on and writes what it had in mind.
	fmt.Println("the paused one is refused:", f.write("old", paused.Token()) != nil)
	fmt.Println(f.content)

	_ = paused.Release(ctx)
	if err := next.Release(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// the next one: <nil>
	// the paused one is refused: true
	// new
}
