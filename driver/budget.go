package driver

import (
	"context"
	"time"
)

// WithBudget returns the context of one call of a store. It is context.WithTimeout; what is more, a driver can see by
// BudgetOnly that nobody can cancel it before its time.
func WithBudget(parent context.Context, budget time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(parent, budget)
	if parent.Done() == nil {
		ctx = &budgeted{ctx}
	}
	return ctx, cancel
}

// BudgetOnly says whether ctx is one of WithBudget and ends by its deadline alone, so that a client library that keeps
// deadlines, and does not look out for anything else, can be called directly. It is false for children with an end of
// their own.
func BudgetOnly(ctx context.Context) bool {
	b, _ := ctx.Value(budgetKey{}).(*budgeted)
	return b != nil && b.Done() == ctx.Done()
}

type budgetKey struct{}

type budgeted struct{ context.Context }

// Value finds the budget from its children, too.
func (b *budgeted) Value(key any) any {
	if key == (budgetKey{}) {
		return b
	}
	return b.Context.Value(key)
}
