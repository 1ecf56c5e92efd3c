package redishold

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/holdlock/holdlock/driver"
)

// bounded makes f return when ctx ends. A go-redis client by default looks at contexts only between attempts, and at its
// own ReadTimeout in between, so a server that hangs would cost seconds. The call that is left behind ends by that timeout;
// what it may still do at the server is the caller's to undo.
func bounded[T any](ctx context.Context, d *Driver, f func(context.Context) (T, error)) (T, error) {
	return boundedBy(ctx, d, &d.hung, f)
}

// boundedBy is bounded for calls that are counted among others than those of the whole driver.
func boundedBy[T any](ctx context.Context, d *Driver, hung *atomic.Int64, f func(context.Context) (T, error)) (T, error) {
	var zero T
	if hung.Load() >= maxHung {
		return zero, errHung
	}
	type answer struct {
		v   T
		err error
	}
	answered, left := make(chan answer), make(chan struct{})
	go func() {
		v, err := f(ctx)
		select {
		case answered <- answer{v, err}:
		case <-left:
			hung.Add(-1)
		}
	}()
	select {
	case a := <-answered:
		return a.v, a.err
	case <-ctx.Done():
	case <-d.closing:
	}
	hung.Add(1)
	close(left)
	if err := ctx.Err(); err != nil {
		return zero, fmt.Errorf("no answer in time: %w", err)
	}
	return zero, fmt.Errorf("closed during the call: %w", driver.ErrClosed)
}
