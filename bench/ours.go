package main

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/redishold"
)

const holdlockName = "holdlock"

// recommended is the Redis client as docs/stores/redis.md recommends it.
func recommended(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true, MaxRetries: -1})
}

func ours() []contestant {
	return []contestant{{
		name: holdlockName, waits: true, sends: []string{"evalsha", "eval", "subscribe", "unsubscribe"},
		open: func(addr string, o setup) (locker, error) { return openHoldlock(recommended(addr), o) },
	}, {
		name: holdlockName + ", cancellable", note: "with a context that somebody might cancel", sends: []string{"evalsha", "eval"},
		open: func(addr string, o setup) (locker, error) {
			l, err := openHoldlock(recommended(addr), o)
			if err != nil {
				return nil, err
			}
			ctx, cancel := context.WithCancel(context.Background())
			return funcs{
				take: func(_ context.Context, key string) (func() error, error) { return l.lock(ctx, key) },
				end:  func() { l.close(); cancel() },
			}, nil
		},
	}}
}

func openHoldlock(rdb *redis.Client, o setup) (locker, error) {
	c, err := redishold.Open(rdb, nil)
	if err != nil {
		return nil, err
	}
	lock, err := c.NewLock("bench", &holdlock.LockOptions{TTL: o.ttl})
	if err != nil {
		return nil, err
	}
	return funcs{
		take: func(ctx context.Context, key string) (func() error, error) {
			lease, err := lock.For(key).Acquire(ctx)
			if err != nil {
				return nil, err
			}
			return func() error { return lease.Release(context.Background()) }, nil
		},
		end: func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = c.Shutdown(ctx)
			_ = rdb.Close()
		},
	}, nil
}
