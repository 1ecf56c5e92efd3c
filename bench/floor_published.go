package main

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"
)

// Two scripts that hand a key over by a message, and do nothing else: no token, no expiry, no holder, no nonce, no check of
// whose it is. This is what a hand-over costs that is decided by a script and told by pub/sub.
const (
	publishedTake = `if redis.call("DEL", KEYS[1]) == 1 then return 1 end redis.call("RPUSH", KEYS[2], ARGV[1]) return 0`
	publishedGive = `local w = redis.call("LPOP", KEYS[2])
if w then redis.call("PUBLISH", string.sub(w, 1, 32), w) else redis.call("SET", KEYS[1], "free") end return 1`
)

func published() contestant {
	return contestant{
		name: "bare scripts: RPUSH, LPOP and PUBLISH", waits: true, sends: []string{"evalsha", "eval", "subscribe"},
		key: func(ctx context.Context, admin *redis.Client) error {
			return admin.Set(ctx, contendedKey, "free", 0).Err()
		},
		open: func(addr string, _ setup) (locker, error) { return openPublished(addr, false) },
	}
}

// publishedFirst is the same with one more command before the one that hands over. Redis writes to the client last that was the
// first to get an answer in a turn of its loop; so this one wakes the waiter first, as LPUSH does, and not whoever releases. On a
// machine whose processors are all busy that is most of the difference. It is three requests a turn, so holdlock does not do it.
func publishedFirst() contestant {
	c := published()
	c.name += ", ECHO before"
	c.sends = append(c.sends, "echo")
	c.open = func(addr string, _ setup) (locker, error) { return openPublished(addr, true) }
	return c
}

func openPublished(addr string, echo bool) (locker, error) {
	ctx := context.Background()
	rdb := recommended(addr)
	take, err := rdb.ScriptLoad(ctx, publishedTake).Result()
	if err != nil {
		return nil, err
	}
	give, err := rdb.ScriptLoad(ctx, publishedGive).Result()
	if err != nil {
		return nil, err
	}
	channel := newToken()
	sub := rdb.Subscribe(ctx, channel)
	if _, err := sub.Receive(ctx); err != nil {
		return nil, err
	}
	var mu sync.Mutex
	waiting := map[string]chan struct{}{}
	go func() { // it reads by itself, as holdlock does, which saves a change of goroutines
		for {
			m, err := sub.ReceiveMessage(ctx)
			if err != nil {
				return
			}
			mu.Lock()
			if w := waiting[m.Payload]; w != nil {
				close(w)
				delete(waiting, m.Payload)
			}
			mu.Unlock()
		}
	}()
	return funcs{
		take: func(ctx context.Context, key string) (func() error, error) {
			id, told := channel+newToken(), make(chan struct{})
			mu.Lock()
			waiting[id] = told
			mu.Unlock()
			keys := []string{key, key + ":line"}
			got, err := rdb.EvalSha(ctx, take, keys, id).Int()
			if err == nil && got == 0 {
				select {
				case <-told:
				case <-ctx.Done():
					err = ctx.Err()
				}
			}
			return func() error {
				if !echo {
					return rdb.EvalSha(context.Background(), give, keys).Err()
				}
				p := rdb.Pipeline()
				p.Echo(context.Background(), "first")
				p.EvalSha(context.Background(), give, keys)
				_, err := p.Exec(context.Background())
				return err
			}, err
		},
		end: func() { _, _ = sub.Close(), rdb.Close() },
	}, nil
}
