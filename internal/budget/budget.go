// Package budget has the contexts of calls of a store; see WithBudget of package driver.
package budget

import (
	"context"
	"sync"
	"time"
)

// With is driver.WithBudget.
func With(parent context.Context, budget time.Duration) (context.Context, context.CancelFunc) {
	if parent.Done() != nil {
		return context.WithTimeout(parent, budget)
	}
	b := &Budget{}
	b.Begin(parent, time.Now().Add(budget))
	return b, b.End
}

// Only is driver.BudgetOnly.
func Only(ctx context.Context) bool {
	if _, ok := ctx.(*Budget); ok {
		return true
	}
	b, _ := ctx.Value(key{}).(*Budget)
	return b != nil && b.Done() == ctx.Done()
}

type key struct{}

// A Budget is a context that With returns. It is exported for those who make many calls, and have it as a part of what they
// keep of each: then it costs no memory of its own.
type Budget struct {
	parent   context.Context // without an end
	deadline time.Time

	mu     sync.Mutex
	timed  context.Context // the same with a timer, made for the first who waits
	cancel context.CancelFunc
	err    error // why it ended, once that was asked for
}

// Begin makes the zero Budget a context. The parent must be one without an end. It is called once, before all else.
func (b *Budget) Begin(parent context.Context, deadline time.Time) {
	b.parent, b.deadline = parent, deadline
}

// Deadline is part of context.Context.
func (b *Budget) Deadline() (time.Time, bool) { return b.deadline, true }

// Done is part of context.Context.
func (b *Budget) Done() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timed == nil {
		b.timed, b.cancel = context.WithDeadline(b.parent, b.deadline)
		if b.err == context.Canceled { //nolint:errorlint // our own
			b.cancel()
		}
	}
	return b.timed.Done()
}

// Err is part of context.Context.
func (b *Budget) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.err != nil:
	case b.timed != nil && b.timed.Err() != nil:
		b.err = b.timed.Err()
	case !time.Now().Before(b.deadline): // a timer may be a moment late
		b.err = context.DeadlineExceeded
	}
	return b.err
}

// Value is part of context.Context. It finds the budget from its children, too.
func (b *Budget) Value(k any) any {
	if k == (key{}) {
		return b
	}
	b.mu.Lock()
	timed := b.timed
	b.mu.Unlock()
	if timed != nil {
		return timed.Value(k) // so that children find the one that they end with
	}
	return b.parent.Value(k)
}

// End is the cancelling of the context. It does not look at the clock, since most calls end long before: who has not noticed a
// deadline by then is told that it was cancelled.
func (b *Budget) End() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timed != nil {
		b.cancel()
	} else if b.err == nil {
		b.err = context.Canceled
	}
}
