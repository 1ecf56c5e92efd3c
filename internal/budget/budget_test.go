package budget

import (
	"context"
	"runtime"
	"testing"
	"time"
)

func TestBudgetOnly(t *testing.T) {
	type key struct{}
	of := func(parent context.Context) context.Context {
		ctx, cancel := With(parent, time.Hour)
		t.Cleanup(cancel)
		return ctx
	}
	person, cancel := context.WithCancel(t.Context())
	defer cancel()
	background := context.Background()
	child, cancelChild := context.WithCancel(of(background))
	defer cancelChild()
	for _, tt := range []struct {
		name string
		ctx  context.Context
		want bool
	}{
		{"background", of(background), true},
		{"a person may have cancelled it, and can no more", of(context.WithoutCancel(person)), true},
		{"a value above", of(context.WithValue(background, key{}, 1)), true},
		{"a value below", context.WithValue(of(background), key{}, 1), true},
		{"a person can cancel it", of(person), false},
		{"a child can be cancelled", child, false},
		{"no budget", background, false},
	} {
		if got := Only(tt.ctx); got != tt.want {
			t.Errorf("%s: BudgetOnly = %v, want %v", tt.name, got, tt.want)
		}
	}
	ctx, cancel := With(background, time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	if ctx.Err() != context.DeadlineExceeded || !Only(ctx) {
		t.Errorf("at its end: %v, BudgetOnly = %v", ctx.Err(), Only(ctx))
	}
	// Before anybody waits for its end it has no timer, and ends all the same.
	for name, ctx := range map[string]context.Context{
		"never waited for": func() context.Context { ctx, cancel := With(background, time.Hour); cancel(); return ctx }(),
		"waited for": func() context.Context {
			ctx, cancel := With(background, time.Hour)
			_ = ctx.Done()
			cancel()
			return ctx
		}(),
	} {
		child, cancel := context.WithCancel(ctx)
		defer cancel()
		if ctx.Err() != context.Canceled || child.Err() != context.Canceled {
			t.Errorf("%s: %v after its end, its child %v", name, ctx.Err(), child.Err())
		}
		<-ctx.Done()
	}
	passed, cancel := With(background, -1)
	if passed.Err() != context.DeadlineExceeded {
		t.Errorf("past its deadline: %v", passed.Err())
	}
	cancel()
	if <-passed.Done(); passed.Err() != context.DeadlineExceeded {
		t.Errorf("past its deadline, then cancelled: %v", passed.Err())
	}
	// A child costs no goroutine: it hangs on the context that the budget has made.
	before := runtime.NumGoroutine()
	for range 100 {
		_, cancel := context.WithCancel(of(background))
		defer cancel()
	}
	if n := runtime.NumGoroutine() - before; n > 50 {
		t.Errorf("100 children cost %d goroutines", n)
	}
	if got := of(context.WithValue(background, key{}, 1)).Value(key{}); got != 1 {
		t.Errorf("the parent's value is %v", got)
	}
}

// A budget is used up when its time is over, also while its timer has not fired yet, and says the same from then on.
func TestBudgetEndsByTheClock(t *testing.T) {
	b := &Budget{parent: context.Background(), deadline: time.Now()}
	b.timed, b.cancel = context.WithCancel(b.parent) // a timer that is very late
	if err := b.Err(); err != context.DeadlineExceeded {
		t.Errorf("%v, want that the deadline is exceeded", err)
	}
	b.End()
	if err := b.Err(); err != context.DeadlineExceeded {
		t.Errorf("when it was cancelled too: %v", err)
	}
}
