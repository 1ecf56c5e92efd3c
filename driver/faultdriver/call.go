package faultdriver

import (
	"context"
	"fmt"
	"time"
)

// A plan is what is going to happen to one call.
type plan struct {
	op     Op
	key    string
	fault  Fault
	driver *Driver
	thawed <-chan struct{}
}

func (d *Driver) plan(op Op, key string) plan {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.counts[op]++
	p := plan{op: op, key: key, driver: d, thawed: d.frozen}
	if d.script == nil || d.closed {
		return p
	}
	p.fault = d.script(Call{Op: op, N: d.counts[op], Key: key})
	if p.fault.Err != nil && !p.fault.Lose {
		p.fault.Drop = true
	}
	return p
}

func (p plan) failed(what string, err error) error {
	if err == nil {
		err = ErrFault
	}
	return fmt.Errorf("faultdriver: %s %q: %s: %w", p.op, p.key, what, err)
}

// call makes one call as planned. ask asks the store.
func call[T any](ctx context.Context, p plan, ask func(context.Context) (T, error)) (T, error) {
	var zero T
	request := func(ctx context.Context) (T, error) {
		if p.fault.Hang == Hard {
			<-p.thawed
			ctx = context.WithoutCancel(ctx) // the store wakes up and finds the request; it cannot see who still listens
		}
		if err := sleep(ctx, p.fault.Before); err != nil {
			return zero, p.failed("the request was given up on its way", err)
		}
		if p.fault.Drop {
			return zero, p.failed("the request was dropped", p.fault.Err)
		}
		return ask(ctx)
	}
	if p.fault.Hang == UntilDone {
		<-ctx.Done()
		return zero, p.failed("hung", ctx.Err())
	}
	if p.fault.Ghost {
		request = ghost(p, request)
	}
	answer, err := request(ctx)
	if ended := sleep(ctx, p.fault.After); ended != nil {
		return zero, p.failed("given up; the reply is still on its way", ended)
	}
	if p.fault.Lose {
		return zero, p.failed("the reply was lost", p.fault.Err)
	}
	return answer, err
}

// ghost lets a request go on when its caller gives up.
func ghost[T any](p plan, request func(context.Context) (T, error)) func(context.Context) (T, error) {
	return func(ctx context.Context) (T, error) {
		var answer, zero T
		var err error
		done := make(chan struct{})
		if !p.driver.adopt() {
			return request(ctx)
		}
		go func() {
			defer p.driver.ghosts.Done()
			defer close(done)
			answer, err = request(context.WithoutCancel(ctx))
		}()
		select {
		case <-done:
			return answer, err
		case <-ctx.Done():
			return zero, p.failed("given up; the request is still on its way", ctx.Err())
		}
	}
}

// adopt makes Close wait for one more ghost, unless it is too late for that.
func (d *Driver) adopt() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.ghosts.Add(1)
	}
	return !d.closed
}

// sleep returns early, with the error of ctx, when ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
