package main

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	redsyncrueidis "github.com/go-redsync/redsync/v4/redis/rueidis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidiscompat"
	"github.com/redis/rueidis/rueidislock"
)

const (
	redsyncName        = "redsync, go-redis"
	redsyncRueidisName = "redsync, rueidis"
	redislockName      = "redislock"
	rueidislockName    = "rueidislock"
	rueidislock1Name   = "rueidislock, one key"
)

func peers() []contestant {
	plain := []string{"set", "evalsha", "eval"}
	scripts := []string{"evalsha", "eval"}
	return []contestant{
		{
			name: redsyncName, waits: true, sends: plain,
			open: func(addr string, o setup) (locker, error) {
				rdb := redis.NewClient(&redis.Options{Addr: addr})
				return onRedsync(goredis.NewPool(rdb), o, func() { _ = rdb.Close() }), nil
			},
		},
		{
			name: redsyncRueidisName, waits: true, sends: plain,
			open: func(addr string, o setup) (locker, error) {
				c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}})
				if err != nil {
					return nil, err
				}
				return onRedsync(redsyncrueidis.NewPool(rueidiscompat.NewAdapter(c)), o, c.Close), nil
			},
		},
		{
			name: redislockName, waits: true, sends: scripts,
			open: func(addr string, o setup) (locker, error) {
				rdb := redis.NewClient(&redis.Options{Addr: addr})
				return onRedislock(rdb, o, func() { _ = rdb.Close() }), nil
			},
		},
		{
			name: rueidislockName, waits: true, sends: scripts,
			open: func(addr string, o setup) (locker, error) {
				return onRueidislock(rueidislock.LockerOption{ClientOption: rueidis.ClientOption{InitAddress: []string{addr}}}, o)
			},
		},
		{
			name: rueidislock1Name, note: "KeyMajority 1, NoLoopTracking", waits: true, sends: scripts,
			open: func(addr string, o setup) (locker, error) {
				return onRueidislock(rueidislock.LockerOption{
					ClientOption: rueidis.ClientOption{InitAddress: []string{addr}}, KeyMajority: 1, NoLoopTracking: true,
				}, o)
			},
		},
		{
			name: redsyncName + ", piped", note: "handed go-redis' AutoPipeline", waits: true, sends: plain,
			open: func(addr string, o setup) (locker, error) {
				p, end, err := openPiped(addr)
				if err != nil {
					return nil, err
				}
				return onRedsync(goredis.NewPool(p), o, end), nil
			},
		},
		{
			name: redislockName + ", piped", note: "handed go-redis' AutoPipeline", waits: true, sends: scripts,
			open: func(addr string, o setup) (locker, error) {
				p, end, err := openPiped(addr)
				if err != nil {
					return nil, err
				}
				return onRedislock(p, o, end), nil
			},
		},
	}
}

// piped sends the commands of locks through go-redis' AutoPipeline, which those libraries do not know.
type piped struct {
	redis.UniversalClient
	pipe *redis.AutoPipeliner
}

func openPiped(addr string) (*piped, func(), error) {
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	pipe, err := rdb.AutoPipeline()
	if err != nil {
		return nil, nil, err
	}
	return &piped{rdb, pipe}, func() { _, _ = pipe.Close(), rdb.Close() }, nil
}

// SetNX is part of redis.Cmdable.
func (p *piped) SetNX(ctx context.Context, key string, value any, ttl time.Duration) *redis.BoolCmd {
	return p.pipe.SetNX(ctx, key, value, ttl)
}

// EvalSha is part of redis.Scripter.
func (p *piped) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	return p.pipe.EvalSha(ctx, sha, keys, args...)
}

// Eval is part of redis.Scripter.
func (p *piped) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	return p.pipe.Eval(ctx, script, keys, args...)
}

// onRedsync waits as long as it must, where its own default are 32 tries.
func onRedsync(pool redsyncredis.Pool, o setup, end func()) locker {
	rs := redsync.New(pool)
	return funcs{
		take: func(ctx context.Context, key string) (func() error, error) {
			m := rs.NewMutex(key, redsync.WithExpiry(o.ttl), redsync.WithTries(1<<30))
			if err := m.LockContext(ctx); err != nil {
				return nil, err
			}
			stop := func() {}
			if o.renew {
				stop = every(o.ttl/3, func() { _, _ = m.Extend() })
			}
			return func() error { stop(); _, err := m.Unlock(); return err }, nil
		},
		end: end,
	}
}

// onRedislock waits as its README shows.
func onRedislock(rdb redislock.RedisClient, o setup, end func()) locker {
	c := redislock.New(rdb)
	opts := &redislock.Options{RetryStrategy: redislock.LinearBackoff(100 * time.Millisecond)}
	return funcs{
		take: func(ctx context.Context, key string) (func() error, error) {
			l, err := c.Obtain(ctx, key, o.ttl, opts)
			if err != nil {
				return nil, err
			}
			stop := func() {}
			if o.renew {
				stop = every(o.ttl/3, func() { _ = l.Refresh(context.Background(), o.ttl, nil) })
			}
			return func() error { stop(); return l.Release(context.Background()) }, nil
		},
		end: end,
	}
}

func onRueidislock(opts rueidislock.LockerOption, o setup) (locker, error) {
	opts.KeyValidity, opts.ExtendInterval = o.ttl, o.ttl/3
	l, err := rueidislock.NewLocker(opts)
	if err != nil {
		return nil, err
	}
	return funcs{
		take: func(ctx context.Context, key string) (func() error, error) {
			_, cancel, err := l.WithContext(ctx, key)
			return func() error { cancel(); return nil }, err
		},
		end: l.Close,
	}, nil
}

// every is the goroutine with a ticker that users of these libraries write.
func every(d time.Duration, f func()) (stop func()) {
	done := make(chan struct{})
	go func() {
		t := time.NewTicker(d)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				f()
			case <-done:
				return
			}
		}
	}()
	return func() { close(done) }
}
