package holdlock_test

import (
	"context"
	"fmt"
	"log"
	"sync"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/memhold"
)

// counter counts events by lock and kind. Keys are not counted apart: there is no end of them.
type counter struct {
	mu sync.Mutex
	n  map[string]int
}

func (c *counter) Observe(e holdlock.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n[e.Name+" "+string(e.Kind)]++
}

// An Observer turns what happens to locks into metrics. One for Prometheus is in examples/prometheus.
func ExampleObserver() {
	ctx := context.Background()
	counts := &counter{n: map[string]int{}}
	locks, _ := memhold.Open(&memhold.Options{Client: holdlock.ClientOptions{Observer: counts}})
	l, err := locks.NewLock("report", nil)
	if err != nil {
		log.Fatal(err)
	}

	_ = l.Do(ctx, func(ctx context.Context, _ *holdlock.Lease) error {
		_, _ = l.TryAcquire(ctx) // a second run, which is skipped
		return nil
	})
	if err := locks.Shutdown(ctx); err != nil {
		log.Fatal(err)
	}
	fmt.Println(counts.n)
	// Output: map[report granted:1 report released:1 report skipped:1]
}
