package redishold

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
)

// On a Cluster a script is for the keys of one slot, and the slots are on several nodes. Many calls are put together by the node that
// has their keys, and each node is sent its own in pipelines of its own, all nodes at the same time. So a node that hangs holds up its
// own keys and nobody else's, and a node at a distance costs a few round trips, not one for each key. What a node says is elsewhere,
// because its slot moves or has moved, is sent once more by the client library's way for single commands, which follows redirections.

const (
	nodeCalls   = 256 // in one pipeline: few enough that the first ones are answered soon
	nodeCallers = 4   // pipelines under way at once to a node, for one caller
	oneByOne    = 16  // calls under way at once where each goes by itself
)

// nodes is what a driver keeps of the nodes of a Cluster.
type nodes struct {
	known atomic.Bool // where the slots are, so that the client library tells at once

	mu   sync.Mutex
	hung map[string]*atomic.Int64 // calls without an answer, by address
}

type node struct {
	client *redis.Client
	hung   *atomic.Int64
}

// nodeOf returns the node that has a key, as far as the client library knows.
func (d *Driver) nodeOf(ctx context.Context, key string) (n node, err error) {
	ask := func(ctx context.Context) (*redis.Client, error) { return d.cluster.MasterForKey(ctx, key) }
	if d.nodes.known.Load() {
		n.client, err = ask(ctx)
	} else {
		n.client, err = bounded(ctx, d, ask) // it asks the nodes for their slots
	}
	if err != nil {
		return n, fmt.Errorf("which node of the Cluster has it is not known: %w (%w)", err, driver.ErrNotApplied)
	}
	d.nodes.known.Store(true)
	d.nodes.mu.Lock()
	defer d.nodes.mu.Unlock()
	addr := n.client.Options().Addr
	if n.hung = d.nodes.hung[addr]; n.hung == nil {
		if d.nodes.hung == nil {
			d.nodes.hung = map[string]*atomic.Int64{}
		}
		n.hung = &atomic.Int64{}
		d.nodes.hung[addr] = n.hung
	}
	return n, nil
}

// lookAgain makes the client library ask where the slots are after a call that had no answer. By itself it does so once a minute and when a node
// says that a key is elsewhere, which one that has died does not: its replica takes over within seconds, and nobody would ask it. It
// asks in the background, one time at once.
func (d *Driver) lookAgain(ctx context.Context, err error) {
	var said redis.Error
	if d.cluster != nil && err != nil && !errors.As(err, &said) && !errors.Is(err, driver.ErrClosed) {
		d.cluster.ReloadState(context.WithoutCancel(ctx))
	}
}

// byNode calls f for each node with the indices of those of the keys that it has, for all nodes at once.
func (d *Driver) byNode(ctx context.Context, keys []string, f func(n node, which []int)) error {
	has := map[node][]int{}
	for i, key := range keys {
		n, err := d.nodeOf(ctx, key)
		if err != nil {
			return err
		}
		has[n] = append(has[n], i)
	}
	var all sync.WaitGroup
	for n, which := range has {
		all.Go(func() { f(n, which) })
	}
	all.Wait()
	return nil
}

// together calls f with 0 to n − 1, so many at a time.
func together(callers, n int, f func(i int)) {
	if n == 1 {
		f(0)
		return
	}
	next := make(chan int, n)
	for i := range n {
		next <- i
	}
	close(next)
	var all sync.WaitGroup
	for range min(callers, n) {
		all.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	all.Wait()
}

// slotCall is one of many calls of a script, and what became of it. Its keys are of one slot.
type slotCall struct {
	keys  []string
	args  []any
	reply any
	err   error
}

// callEach makes many calls of a script. When it returns, each has its answer or its error.
func (d *Driver) callEach(ctx context.Context, s *script, all []*slotCall) {
	if d.cluster == nil || len(all) == 1 {
		together(oneByOne, len(all), func(i int) { all[i].reply, all[i].err = d.call(ctx, s, all[i].keys, all[i].args...) })
		return
	}
	keys := make([]string, len(all))
	for i, r := range all {
		keys[i] = r.keys[0]
	}
	err := d.byNode(ctx, keys, func(n node, which []int) {
		some := slices.Collect(slices.Chunk(which, nodeCalls))
		together(nodeCallers, len(some), func(i int) { d.callNode(ctx, n, s, all, some[i]) })
	})
	if err != nil {
		for _, r := range all {
			r.err = err
		}
	}
}

// readEach makes a call for each key, and joins what read makes of the replies.
func readEach[T any](ctx context.Context, d *Driver, s *script, keys []string,
	call func(key string) *slotCall, read func(keys []string, reply any, err error) ([]T, error),
) ([]T, error) {
	found, errs, calls := make([][]T, len(keys)), make([]error, len(keys)), make([]*slotCall, len(keys))
	for i, key := range keys {
		calls[i] = call(key)
	}
	d.callEach(ctx, s, calls)
	for i, r := range calls {
		found[i], errs[i] = read(keys[i:i+1], r.reply, r.err)
	}
	return slices.Concat(found...), firsts(errs)
}

// firsts joins errors, and leaves out those that say what another one has said: most are of a node, not of a key.
func firsts(errs []error) error {
	var some []error
	said := map[string]bool{}
	for _, err := range errs {
		if err != nil && !said[err.Error()] {
			said[err.Error()] = true
			some = append(some, err)
		}
	}
	return errors.Join(some...)
}

// callNode makes some of the calls, for keys of one node.
func (d *Driver) callNode(ctx context.Context, n node, s *script, all []*slotCall, which []int) {
	answers, err := boundedBy(ctx, d, n.hung, func(ctx context.Context) ([]*member, error) {
		members := make([]*member, len(which)) // nobody else's: this can be left behind
		for i, k := range which {
			members[i] = &member{script: s, keys: all[k].keys, args: all[k].args}
		}
		sendToNode(ctx, n.client, members)
		return members, nil
	})
	d.lookAgain(ctx, err)
	if err != nil {
		err = fmt.Errorf("node %s: %w", n.client.Options().Addr, err)
		for _, k := range which {
			all[k].err = err
		}
		return
	}
	var moved []*slotCall
	for i, k := range which {
		all[k].reply, all[k].err = answers[i].reply, answers[i].err
		d.lookAgain(ctx, all[k].err)
		if elsewhere(all[k].err) {
			moved = append(moved, all[k])
		}
	}
	together(oneByOne, len(moved), func(i int) {
		moved[i].reply, moved[i].err = d.call(ctx, s, moved[i].keys, moved[i].args...)
	})
}

// sendToNode sends calls of one script in one pipeline. If the server does not know the script it is sent its source once, which is
// enough for the calls behind it.
func sendToNode(ctx context.Context, client *redis.Client, members []*member) {
	pipe := client.Pipeline()
	parcels := make([]parcel, len(members))
	for i := range parcels {
		parcels[i].members = members[i : i+1]
		_ = pipe.Process(ctx, &kept{Cmd: parcels[i].call(ctx, "evalsha")})
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	verb := "eval"
	for i := range parcels {
		if parcels[i].unknown() {
			_ = pipe.Process(ctx, &kept{Cmd: parcels[i].call(ctx, verb)})
			verb = "evalsha"
		}
	}
	if pipe.Len() > 0 {
		_, _ = pipe.Exec(ctx)
	}
	for i := range parcels {
		parcels[i].deliver()
	}
}

// elsewhere says whether a call has failed, without a change, so that the client library tries another node: the slot moves or has
// moved, the node is a replica now, or is none any more. So it is for a script that the node still does not know, as its source may
// have been sent on.
func elsewhere(err error) bool {
	for _, sign := range []string{"MOVED ", "ASK ", "READONLY ", "NOSCRIPT "} {
		if redis.HasErrorPrefix(err, sign) {
			return true
		}
	}
	return errors.Is(err, redis.ErrClosed)
}
