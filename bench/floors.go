package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
)

const (
	setName            = "bare SET NX + compare-delete, go-redis"
	setRueidisName     = "bare SET NX + compare-delete, rueidis"
	scriptsName        = "holdlock's scripts bare, go-redis"
	scriptsRueidisName = "holdlock's scripts bare, rueidis"
)

const compareDelete = `if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`

// floors are the least that the same commands can cost on the same clients.
func floors() []contestant {
	return []contestant{
		{name: setName, bare: true, sends: []string{"set", "evalsha", "eval"}, open: func(addr string, o setup) (locker, error) {
			rdb := recommended(addr)
			sha, err := rdb.ScriptLoad(context.Background(), compareDelete).Result()
			return bareSet(
				func(ctx context.Context, key, token string) error {
					return rdb.Do(ctx, "set", key, token, "nx", "px", o.ttl.Milliseconds()).Err()
				},
				func(ctx context.Context, key, token string) error {
					return rdb.EvalSha(ctx, sha, []string{key}, token).Err()
				},
				func() { _ = rdb.Close() },
			), err
		}},
		{name: setRueidisName, bare: true, sends: []string{"set", "evalsha", "eval"}, open: func(addr string, o setup) (locker, error) {
			c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
			if err != nil {
				return nil, err
			}
			sha, err := c.Do(context.Background(), c.B().ScriptLoad().Script(compareDelete).Build()).ToString()
			return bareSet(
				func(ctx context.Context, key, token string) error {
					return c.Do(ctx, c.B().Set().Key(key).Value(token).Nx().PxMilliseconds(o.ttl.Milliseconds()).Build()).Error()
				},
				func(ctx context.Context, key, token string) error {
					return c.Do(ctx, c.B().Evalsha().Sha1(sha).Numkeys(1).Key(key).Arg(token).Build()).Error()
				},
				c.Close,
			), err
		}},
		{name: scriptsName, bare: true, sends: []string{"evalsha", "eval"}, open: func(addr string, o setup) (locker, error) {
			calls, err := record(addr, o)
			if err != nil {
				return nil, err
			}
			rdb := recommended(addr)
			return bareScripts(calls, func(ctx context.Context, args []string) error {
				all := make([]any, len(args))
				for i, a := range args {
					all[i] = a
				}
				return rdb.Process(ctx, redis.NewCmd(ctx, all...))
			}, func() { _ = rdb.Close() }), nil
		}},
		{name: scriptsRueidisName, bare: true, sends: []string{"evalsha", "eval"}, open: func(addr string, o setup) (locker, error) {
			calls, err := record(addr, o)
			if err != nil {
				return nil, err
			}
			c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true})
			if err != nil {
				return nil, err
			}
			return bareScripts(calls, func(ctx context.Context, args []string) error {
				return c.Do(ctx, c.B().Arbitrary(args...).Build()).Error()
			}, c.Close), nil
		}},
	}
}

func bareSet(take, give func(ctx context.Context, key, token string) error, end func()) locker {
	return funcs{
		take: func(ctx context.Context, key string) (func() error, error) {
			token := newToken()
			if err := take(ctx, key, token); err != nil {
				return nil, err
			}
			return func() error { return give(ctx, key, token) }, nil
		},
		end: end,
	}
}

func bareScripts(calls [2]template, send func(ctx context.Context, args []string) error, end func()) locker {
	return funcs{
		take: func(ctx context.Context, key string) (func() error, error) {
			nonce := newToken()
			if err := send(ctx, calls[0].fill(key, nonce)); err != nil {
				return nil, err
			}
			return func() error { return send(ctx, calls[1].fill(key, nonce)) }, nil
		},
		end: end,
	}
}

// template is a call that holdlock made, with its key and nonce left open.
type template []part

type part struct {
	before, after string // of the key or nonce, if there is one
	key, nonce    bool
}

func (t template) fill(key, nonce string) []string {
	args := make([]string, len(t))
	for i, p := range t {
		switch {
		case p.key:
			args[i] = p.before + key + p.after
		case p.nonce:
			args[i] = p.before + nonce + p.after
		default:
			args[i] = p.before
		}
	}
	return args
}

// record lets holdlock take and release a lock once and returns the two calls, so that the bare scripts are always those
// that the library has, with all that it passes.
func record(addr string, o setup) (calls [2]template, err error) {
	key := "recorded-by-" + newToken()[:8] // nobody else, or one would have to wait
	rdb := recommended(addr)
	l, err := openHoldlock(rdb, o)
	if err != nil {
		return calls, err
	}
	defer l.close()
	r := &recorder{}
	rdb.AddHook(r)
	pair := func() error {
		unlock, err := l.lock(context.Background(), key)
		if err != nil {
			return err
		}
		return unlock()
	}
	if err := pair(); err != nil { // the first time the server has to be told the scripts
		return calls, err
	}
	r.seen = nil
	if err := pair(); err != nil {
		return calls, err
	}
	if len(r.seen) != 2 {
		return calls, fmt.Errorf("a pair took %d calls, want 2", len(r.seen))
	}
	nonce := sharedNonce(r.seen[0], r.seen[1])
	if nonce == "" {
		return calls, errors.New("the calls have no nonce in common")
	}
	for i, args := range r.seen {
		calls[i] = templateOf(args, key, nonce)
	}
	return calls, nil
}

// templateOf leaves key and nonce of a call open.
func templateOf(args []string, key, nonce string) (t template) {
	for _, a := range args {
		before, after, isKey := strings.Cut(a, key)
		isNonce := false
		if !isKey {
			before, after, isNonce = strings.Cut(a, nonce)
		}
		t = append(t, part{before, after, isKey, isNonce})
	}
	return t
}

// sharedNonce finds the proof of ownership: 32 hexadecimal digits that stand in what both calls pass to their script.
func sharedNonce(a, b []string) string {
	const size = 32
	passed := strings.Join(b[2:], "\n")
	for _, x := range a[2:] {
		for i := range len(x) - size + 1 {
			nonce := x[i : i+size]
			if strings.Trim(nonce, "0123456789abcdef") == "" && strings.Contains(passed, nonce) {
				return nonce
			}
		}
	}
	return ""
}

// recorder is a hook of go-redis that remembers calls of scripts.
type recorder struct{ seen [][]string }

// DialHook is part of redis.Hook.
func (r *recorder) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook is part of redis.Hook.
func (r *recorder) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ProcessHook is part of redis.Hook.
func (r *recorder) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			args := make([]string, len(cmd.Args()))
			for i, a := range cmd.Args() {
				args[i] = fmt.Sprint(a)
			}
			r.seen = append(r.seen, args)
		}
		return next(ctx, cmd)
	}
}

// waitingFloors are the least that waiting in line can cost.
func waitingFloors() []contestant {
	return []contestant{handOver(), published(), publishedFirst(), publishedOwn()}
}

// handOver is the floor of waiting: the lock is an element of a list. It does not survive a crash of its holder.
func handOver() contestant {
	return contestant{
		name: "bare LPUSH to BLPOP", waits: true, sends: []string{"blpop", "lpush"},
		key: func(ctx context.Context, admin *redis.Client) error { return admin.LPush(ctx, contendedKey, "x").Err() },
		open: func(addr string, o setup) (locker, error) {
			rdb := redis.NewClient(&redis.Options{Addr: addr, PoolSize: o.waiters + 1})
			return funcs{
				take: func(ctx context.Context, key string) (func() error, error) {
					err := rdb.BLPop(ctx, 0, key).Err()
					return func() error { return rdb.LPush(context.Background(), key, "x").Err() }, err
				},
				end: func() { _ = rdb.Close() },
			}, nil
		},
	}
}
