//go:build unix

package redishold

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// A caller who sends by himself is back when his budget ends, whatever he waits for: with all connections of the pool taken
// by somebody else, and with a dial that does not come to an end, not only when the client library's own patience does.
func TestNobodyOutwaitsHisBudgetForAConnection(t *testing.T) {
	t.Parallel()
	const limit = 10 * time.Second // the client library's own
	taken := func(t *testing.T) *redis.Client {
		r := testenv.StartRedis(t)
		rdb := redis.NewClient(&redis.Options{
			Addr: r.Addr, ContextTimeoutEnabled: true, MaxRetries: -1, PoolSize: 1, PoolTimeout: limit, MaintNotificationsConfig: noMaintenance,
		})
		conn := rdb.Conn()
		if err := conn.Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = conn.Close(), rdb.Close() })
		return rdb
	}
	errDial := errors.New("the dial has timed out")
	hanging := func(t *testing.T) *redis.Client {
		rdb := redis.NewClient(&redis.Options{
			Addr: "nowhere", ContextTimeoutEnabled: true, MaxRetries: -1, DialerRetries: 1, MaintNotificationsConfig: noMaintenance,
			Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
				select {
				case <-ctx.Done():
					return nil, ctx.Err()
				case <-time.After(limit):
					return nil, errDial
				}
			},
			DialTimeout: time.Hour,
		})
		t.Cleanup(func() { _ = rdb.Close() })
		return rdb
	}
	directly := func(t *testing.T, ctx context.Context, rdb *redis.Client) error {
		d, err := NewDriver(rdb, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if !d.shared.direct || !driver.BudgetOnly(ctx) {
			t.Error("the call is not made directly, so the test tells nothing")
		}
		_, err = d.call(ctx, echo, []string{"k"}, "x")
		return err
	}
	deafly := func(_ *testing.T, ctx context.Context, rdb *redis.Client) error { // the control: a context that never gives a channel
		r := &member{script: echo, keys: []string{"k"}, args: []any{"x"}}
		sendOne(deaf{ctx}, rdb, r)
		return r.err
	}
	for _, tt := range []struct {
		name   string
		client func(t *testing.T) *redis.Client
		call   func(t *testing.T, ctx context.Context, rdb *redis.Client) error
		inTime bool
	}{
		{"all connections are taken", taken, directly, true},
		{"the dial hangs", hanging, directly, true},
		{"all connections are taken, without a channel", taken, deafly, false},
		{"the dial hangs, without a channel", hanging, deafly, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			rdb := tt.client(t)
			ctx, cancel := driver.WithBudget(context.Background(), 200*time.Millisecond)
			defer cancel()
			err := tt.call(t, ctx, rdb)
			if err == nil {
				t.Fatal("the call was made")
			}
			// Which of the two ended it tells how long it took.
			own := errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, errDial) || strings.Contains(err.Error(), errDial.Error())
			if inTime := errors.Is(err, context.DeadlineExceeded) && !own; inTime != tt.inTime {
				t.Errorf("ended by its budget: %v (%v), want %v", inTime, err, tt.inTime)
			}
		})
	}
}

// deaf is a context whose end nobody can wait for.
type deaf struct{ context.Context }

// Done is part of context.Context.
func (deaf) Done() <-chan struct{} { return nil }

// tardy is a context whose timer has not noticed yet that its time is over.
type tardy struct{ context.Context }

// Err is part of context.Context.
func (tardy) Err() error { return nil }

// A call that waits until its time is over says so, and not that the driver was closed.
func TestTheEndOfABudgetIsNoClose(t *testing.T) {
	t.Parallel()
	r := testenv.StartRedis(t)
	d, g := heldBack(t, r.Addr)
	open := g.close()
	first := fill(t, d, g)
	call := func(budget time.Duration) <-chan outcome {
		ctx, cancel := driver.WithBudget(context.Background(), budget)
		t.Cleanup(cancel)
		late := tardy{ctx}
		if !driver.BudgetOnly(late) {
			t.Fatal("its end is not the business of the driver, so the test tells nothing")
		}
		return aside(late, d, echo, "k", "x")
	}
	if o := get(t, "out of time", call(time.Millisecond)); !errors.Is(o.err, context.DeadlineExceeded) || errors.Is(o.err, driver.ErrClosed) {
		t.Errorf("out of time: %v", o.err)
	}
	closed := call(time.Hour)
	queued(t, d, 1)
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if o := get(t, "closed", closed); !errors.Is(o.err, driver.ErrClosed) || errors.Is(o.err, context.DeadlineExceeded) {
		t.Errorf("closed: %v", o.err)
	}
	open()
	for _, c := range first {
		get(t, "first", c)
	}
}
