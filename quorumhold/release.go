package quorumhold

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// Release implements driver.Driver. It returns when a majority has ended the term; the other nodes are told in the
// background, also those that do not answer now, until the term would have ended by itself.
func (d *Driver) Release(ctx context.Context, req *driver.ReleaseRequest) error {
	const verb = "release"
	key := req.Ref.Key
	if err := d.usable(ctx, verb, key); err != nil {
		return err
	}
	if err := d.tooLong(verb, key, "a KeepFor", req.KeepFor); err != nil {
		return err
	}
	t := d.known(req.Ref)
	err := d.release(ctx, t, req)
	if t == nil && errors.Is(err, driver.ErrGone) && ctx.Err() == nil {
		// Another process has acquired it, perhaps in a later vote.
		if term, ok, look := d.Inspect(ctx, key); look == nil && ok && term.Nonce != req.Ref.Nonce && siblings(term.Nonce, req.Ref.Nonce) {
			again := *req
			again.Ref.Nonce = term.Nonce
			return d.release(ctx, nil, &again)
		}
	}
	return err
}

func (d *Driver) release(ctx context.Context, t *term, req *driver.ReleaseRequest) error {
	now := time.Now()
	keep := time.Time{}
	if req.KeepFor > 0 {
		keep = now.Add(d.stretch(req.KeepFor))
	}
	r := *req
	until := now.Add(d.stretch(d.opts.MaxTTL))
	skip := func(int) bool { return false }
	ghost := func(int) bool { return false }
	begin := (*polled).begin
	if t != nil {
		d.forget(t)
		r.Ref = t.node
		t.mu.Lock()
		t.phase = ended
		until = now.Add(t.ttl)
		open := 0
		for i := range t.at {
			if t.at[i].state == asking {
				open++
			}
		}
		d.retired.add(t.ref, open) // until they have answered
		t.mu.Unlock()
		ghost, begin = t.ghost, t.whenAnswered
		if !req.Undo {
			skip = t.lacking
		}
	}
	r.KeepFor = 0
	return d.poll(ctx, "release", r.Ref, skip, begin, func(ctx context.Context, i int) error {
		one := &r
		if !keep.IsZero() {
			kept := r
			kept.KeepFor = max(0, time.Until(keep))
			one = &kept
		}
		err := d.nodes[i].Release(ctx, one)
		if ghost(i) && !one.Undo && (err == nil || errors.Is(err, driver.ErrGone)) { // an acquire may still arrive
			undo := *one
			undo.Undo = true
			if undone := d.nodes[i].Release(ctx, &undo); err != nil || unheard(undone) {
				err = undone
			}
		}
		return err
	}, func(i int) {
		one := r
		one.Undo = one.Undo || ghost(i)
		d.nodes[i].owe(debt{release: one, keep: keep, until: until, paid: func() {}})
	})
}

// Break implements driver.Breaker. A majority has to mark the term, or nothing is certain: the holder may go on with the
// nodes that did not.
func (d *Driver) Break(ctx context.Context, req *driver.BreakRequest) error {
	if err := d.usable(ctx, "break", req.Ref.Key); err != nil {
		return err
	}
	err := d.poll(ctx, "break", req.Ref, func(int) bool { return false }, (*polled).begin, func(ctx context.Context, i int) error {
		b, ok := driver.As[driver.Breaker](d.nodes[i].Driver)
		if !ok {
			return fmt.Errorf("it cannot break terms: %w", errors.ErrUnsupported)
		}
		return b.Break(ctx, req)
	}, func(int) {})
	if t := d.known(req.Ref); t != nil && err == nil && req.Now {
		d.forget(t)
		t.end() // a node that is granting it only now gives it back
	}
	return err
}
