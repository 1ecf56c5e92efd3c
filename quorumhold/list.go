package quorumhold

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// lookGrace is how much longer than a majority the other nodes may take to show what they have. It makes what is shown
// about a term the same from one look to the next.
const lookGrace = 250 * time.Millisecond

// gather asks all nodes and returns the answers of a majority, and of those others that are not much slower, unless those of a
// majority are enough. answers[i] is nil if node i has not answered.
func gather[T any](
	ctx context.Context, d *Driver, verb, key string, ask func(context.Context, *node) (T, error), enough func([]*T) bool,
) ([]*T, error) {
	var (
		mu      sync.Mutex
		answers = make([]*T, len(d.nodes))
		heard   = make([]error, len(d.nodes))
		got     int
		open    = len(d.nodes)
		changed = make(chan struct{}, 1)
		over    atomic.Bool
	)
	defer over.Store(true)
	for i, n := range d.nodes {
		how := errand{limit: d.opts.NodeTimeout, needed: func(time.Duration) bool { return !over.Load() }}
		askNode(d, n, how, func(ctx context.Context) (T, error) {
			ctx, cancel := d.looking(ctx)
			defer cancel()
			return ask(ctx, n)
		}, func(v T, err error) {
			mu.Lock()
			open--
			if heard[i] = err; err == nil {
				got++
				answers[i] = &v
			}
			mu.Unlock()
			select {
			case changed <- struct{}{}:
			default:
			}
		})
	}
	var grace <-chan time.Time
	for {
		mu.Lock()
		decided, done := got >= d.need || got+open < d.need, open == 0 || got >= d.need && enough(answers)
		mu.Unlock()
		if done {
			break
		}
		if decided && grace == nil { // for what is shown to be complete, or for a message that is
			timer := time.NewTimer(lookGrace)
			defer timer.Stop()
			grace = timer.C
		}
		select {
		case <-changed:
			continue
		case <-grace:
		case <-ctx.Done():
		case <-d.closing:
		}
		break
	}
	mu.Lock()
	defer mu.Unlock()
	if got >= d.need {
		return slices.Clone(answers), nil
	}
	e := &NoMajorityError{
		Verb: verb, Key: key, Did: got, Answered: got, Of: len(d.nodes), Need: d.need, certain: true,
		interruptedErr: d.interrupted(ctx),
	}
	for i, err := range heard {
		e.fail(d.nodes[i].name, err)
	}
	return nil, e
}

// looking returns a context for a call that changes nothing at a node, which ends when Close begins.
func (d *Driver) looking(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(d.looks, cancel)
	return ctx, func() { stop(); cancel() }
}

func (n *node) lister() (driver.Lister, error) {
	if l, ok := driver.As[driver.Lister](n.Driver); ok {
		return l, nil
	}
	return nil, fmt.Errorf("it cannot show terms: %w", errors.ErrUnsupported)
}

// Inspect implements driver.Lister. A key is held if the same term stands at a majority of nodes, as far as can be seen: a
// node that does not answer may have it as well. If none does and nobody could be granted it, the error is driver.ErrAbstains.
func (d *Driver) Inspect(ctx context.Context, key string) (driver.Term, bool, error) {
	if err := d.usable(ctx, "inspect", key); err != nil {
		return driver.Term{}, false, err
	}
	answers, err := gather(ctx, d, "inspect", key, func(ctx context.Context, n *node) ([]driver.Term, error) {
		l, err := n.lister()
		if err != nil {
			return nil, err
		}
		t, ok, err := l.Inspect(ctx, key)
		if !ok || err != nil {
			return nil, err
		}
		return []driver.Term{t}, nil
	}, nothing)
	if err != nil {
		return driver.Term{}, false, err
	}
	found := d.standing(answers)
	if len(found) == 0 {
		return driver.Term{}, false, d.mayGrant(ctx, "inspect", key)
	}
	return found[0], true, nil
}

// nothing says whether no node that has answered has any term. Those of a majority decide that: the others are none.
func nothing(answers []*[]driver.Term) bool {
	return !slices.ContainsFunc(answers, func(a *[]driver.Term) bool { return a != nil && len(*a) > 0 })
}

// standing returns the terms that stand at a majority, in the order of their keys. If a key has two that could, the one with
// more votes is shown. A node where a key is damaged counts as one that does not have it.
func (d *Driver) standing(answers []*[]driver.Term) []driver.Term {
	silent := 0
	votes := map[driver.Ref][]driver.Term{}
	damaged := map[string]driver.Term{}
	for _, a := range answers {
		if a == nil {
			silent++
			continue
		}
		for _, t := range *a {
			if t.Damaged != nil {
				damaged[t.Key] = t
				continue
			}
			ref := driver.Ref{Key: t.Key, Nonce: t.Nonce}
			votes[ref] = append(votes[ref], t)
		}
	}
	best := map[string]driver.Ref{}
	for ref, terms := range votes {
		if len(terms)+silent < d.need {
			continue
		}
		was, ok := best[ref.Key]
		if n, most := len(terms), len(votes[was]); !ok || n > most || n == most && ref.Nonce > was.Nonce {
			best[ref.Key] = ref
		}
	}
	var out []driver.Term
	for _, key := range slices.Sorted(maps.Keys(best)) {
		t := d.merge(votes[best[key]], silent)
		if own := d.known(driver.Ref{Key: t.Key, Nonce: t.Nonce}); own != nil {
			own.mu.Lock()
			if own.token != 0 {
				t.Token = own.token
			}
			own.mu.Unlock()
		}
		out = append(out, t)
	}
	for key, t := range damaged {
		if _, ok := best[key]; !ok {
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b driver.Term) int { return strings.Compare(a.Key, b.Key) })
	return out
}

// List implements driver.Lister. Where nothing is held and nothing could be granted, the error is driver.ErrAbstains.
func (d *Driver) List(ctx context.Context, prefix, after string, limit int) ([]driver.Term, error) {
	var out []driver.Term
	for from := after; ; {
		if err := d.usable(ctx, "list", prefix); err != nil {
			return nil, err
		}
		answers, err := gather(ctx, d, "list", prefix, func(ctx context.Context, n *node) ([]driver.Term, error) {
			l, err := n.lister()
			if err != nil {
				return nil, err
			}
			return l.List(ctx, prefix, after, limit)
		}, nothing)
		if err != nil {
			return nil, err
		}
		// Behind the end of the shortest full page not all nodes have spoken.
		end, more := "", false
		for _, a := range answers {
			if a != nil && len(*a) >= limit && limit > 0 {
				if last := (*a)[len(*a)-1].Key; !more || last < end {
					end, more = last, true
				}
			}
		}
		for _, t := range d.standing(answers) {
			if !more || t.Key <= end {
				out = append(out, t)
			}
		}
		if !more && len(out) == 0 && from == "" {
			return nil, d.mayGrant(ctx, "list", prefix)
		}
		if !more || len(out) >= limit {
			return out[:min(limit, len(out))], nil
		}
		after = end
	}
}
