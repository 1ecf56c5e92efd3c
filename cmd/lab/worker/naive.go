package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/internal/bootclock"
)

// naive is the Redis lock that is three lines and easy to get wrong. It is here to be compared with; do not use it. What is
// wrong with it: release deletes whoever's the key is, nothing is renewed, and nobody is told when it is over.
type naive struct {
	post   *poster
	client *redis.Client
}

func naiveKey(job string) string { return "naive:" + job }

// naivePoll is how often one that waits asks again.
const naivePoll = 20 * time.Millisecond

func (n *naive) acquire(ctx context.Context, s Step) (hold, error) {
	tick := time.NewTicker(naivePoll)
	defer tick.Stop()
	for {
		sent := bootclock.Now()
		got, err := n.client.SetNX(ctx, naiveKey(s.Job), "locked", s.TTL).Result()
		switch {
		case err != nil:
			return nil, err
		case got:
			return &naiveHold{poster: n.post, client: n.client, key: naiveKey(s.Job), ends: sent + s.TTL}, nil
		case !s.Wait:
			return nil, fmt.Errorf("key %s is there: %w", naiveKey(s.Job), holdlock.ErrHeld)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
}

func (n *naive) close() { _ = n.client.Close() }

type naiveHold struct {
	*poster
	client *redis.Client
	key    string
	ends   time.Duration
}

func (h *naiveHold) token() uint64        { return 0 }
func (h *naiveHold) until() time.Duration { return h.ends }
func (h *naiveHold) check() error         { return errUnchecked }

func (h *naiveHold) release(ctx context.Context) error { return h.client.Del(ctx, h.key).Err() }
