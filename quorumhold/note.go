package quorumhold

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// note has nodes that do not have a term note that it was released, and keep its key until keep. It is for a release that less than a
// majority knows of, because nodes were away in turn: whoever comes next might not hear those, and would take the term for one that
// lapsed. Each is given the term as by a seed, for as short as can be, and releases it at once. It does no harm that the term stands there
// for a moment: a node where somebody else's does refuses. Of a term that was released the token is told alone, so it has another nonce
// here: of its own the nodes may have been told not to grant it any more.
func (t *term) note(ctx context.Context, nodes []int, keep time.Time) {
	d := t.d
	var nonce [16]byte
	_, _ = rand.Read(nonce[:]) // cannot fail
	t.mu.Lock()
	req := &driver.AcquireRequest{
		Ref: driver.Ref{Key: t.node.Key, Nonce: hex.EncodeToString(nonce[:])}, TTL: d.stretch(d.traits.MinTTL), MinHold: left(keep), Floor: t.token, Seed: t.token, Holder: t.holder,
	}
	t.mu.Unlock()
	done := make(chan struct{}, len(nodes))
	for _, i := range nodes {
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
	for range nodes {
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
