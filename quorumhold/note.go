package quorumhold

import (
	"context"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// note has nodes that do not have a term note that it was released, and keep its key until keep. It is for a release that less than a
// majority knows of, because nodes were away in turn: whoever comes next might not hear those, and would take the term for one that
// lapsed. Each is given the term as by a seed, for as short as can be, and releases it at once. It does no harm that the term stands there
// for a moment: a node where somebody else's does refuses. A node where a request to start it may still arrive is left out, since it is to
// refuse the nonce.
func (t *term) note(ctx context.Context, nodes []int, keep time.Time) {
	d := t.d
	t.mu.Lock()
	req := &driver.AcquireRequest{
		Ref: t.node, TTL: d.stretch(d.traits.MinTTL), MinHold: left(keep), Floor: t.token, Seed: t.token, Holder: t.holder,
	}
	t.mu.Unlock()
	done := make(chan struct{}, len(nodes))
	open := 0
	for _, i := range nodes {
		if t.ghost(i) {
			continue
		}
		open++
		n := d.nodes[i]
		askNode(d, n, errand{}, func(ctx context.Context) (struct{}, error) {
			if _, err := n.Acquire(ctx, req); err != nil {
				return struct{}{}, err
			}
			return struct{}{}, n.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref, KeepFor: left(keep)})
		}, func(_ struct{}, err error) {
			if unheard(err) {
				n.owe(debt{release: driver.ReleaseRequest{Ref: req.Ref}, keep: keep, until: time.Now().Add(max(req.TTL, req.MinHold)), paid: func() {}})
			}
			done <- struct{}{}
		})
	}
	for ; open > 0; open-- {
		select {
		case <-done:
		case <-ctx.Done():
			return
		case <-d.closing:
			return
		}
	}
}

// left is how long it is until end, or 0 if that is zero or over.
func left(end time.Time) time.Duration {
	if end.IsZero() {
		return 0
	}
	return max(0, time.Until(end))
}
