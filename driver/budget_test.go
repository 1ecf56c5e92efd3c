package driver

import (
	"context"
	"testing"
	"time"
)

func TestBudgetOnly(t *testing.T) {
	type key struct{}
	of := func(parent context.Context) context.Context {
		ctx, cancel := WithBudget(parent, time.Hour)
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
		if got := BudgetOnly(tt.ctx); got != tt.want {
			t.Errorf("%s: BudgetOnly = %v, want %v", tt.name, got, tt.want)
		}
	}
	ctx, cancel := WithBudget(background, time.Nanosecond)
	defer cancel()
	<-ctx.Done()
	if ctx.Err() != context.DeadlineExceeded || !BudgetOnly(ctx) {
		t.Errorf("at its end: %v, BudgetOnly = %v", ctx.Err(), BudgetOnly(ctx))
	}
	if got := of(context.WithValue(background, key{}, 1)).Value(key{}); got != 1 {
		t.Errorf("the parent's value is %v", got)
	}
}
