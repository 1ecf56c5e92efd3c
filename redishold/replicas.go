package redishold

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
)

// write calls a script that grants or renews. With Replicas it counts only when so many replicas have it: WAIT is sent on
// the same connection, because it asks about the writes of its own connection alone.
func (d *Driver) write(ctx context.Context, ref driver.Ref, s *script, keys []string, args ...any) (any, error) {
	if d.acks == 0 {
		return d.call(ctx, s, keys, args...)
	}
	reply, confirmed, err := d.writeAndWait(ctx, s, keys, args)
	if err != nil || confirmed >= d.acks || !wrote(reply) {
		return reply, err
	}
	err = fmt.Errorf("%d of %d replicas confirmed in time", confirmed, d.acks)
	if ref.Nonce == "" {
		return nil, err // a renewal: it may last longer at the primary than its holder trusts it, which harms nobody
	}
	undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoBudget)
	defer cancel()
	if d.Release(undo, &driver.ReleaseRequest{Ref: ref, Undo: true}) == nil {
		return nil, fmt.Errorf("%w; the grant was taken back (%w)", err, driver.ErrNotApplied)
	}
	return nil, fmt.Errorf("%w; the grant may stand", err)
}

const (
	undoBudget = 500 * time.Millisecond
	waitBudget = 3 * time.Second // at most; see waitFor. A replica confirms by itself once a second, if it misses being asked
)

// wrote says whether a script has changed anything that replicas could confirm.
func wrote(reply any) bool {
	parts, _ := reply.([]any)
	for _, p := range parts {
		if sub, ok := p.([]any); ok && len(sub) > 0 {
			p = sub[0]
		}
		if p == "G" || p == "K" {
			return true
		}
	}
	return false
}

// waitFor leaves half of the time that is left for what comes after the waiting.
func waitFor(ctx context.Context) time.Duration {
	wait := waitBudget
	if end, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(end)/2)
	}
	return max(wait, time.Millisecond)
}

func (d *Driver) writeAndWait(ctx context.Context, s *script, keys []string, args []any) (reply any, confirmed int, err error) {
	type pair struct {
		reply     any
		confirmed int
	}
	var node redis.Cmdable = d.client
	hung := &d.hung
	if d.cluster != nil {
		n, err := d.nodeOf(ctx, keys[0])
		if err != nil {
			return nil, 0, err
		}
		node, hung = n.client, n.hung
	}
	p, err := boundedBy(ctx, d, hung, func(ctx context.Context) (pair, error) {
		pipe := func(call *redis.Cmd) (pair, error) {
			var wait *redis.Cmd
			_, _ = node.Pipelined(ctx, func(p redis.Pipeliner) error {
				_ = p.Process(ctx, single{call})
				wait = redis.NewCmd(ctx, "wait", d.acks, waitFor(ctx).Milliseconds())
				return p.Process(ctx, single{wait})
			})
			if err := call.Err(); err != nil {
				return pair{}, err
			}
			n, err := wait.Int()
			return pair{call.Val(), n}, err
		}
		p := &parcel{members: []*member{{script: s, keys: keys, args: args}}}
		got, err := pipe(p.call(ctx, "evalsha"))
		if redis.HasErrorPrefix(err, "NOSCRIPT") {
			got, err = pipe(p.call(ctx, "eval"))
		}
		if d.cluster != nil && redis.HasErrorPrefix(err, "MOVED") {
			d.cluster.ReloadState(ctx) // for the next try; this one has certainly changed nothing
		}
		return got, err
	})
	d.lookAgain(ctx, err)
	return p.reply, p.confirmed, err
}
