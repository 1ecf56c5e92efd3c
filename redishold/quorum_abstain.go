package redishold

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Abstains implements quorumhold.Abstainer. It judges the mark as gate.lua does, and leaves it alone.
func (n *quorumNode) Abstains(ctx context.Context) (time.Duration, error) {
	const verb = "look at the mark of"
	if err := n.usable(ctx, verb, n.name); err != nil {
		return 0, err
	}
	type facts struct {
		mark, server string
		now          time.Time
	}
	f, err := bounded(ctx, n.Driver, func(ctx context.Context) (facts, error) {
		var mark, server *redis.StringCmd
		var now *redis.TimeCmd
		_, err := n.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			mark, server, now = p.Get(ctx, n.mark()), p.Info(ctx, "server"), p.Time(ctx)
			return nil
		})
		if errors.Is(err, redis.Nil) {
			err = errors.Join(server.Err(), now.Err())
		}
		return facts{mark.Val(), server.Val(), now.Val()}, err
	})
	if err != nil {
		return 0, failure(verb, n.name, err)
	}
	q, info := n.quorum, fields(f.server)
	lines := strings.Split(f.mark, "\n")
	if f.mark == "" {
		return q.span, nil
	}
	if len(lines) != 7 || lines[1] != q.print {
		return 0, nil // it takes no part, which whoever asks it for a grant is told
	}
	since, _ := strconv.ParseInt(lines[3], 10, 64)
	began := time.UnixMicro(since)
	switch up, _ := strconv.ParseInt(info["uptime_in_seconds"], 10, 64); {
	case lines[2] != info["run_id"] && !q.opts.Durable:
		began = f.now.Add(-time.Duration(max(0, up-1)) * time.Second)
	case began.After(f.now):
		began = f.now
	}
	return max(0, began.Add(q.span).Sub(f.now)), nil
}
