package redishold

import (
	"context"
	"fmt"

	"github.com/holdlock/holdlock/driver"
)

// batchSize is how many terms one script renews: few enough that nobody waits for it for more than a moment.
const batchSize = 128

// RenewBatch implements driver.BatchRenewer. One script renews many terms; on a Cluster, where a script is for one node
// only, each has its own, and they are sent together to each node.
func (d *Driver) RenewBatch(ctx context.Context, reqs []*driver.RenewRequest) []driver.RenewResult {
	results := make([]driver.RenewResult, len(reqs))
	var todo []int
	for i, req := range reqs {
		if results[i].Err = d.usable(ctx, "renew", req.Ref.Key); results[i].Err == nil {
			todo = append(todo, i)
		}
	}
	if d.cluster != nil {
		d.renewEach(ctx, reqs, todo, results)
		return results
	}
	for len(todo) > 0 {
		n := min(len(todo), batchSize)
		d.renewTogether(ctx, reqs, todo[:n], results)
		todo = todo[n:]
	}
	return results
}

// renewEach renews terms of a Cluster. With Replicas each goes by itself, because it has to be confirmed by itself.
func (d *Driver) renewEach(ctx context.Context, reqs []*driver.RenewRequest, which []int, results []driver.RenewResult) {
	if d.acks > 0 {
		keys := make([]string, len(which))
		for n, i := range which {
			keys[n] = d.slotKey(reqs[i].Ref.Key)
		}
		err := d.byNode(ctx, keys, func(_ node, some []int) {
			together(oneByOne, len(some), func(n int) { d.renewTogether(ctx, reqs, which[some[n]:some[n]+1], results) })
		})
		if err != nil {
			for _, i := range which {
				results[i].Err = d.failure("renew", reqs[i].Ref.Key, err)
			}
		}
		return
	}
	calls := make([]*slotCall, len(which))
	for n, i := range which {
		calls[n] = &slotCall{keys: d.keys(reqs[i].Ref.Key), args: renewArgs(reqs[i])}
	}
	d.callEach(ctx, d.scripts.renew, calls)
	for n, r := range calls {
		d.allRenewed(reqs, which[n:n+1], r.reply, r.err, results)
	}
}

func (d *Driver) renewTogether(ctx context.Context, reqs []*driver.RenewRequest, which []int, results []driver.RenewResult) {
	var keys []string
	var args []any
	for _, i := range which {
		keys = append(keys, d.keys(reqs[i].Ref.Key)...)
		args = append(args, renewArgs(reqs[i])...)
	}
	reply, err := d.write(ctx, driver.Ref{}, d.scripts.renew, keys, args...)
	d.allRenewed(reqs, which, reply, err, results)
}

// allRenewed judges the reply to one call.
func (d *Driver) allRenewed(reqs []*driver.RenewRequest, which []int, reply any, err error, results []driver.RenewResult) {
	parts, ok := reply.([]any)
	if err == nil && (!ok || len(parts) != len(which)) {
		err = fmt.Errorf("the script answered %v", reply)
	}
	for n, i := range which {
		if err != nil {
			results[i].Err = d.failure("renew", reqs[i].Ref.Key, err)
			continue
		}
		results[i] = d.renewed(reqs[i].Ref.Key, parts[n])
	}
}

func renewArgs(req *driver.RenewRequest) []any {
	return []any{req.Ref.Nonce, micros(req.TTL), uint64(req.Floor)}
}

// renewed judges the reply for one term.
func (d *Driver) renewed(key string, reply any) (res driver.RenewResult) {
	word, rest, err := answer(reply)
	switch {
	case err != nil:
		res.Err = d.failure("renew", key, err)
	case word == "G" && len(rest) == 1:
		if res.Grant.Token, err = d.token(rest[0]); err != nil {
			res.Err = d.failure("renew", key, err)
		}
	case word == "p" && len(rest) == 1:
		res.Err = fmt.Errorf("redishold: renew %q: %w: it is %s", key, driver.ErrTokenPassed, rest[0])
	case word == "n":
		res.Err = d.failure("renew", key, fmt.Errorf("plain keys have no tokens, so no floor can be kept (%w)", driver.ErrNotApplied))
	case word == "g" || word == "b":
		res.Err = goneError("renew", key, word, rest)
	default:
		res.Err = d.failure("renew", key, fmt.Errorf("the script answered %v", reply))
	}
	return res
}
