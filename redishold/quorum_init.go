package redishold

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/quorumhold"
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
	var own []string
	var reasons []string
	others := map[string][]string{} // nodes that are kept out, by reason
	keepOut := func(n *quorumNode, err error) {
		reason := err.Error()
		if others[reason] == nil {
			reasons = append(reasons, reason)
		}
		others[reason] = append(others[reason], n.name)
	}
	for i, n := range nodes {
		who, err := n.identify(ctx)
		if err == nil {
			err = q.admit(n.name, who)
		}
		var m mark
		if err == nil {
			runs[i] = who.run
			if m, err = n.readMark(ctx); errors.Is(err, quorumhold.ErrMismatch) {
				keepOut(n, err)
				continue
			}
		}
		switch {
		case err != nil:
			if errors.Is(err, driver.ErrNotApplied) { // it says so itself
				return fmt.Errorf("redishold: quorum init: node %s: %w", n.name, err)
			}
			return fmt.Errorf("redishold: quorum init: node %s: %w; nothing was changed", n.name, err)
		case m.missing:
		case m.print != q.print:
			keepOut(n, n.foreignMark(m.members))
		case m.name != plain(n.name):
			keepOut(n, n.twinMark(m.name))
		default:
			own = append(own, n.name)
		}
	}
	var wrong []string
	if len(own) > 0 {
		bear := "bear"
		if len(own) == 1 {
			bear = "bears"
		}
		wrong = append(wrong, fmt.Sprintf("%s %s the mark of this quorum, which is in use: a lock was asked for, or it was declared new before. Nodes that "+
			"are new or have restarted join by themselves after MaxTTL (%s)", strings.Join(own, ", "), bear, q.opts.MaxTTL))
	}
	for _, r := range reasons {
		wrong = append(wrong, fmt.Sprintf("%s: %s", strings.Join(others[r], ", "), r))
	}
	if len(wrong) > 0 {
		return fmt.Errorf("redishold: quorum init: %s; nothing was changed", strings.Join(wrong, "; "))
	}
	for i, n := range nodes {
		text := strings.Join([]string{"1", q.print, runs[i], "0", "@", plain(n.name), q.members}, "\n")
		done, err := bounded(ctx, n.Driver, func(ctx context.Context) (int, error) {
			return n.client.Eval(ctx, luaInit, []string{n.mark()}, text, keepMark.Milliseconds()).Int()
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
