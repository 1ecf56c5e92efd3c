package quorumhold

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// poll asks all nodes to do something to a term, and waits until a majority has, or it is clear that the term did not stand. begin
// sends to a node, at once or when it may be sent to; those to skip then are not asked, and count as nodes that do not have the term;
// unheard is called for each node that may not have done it.
func (d *Driver) poll(
	ctx context.Context, verb string, ref driver.Ref, skip func(int) bool, begin func(*polled), ask func(context.Context, int) error,
	unheard func(int),
) error {
	p := &poll{
		need: d.need, of: len(d.nodes), skip: skip, asked: ask, unheard: unheard,
		open: len(d.nodes), heard: make([]error, len(d.nodes)), changed: make(chan struct{}, 1),
	}
	began := time.Now()
	all := make([]polled, len(d.nodes))
	for i, n := range d.nodes {
		one := &all[i]
		*one = polled{call: call{d: d, n: n, errand: errand{limit: d.opts.NodeTimeout}, what: one}, poll: p, at: i}
		begin(one)
	}
	end := d.limit(ctx)
	defer d.spare(end)
	for {
		p.mu.Lock()
		did, gone, goneAt, open := p.did, p.gone, p.goneAt, p.open
		p.mu.Unlock()
		switch {
		case did >= d.need:
			d.pace.Store(int64(time.Since(began)))
			return nil
		case goneAt > len(d.nodes)-d.need:
			return failure(verb, ref.Key, fmt.Errorf("%w (%d of %d nodes do not have it)", gone, goneAt, len(d.nodes)))
		case open == 0 && did > 0 && did+goneAt >= d.need:
			return nil
		}
		if open > 0 {
			select {
			case <-p.changed:
				continue
			case <-end.done:
			case <-end.late:
			case <-d.closing:
			}
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		e := &NoMajorityError{Verb: verb, Key: ref.Key, Did: p.did, Answered: p.did + p.goneAt, Of: len(d.nodes), Need: d.need}
		if open > 0 {
			e.interruptedErr = d.interrupted(ctx)
		}
		for i, err := range p.heard {
			e.fail(d.nodes[i].name, err)
		}
		return e
	}
}

// A poll is what the nodes have answered.
type poll struct {
	need, of int
	skip     func(int) bool
	asked    func(context.Context, int) error
	unheard  func(int)
	changed  chan struct{} // holds one poke, when it is decided

	mu     sync.Mutex
	open   int
	did    int
	gone   error
	goneAt int
	heard  []error
}

// A polled is one node of a poll.
type polled struct {
	call
	poll *poll
	at   int
}

func (o *polled) begin() {
	if o.poll.skip(o.at) {
		o.told(driver.ErrGone)
		return
	}
	o.send(time.Now())
}

func (o *polled) ask(ctx context.Context) error { return o.poll.asked(ctx, o.at) }

func (o *polled) told(err error) {
	p := o.poll
	p.mu.Lock()
	p.open--
	switch {
	case err == nil:
		p.did++
	case errors.Is(err, driver.ErrGone):
		p.goneAt++
		if p.gone == nil || errors.Is(err, driver.ErrBroken) {
			p.gone = err
		}
	default:
		p.heard[o.at] = err
	}
	decided := p.did >= p.need || p.goneAt > p.of-p.need || p.open == 0
	p.mu.Unlock()
	if unheard(err) {
		p.unheard(o.at)
	}
	if !decided {
		return
	}
	select {
	case p.changed <- struct{}{}:
	default:
	}
}
