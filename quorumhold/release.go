package quorumhold

import (
	"context"
	"errors"
	"fmt"
	"sync"
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
	begin := func(_ int, send func()) { send() }
	if t != nil {
		d.forget(t)
		r.Ref = t.node
		t.mu.Lock()
		t.phase = ended
		until = now.Add(t.ttl)
		for i := range t.at {
			if t.at[i].state == asking {
				d.retired.add(t.ref, 1) // until it is answered
			}
		}
		t.mu.Unlock()
		ghost, begin = t.ghost, t.whenAnswered
		if !req.Undo {
			skip = t.lacking
		}
	}
	return d.poll(ctx, "release", r.Ref, skip, begin, func(ctx context.Context, i int) error {
		one := r
		one.KeepFor = max(0, time.Until(keep))
		err := d.nodes[i].Release(ctx, &one)
		if ghost(i) && !one.Undo && (err == nil || errors.Is(err, driver.ErrGone)) { // an acquire may still arrive
			one.Undo = true
			if undone := d.nodes[i].Release(ctx, &one); err != nil || unheard(undone) {
				err = undone
			}
		}
		return err
	}, func(i int) {
		one := r
		one.KeepFor = 0
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
	err := d.poll(ctx, "break", req.Ref, func(int) bool { return false }, func(_ int, send func()) { send() }, func(ctx context.Context, i int) error {
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

// poll asks all nodes to do something to a term, and waits until a majority has, or it is clear that the term did not stand. begin
// sends to a node, at once or when it may be sent to; those to skip then are not asked, and count as nodes that do not have the term;
// unheardAt is called for each node that may not have done it.
func (d *Driver) poll(
	ctx context.Context, verb string, ref driver.Ref, skip func(int) bool, begin func(int, func()), ask func(context.Context, int) error,
	unheardAt func(int),
) error {
	var (
		mu      sync.Mutex
		open    = len(d.nodes)
		did     int
		gone    error
		goneAt  int
		heard   = make([]error, len(d.nodes))
		changed = make(chan struct{}, 1)
		began   = time.Now()
	)
	answered := func(i int, err error) {
		mu.Lock()
		open--
		switch {
		case err == nil:
			did++
		case errors.Is(err, driver.ErrGone):
			goneAt++
			if gone == nil || errors.Is(err, driver.ErrBroken) {
				gone = err
			}
		default:
			heard[i] = err
		}
		decided := did >= d.need || goneAt > len(d.nodes)-d.need || open == 0
		mu.Unlock()
		if unheard(err) {
			unheardAt(i)
		}
		if !decided {
			return
		}
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	for i, n := range d.nodes {
		begin(i, func() {
			if skip(i) {
				answered(i, driver.ErrGone)
				return
			}
			call(d, n, errand{limit: d.opts.NodeTimeout}, func(ctx context.Context) (struct{}, error) { return struct{}{}, ask(ctx, i) },
				func(_ struct{}, err error) { answered(i, err) })
		})
	}
	for {
		mu.Lock()
		switch {
		case did >= d.need:
			mu.Unlock()
			d.pace.Store(int64(time.Since(began)))
			return nil
		case goneAt > len(d.nodes)-d.need:
			err := failure(verb, ref.Key, fmt.Errorf("%w (%d of %d nodes do not have it)", gone, goneAt, len(d.nodes)))
			mu.Unlock()
			return err
		case open == 0 && did > 0 && did+goneAt >= d.need:
			mu.Unlock()
			return nil
		}
		stop := open == 0
		mu.Unlock()
		if !stop {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
			case <-d.closing:
			}
		}
		mu.Lock()
		defer mu.Unlock()
		e := &NoMajorityError{Verb: verb, Key: ref.Key, Did: did, Answered: did + goneAt, Of: len(d.nodes), Need: d.need}
		if !stop {
			e.interruptedErr = d.interrupted(ctx)
		}
		for i, err := range heard {
			e.fail(d.nodes[i].name, err)
		}
		return e
	}
}
