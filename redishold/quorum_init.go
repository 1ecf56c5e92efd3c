package redishold

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed lua/init.lua
var luaInit string

// InitQuorum declares a quorum new, so that its nodes need not abstain for MaxTTL before they grant for the first time. It
// holds for the present run of each server only: one that restarts abstains as always. All nodes have to answer, and none
// may bear the mark of a quorum, because then locks may be held there.
//
// It is for new deployments. A quorum works without it, MaxTTL after the first call. Do not use it after all nodes have lost
// their data at once while jobs run: they then hold leases of which nobody knows.
func InitQuorum(ctx context.Context, clients []redis.UniversalClient, opts *QuorumOptions) error {
	q, nodes, err := quorumNodes(clients, opts)
	if err != nil {
		return err
	}
	defer func() {
		for _, n := range nodes {
			_ = n.Close()
		}
	}()
	runs := make([]string, len(nodes))
	var marked []string
	var members string
	for i, n := range nodes {
		who, err := n.identify(ctx)
		if err == nil {
			err = q.admit(n.name, who)
		}
		if err != nil {
			return fmt.Errorf("redishold: quorum init: node %s: %w; nothing was changed", n.name, err)
		}
		runs[i] = who.run
		m, err := n.client.Get(ctx, n.mark()).Result()
		switch {
		case errors.Is(err, redis.Nil):
		case err != nil:
			return fmt.Errorf("redishold: quorum init: node %s: %w; nothing was changed", n.name, err)
		default:
			lines := strings.Split(m, "\n")
			marked, members = append(marked, n.name), lines[len(lines)-1]
		}
	}
	if len(marked) > 0 {
		return fmt.Errorf("redishold: quorum init: %s bear the mark of a quorum of %s, which is in use; nodes that are new or "+
			"have restarted join by themselves after MaxTTL (%s); nothing was changed", strings.Join(marked, ", "), members, q.opts.MaxTTL)
	}
	for i, n := range nodes {
		text := strings.Join([]string{"1", q.print, runs[i], "0", "@", plain(n.name), q.members}, "\n")
		done, err := bounded(ctx, n.Driver, func(ctx context.Context) (int, error) {
			return n.client.Eval(ctx, luaInit, []string{n.mark()}, text).Int()
		})
		switch {
		case err != nil:
			return fmt.Errorf("redishold: quorum init: node %s: %w; nodes that are not declared new join by themselves after %s",
				n.name, err, q.opts.MaxTTL.Round(time.Millisecond))
		case done == 0:
			return fmt.Errorf("redishold: quorum init: node %s: somebody else has just begun to use it", n.name)
		}
	}
	return nil
}
