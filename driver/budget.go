package driver

import (
	"context"
	"time"

	"github.com/holdlock/holdlock/internal/budget"
)

// WithBudget returns the context of one call of a store. It is context.WithTimeout; what is more, a driver can see by
// BudgetOnly that nobody can cancel it before its time, and as long as nobody waits for its end it costs no timer: nearly
// all calls are answered long before, and drivers have deadlines of their own to give to their clients.
func WithBudget(parent context.Context, length time.Duration) (context.Context, context.CancelFunc) {
	return budget.With(parent, length)
}

// BudgetOnly says whether ctx is one of WithBudget and ends by its deadline alone, so that a client library that keeps
// deadlines, and does not look out for anything else, can be called directly. It is false for children with an end of
// their own.
func BudgetOnly(ctx context.Context) bool { return budget.Only(ctx) }
