//go:build unix

package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// The floor: the very calls that holdlock makes for one caller, recorded from it and sent again to all servers at once with other
// keys and nonces, by the same client and without a library. What they cost beside redsync's is what their servers do more for each
// grant: see that they have not restarted and belong to this quorum, and give it a token.

// recorder keeps the arguments of the last grant and release of a server.
type recorder struct {
	mu              sync.Mutex
	acquire, giving []any
}

// DialHook is part of redis.Hook.
func (r *recorder) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessPipelineHook is part of redis.Hook.
func (r *recorder) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// ProcessHook is part of redis.Hook.
func (r *recorder) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		args := cmd.Args()
		if packed, ok := args[len(args)-1].(string); err == nil && ok && args[0] == "evalsha" && strings.Contains(fmt.Sprint(args...), recorded) {
			r.mu.Lock()
			defer r.mu.Unlock()
			switch packed[0] {
			case 'A', 'W':
				r.acquire = args
			case 'R':
				r.giving = args
			}
		}
		return err
	}
}

const recorded = "recorded"

func openBare(servers []server) (pair, error) {
	var clients []redis.UniversalClient
	var recorders []*recorder
	for _, s := range servers {
		c, r := client(s), &recorder{}
		c.AddHook(r)
		clients, recorders = append(clients, c), append(recorders, r)
	}
	c, lock, err := open(clients)
	if err != nil {
		return nil, err
	}
	for give := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) { // until each server has been called alone
		lease, err := lock.For(recorded).TryAcquire(context.Background())
		if err == nil {
			err = lease.Release(context.Background())
		}
		missing := 0
		for _, r := range recorders {
			r.mu.Lock()
			if r.acquire == nil || r.giving == nil {
				missing++
			}
			r.mu.Unlock()
		}
		if err == nil && missing == 0 {
			break
		}
		if time.Now().After(give) {
			return nil, fmt.Errorf("%d servers were not recorded: %w", missing, err)
		}
	}
	if err := c.Shutdown(context.Background()); err != nil {
		return nil, err
	}
	plain := make([]*redis.Client, len(servers))
	for i, s := range servers {
		plain[i] = client(s)
	}
	// With the recorded arguments, but another key, and another text from its nonce on.
	ask := func(ctx context.Context, args func(*recorder) []any, key, text string) error {
		answers := make(chan error, len(plain))
		for i, p := range plain {
			go func() {
				own := append([]any(nil), args(recorders[i])...)
				for k, a := range own {
					if s, ok := a.(string); ok && k < len(own)-1 {
						own[k] = strings.Replace(s, recorded, key, 1)
					}
				}
				packed := own[len(own)-1].(string)
				own[len(own)-1] = packed[:1] + text + packed[1+len(text):]
				answers <- p.Do(ctx, own...).Err()
			}()
		}
		good, need := 0, len(plain)/2+1
		var failed error
		for range plain {
			err := <-answers
			if err == nil {
				good++
			}
			if failed = errors.Join(failed, err); good == need {
				return nil
			}
		}
		return failed
	}
	const lead = 500 * time.Millisecond // of the token that all are asked for, as holdlock does
	return func(ctx context.Context, key string) error {
		var b [16]byte
		_, _ = rand.Read(b[:])
		nonce := hex.EncodeToString(b[:])
		granted := fmt.Sprintf("%s%016d%016d", nonce, (10*time.Second + 102*time.Millisecond).Microseconds(), time.Now().Add(lead).UnixMicro())
		if err := ask(ctx, func(r *recorder) []any { return r.acquire }, key, granted); err != nil {
			return err
		}
		return ask(ctx, func(r *recorder) []any { return r.giving }, key, nonce)
	}, nil
}
