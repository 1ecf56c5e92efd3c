package driver

import (
	"context"
	"sync"
	"time"
)

// WithBudget returns the context of one call of a store. It is context.WithTimeout; what is more, a driver can see by
// BudgetOnly that nobody can cancel it before its time, and as long as nobody waits for its end it costs no timer: nearly
// all calls are answered long before, and drivers have deadlines of their own to give to their clients.
func WithBudget(parent context.Context, budget time.Duration) (context.Context, context.CancelFunc) {
	if parent.Done() != nil {
		return context.WithTimeout(parent, budget)
	}
	b := &budgeted{parent: parent, deadline: time.Now().Add(budget)}
	return b, b.end
}

// BudgetOnly says whether ctx is one of WithBudget and ends by its deadline alone, so that a client library that keeps
// deadlines, and does not look out for anything else, can be called directly. It is false for children with an end of
// their own.
func BudgetOnly(ctx context.Context) bool {
	if _, ok := ctx.(*budgeted); ok {
		return true
	}
	b, _ := ctx.Value(budgetKey{}).(*budgeted)
	return b != nil && b.Done() == ctx.Done()
}

type budgetKey struct{}

type budgeted struct {
	parent   context.Context // without an end
	deadline time.Time

	mu     sync.Mutex
	timed  context.Context // the same with a timer, made for the first who waits
	cancel context.CancelFunc
	err    error // why it ended, once that was asked for
}

// Deadline is part of context.Context.
func (b *budgeted) Deadline() (time.Time, bool) { return b.deadline, true }

// Done is part of context.Context.
func (b *budgeted) Done() <-chan struct{} {
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
func (b *budgeted) Err() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.why()
}

// why is Err, with mu held.
func (b *budgeted) why() error {
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
func (b *budgeted) Value(key any) any {
	if key == (budgetKey{}) {
		return b
	}
	b.mu.Lock()
	timed := b.timed
	b.mu.Unlock()
	if timed != nil {
		return timed.Value(key) // so that children find the one that they end with
	}
	return b.parent.Value(key)
}

func (b *budgeted) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timed != nil {
		b.cancel()
	} else if b.why() == nil {
		b.err = context.Canceled
	}
}
