package faultdriver

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdlock/holdlock/driver"
)

// inner returns the optional interface T of the wrapped driver.
func inner[T any](d *Driver, op Op) (T, error) {
	t, ok := driver.As[T](d.inner)
	if !ok {
		return t, fmt.Errorf("faultdriver: the wrapped driver has no %s: %w", op, errors.ErrUnsupported)
	}
	return t, nil
}

// RenewBatch implements driver.BatchRenewer. A fault strikes the whole batch.
func (d *Driver) RenewBatch(ctx context.Context, reqs []*driver.RenewRequest) []driver.RenewResult {
	results, err := call(ctx, d.plan(RenewBatch, ""), func(ctx context.Context) ([]driver.RenewResult, error) {
		batch, err := inner[driver.BatchRenewer](d, RenewBatch)
		if err != nil {
			return nil, err
		}
		return batch.RenewBatch(ctx, reqs), nil
	})
	if err != nil {
		results = make([]driver.RenewResult, len(reqs))
		for i := range results {
			results[i].Err = err
		}
	}
	return results
}

// Watch implements driver.Waiter. See Fault.Lose for what can happen to hints; Ghost and After do not apply.
func (d *Driver) Watch(ctx context.Context, key string) (<-chan struct{}, func(), error) {
	p := d.plan(Watch, key)
	deaf := p.fault.Lose
	p.fault.Lose, p.fault.Ghost, p.fault.After = false, false, 0
	type watch struct {
		hints <-chan struct{}
		stop  func()
	}
	w, err := call(ctx, p, func(ctx context.Context) (watch, error) {
		waiter, err := inner[driver.Waiter](d, Watch)
		if err != nil {
			return watch{}, err
		}
		hints, stop, err := waiter.Watch(ctx, key)
		return watch{hints, stop}, err
	})
	if deaf && err == nil {
		w.hints = make(chan struct{})
	}
	return w.hints, w.stop, err
}

// List implements driver.Lister.
func (d *Driver) List(ctx context.Context, prefix, after string, limit int) ([]driver.Term, error) {
	return call(ctx, d.plan(List, prefix), func(ctx context.Context) ([]driver.Term, error) {
		lister, err := inner[driver.Lister](d, List)
		if err != nil {
			return nil, err
		}
		return lister.List(ctx, prefix, after, limit)
	})
}

// Inspect implements driver.Lister.
func (d *Driver) Inspect(ctx context.Context, key string) (driver.Term, bool, error) {
	type answer struct {
		term   driver.Term
		stands bool
	}
	a, err := call(ctx, d.plan(Inspect, key), func(ctx context.Context) (a answer, err error) {
		lister, err := inner[driver.Lister](d, Inspect)
		if err != nil {
			return a, err
		}
		a.term, a.stands, err = lister.Inspect(ctx, key)
		return a, err
	})
	return a.term, a.stands, err
}

// Break implements driver.Breaker.
func (d *Driver) Break(ctx context.Context, req *driver.BreakRequest) error {
	_, err := call(ctx, d.plan(Break, req.Ref.Key), func(ctx context.Context) (struct{}, error) {
		breaker, err := inner[driver.Breaker](d, Break)
		if err != nil {
			return struct{}{}, err
		}
		return struct{}{}, breaker.Break(ctx, req)
	})
	return err
}

// Enqueue implements driver.Queue.
func (d *Driver) Enqueue(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	return call(ctx, d.plan(Enqueue, req.Ref.Key), func(ctx context.Context) (driver.Grant, error) {
		queue, err := inner[driver.Queue](d, Enqueue)
		if err != nil {
			return driver.Grant{}, err
		}
		return queue.Enqueue(ctx, req)
	})
}

// Attend implements driver.Queue. A fault strikes all places.
func (d *Driver) Attend(ctx context.Context, reqs []*driver.AcquireRequest) []driver.Standing {
	out, err := call(ctx, d.plan(Attend, ""), func(ctx context.Context) ([]driver.Standing, error) {
		queue, err := inner[driver.Queue](d, Attend)
		if err != nil {
			return nil, err
		}
		return queue.Attend(ctx, reqs), nil
	})
	if err != nil {
		out = make([]driver.Standing, len(reqs))
		for i := range out {
			out[i].Err = err
		}
	}
	return out
}

// Leave implements driver.Queue.
func (d *Driver) Leave(ctx context.Context, key string, left []driver.Leaving) error {
	_, err := call(ctx, d.plan(Leave, key), func(ctx context.Context) (struct{}, error) {
		queue, err := inner[driver.Queue](d, Leave)
		if err != nil {
			return struct{}{}, err
		}
		return struct{}{}, queue.Leave(ctx, key, left)
	})
	return err
}

// Listen implements driver.Queue. See Fault.Lose for what can happen to pushes; Ghost and After do not apply.
func (d *Driver) Listen(ctx context.Context, hear func(driver.Push)) error {
	p := d.plan(Listen, "")
	if p.fault.Lose {
		hear = func(driver.Push) {}
	}
	p.fault.Lose, p.fault.Ghost, p.fault.After = false, false, 0
	_, err := call(ctx, p, func(ctx context.Context) (struct{}, error) {
		queue, err := inner[driver.Queue](d, Listen)
		if err != nil {
			return struct{}{}, err
		}
		return struct{}{}, queue.Listen(ctx, hear)
	})
	return err
}
