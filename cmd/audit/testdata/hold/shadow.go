package hold

import (
	"context"

	"github.com/holdlock/holdlock"
)

// In shadow mode no loss ends the work.
func goodShadow(ctx context.Context, c *holdlock.Client) error {
	lock, err := c.NewLock("shadow", &holdlock.LockOptions{Mode: holdlock.Shadow}) // want lock holdlock "shadow" 30s (default); answer loss-ignored none
	if err != nil {
		return err
	}
	return lock.Do(ctx, func(context.Context, *holdlock.Lease) error { return work(ctx) })
}

func badEnforced(ctx context.Context, c *holdlock.Client) error {
	lock, err := c.NewLock("enforced", &holdlock.LockOptions{Mode: holdlock.Enforce}) // want lock holdlock "enforced" 30s (default)
	if err != nil {
		return err
	}
	return lock.Do(ctx, func(context.Context, *holdlock.Lease) error { return work(ctx) }) // want fault loss-ignored
}

// A lock that a helper uses.
func with[T any](ctx context.Context, l *holdlock.Lock, f func(context.Context) (T, error)) (t T, err error) {
	err = l.Do(ctx, func(ctx context.Context, _ *holdlock.Lease) error {
		t, err = f(ctx)
		return err
	})
	return t, err
}

func goodHelped(ctx context.Context, c *holdlock.Client) (int, error) {
	lock, err := c.NewLock("helped", nil) // want lock holdlock "helped" 30s (default); answer loss-ignored unknown
	if err != nil {
		return 0, err
	}
	return with(ctx, lock.For("x"), func(ctx context.Context) (int, error) { return 1, work(ctx) })
}

func goodLeaseNamed(ctx context.Context, c *holdlock.Client) (lease *holdlock.Lease, err error) {
	lock, err := c.NewLock("named result", nil) // want lock holdlock "named result" 30s (default); answer loss-ignored unknown
	if err != nil {
		return nil, err
	}
	lease, err = lock.Acquire(ctx)
	return
}
