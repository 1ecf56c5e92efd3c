package main

import (
	"context"
	"fmt"
	"sync"

	"github.com/redis/go-redis/v9"
)

// The floors of a hand-over that is decided by a script and told by pub/sub. Two of them are scripts that do nothing else: no token,
// no expiry, no holder, no nonce, no check of whose it is. The third are holdlock's own, without the library.
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

// publishedOwn is the calls that holdlock makes, recorded from it.
func publishedOwn() contestant {
	return contestant{
		name: "holdlock's scripts bare, by message", waits: true, sends: []string{"evalsha", "eval", "psubscribe"},
		open: openPublishedOwn,
	}
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
	told, err := listen(rdb.Subscribe(ctx, channel))
	if err != nil {
		return nil, err
	}
	keys := func(key string) []string { return []string{key, key + ":line"} }
	return told.locker(rdb, parties{
		id: func() string { return channel + newToken() },
		take: func(ctx context.Context, key, id string) (bool, error) {
			got, err := rdb.EvalSha(ctx, take, keys(key), id).Int()
			return got == 1, err
		},
		give: func(ctx context.Context, key, _ string) error {
			if !echo {
				return rdb.EvalSha(ctx, give, keys(key)).Err()
			}
			p := rdb.Pipeline()
			p.Echo(ctx, "first")
			p.EvalSha(ctx, give, keys(key))
			_, err := p.Exec(ctx)
			return err
		},
	}), nil
}

func openPublishedOwn(addr string, o setup) (locker, error) {
	calls, err := record(addr, o)
	if err != nil {
		return nil, err
	}
	process := calls[0].process()
	rdb := recommended(addr)
	told, err := listen(rdb.PSubscribe(context.Background(), "*"+process))
	if err != nil {
		return nil, err
	}
	send := func(ctx context.Context, args []string) (any, error) {
		all := make([]any, len(args))
		for i, a := range args {
			all[i] = a
		}
		return rdb.Do(ctx, all...).Result()
	}
	return told.locker(rdb, parties{
		id: newToken,
		take: func(ctx context.Context, key, id string) (bool, error) {
			reply, err := send(ctx, calls[0].fill(key, id))
			_, granted := reply.(string) // who has to wait is answered with a list
			return granted, err
		},
		give: func(ctx context.Context, key, id string) error {
			reply, err := send(ctx, calls[1].fill(key, id))
			if _, ok := reply.(string); err == nil && !ok {
				err = fmt.Errorf("not given back: %v", reply)
			}
			return err
		},
	}), nil
}

// process is the one that a recorded call takes its place in line for: 16 digits after the nonce, the TTL and the floor.
func (t template) process() string {
	for _, p := range t {
		if p.nonce {
			return p.after[32:48]
		}
	}
	return ""
}

// parties are the two calls, and what the message begins with that says to one who waits that it is his turn.
type parties struct {
	id   func() string
	take func(ctx context.Context, key, id string) (granted bool, err error)
	give func(ctx context.Context, key, id string) error
}

// listener hears messages and wakes those they are for.
type listener struct {
	sub     *redis.PubSub
	mu      sync.Mutex
	waiting map[string]chan struct{}
}

func listen(sub *redis.PubSub) (*listener, error) {
	ctx := context.Background()
	if _, err := sub.Receive(ctx); err != nil {
		return nil, err
	}
	l := &listener{sub: sub, waiting: map[string]chan struct{}{}}
	go func() { // it reads by itself, as holdlock does, which saves a change of goroutines
		for {
			m, err := sub.ReceiveMessage(ctx)
			if err != nil {
				return
			}
			l.tell(m.Payload)
		}
	}()
	return l, nil
}

func (l *listener) tell(message string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range []int{len(message), 32} { // an id, or a nonce with more behind it
		if w := l.waiting[message[:n]]; w != nil {
			close(w)
			delete(l.waiting, message[:n])
			return
		}
	}
}

func (l *listener) locker(rdb *redis.Client, p parties) locker {
	return funcs{
		take: func(ctx context.Context, key string) (func() error, error) {
			id, told := p.id(), make(chan struct{})
			l.mu.Lock()
			l.waiting[id] = told
			l.mu.Unlock()
			granted, err := p.take(ctx, key, id)
			if err == nil && !granted {
				select {
				case <-told:
				case <-ctx.Done():
					err = ctx.Err()
				}
			}
			return func() error { return p.give(context.Background(), key, id) }, err
		},
		end: func() { _, _ = l.sub.Close(), rdb.Close() },
	}
}
