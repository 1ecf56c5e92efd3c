package holdlock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// errAbandoned is the outcome of a call that had not returned a moment after its context ended.
var errAbandoned = errors.New("the store did not answer, nor give up when told to")

const (
	// callGrace is how long a driver gets after its context has ended to say what it knows.
	callGrace = 50 * time.Millisecond
	// maxHung bounds the goroutines that a store which ignores its contexts can cost.
	maxHung = 64
)

// hungCalls counts calls that were abandoned and have not returned.
type hungCalls struct{ n atomic.Int64 }

// call makes one call of the store within a budget. A driver that is not prompt may ignore its context: then the call is
// abandoned, and late gets what it says if it ever returns.
func call[T any](ctx context.Context, c *Client, budget time.Duration,
	f func(context.Context) (T, error), late func(T, error),
) (T, error) {
	ctx, cancel := driver.WithBudget(ctx, budget)
	defer cancel()
	if c.traits.Prompt {
		return f(ctx) // two switches of goroutines, with whatever threads they wake, cost more than a local store
	}
	var zero T
	if c.hung.n.Load() >= maxHung {
		return zero, fmt.Errorf("%d calls of this store hang; no more are made until one returns: %w", maxHung, driver.ErrNotApplied)
	}
	type answer struct {
		v   T
		err error
	}
	answered, abandoned := make(chan answer), make(chan struct{})
	go func() {
		v, err := f(ctx)
		select {
		case answered <- answer{v, err}:
		case <-abandoned:
			c.hung.n.Add(-1)
			late(v, err)
		}
	}()
	select {
	case a := <-answered:
		return a.v, a.err
	case <-ctx.Done():
	}
	grace := time.NewTimer(callGrace)
	defer grace.Stop()
	select {
	case a := <-answered:
		return a.v, a.err
	case <-grace.C:
		c.hung.n.Add(1)
		close(abandoned)
		return zero, fmt.Errorf("%w (%s)", errAbandoned, budget)
	}
}

// discard is the late handler of calls whose late answers do not matter.
func discard[T any](T, error) {}
