package quorumhold

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/budget"
)

// A call is one call of a node. There are ten to a lock that is taken and given back, so those are parts of what they are for,
// instead of functions that know it.
type call struct {
	d *Driver
	n *node
	errand
	what   question
	flight flight // when it has been admitted
	budget budget.Budget
}

// A question is what a node is asked.
type question interface {
	// ask asks the node and keeps the answer.
	ask(ctx context.Context) error
	// told is called once: with the error of ask, on the same goroutine, or with why it was not called.
	told(err error)
}

// send makes the call on a goroutine of its own, when it is its turn. If the node is not to be asked the question is told so at once,
// on the caller's.
func (c *call) send(now time.Time) {
	f, err := c.d.admit(c.n, now, c)
	switch {
	case err == nil:
		c.flight = f
		c.launch()
	case !errors.Is(err, errBusy):
		c.what.told(err)
	}
}

// launch makes a call that has been admitted.
func (c *call) launch() {
	if !c.d.background(c) {
		c.d.answered(c.n, c.flight, nil)
		c.what.told(fmt.Errorf("%w (%w)", driver.ErrClosed, driver.ErrNotApplied))
	}
}

// run implements work.
func (c *call) run() {
	c.budget.Begin(context.Background(), c.flight.since.Add(min(c.limit, c.d.opts.NodeTimeout))) // see Close: nodes end what is under way
	defer c.budget.End()
	err := c.what.ask(&c.budget)
	c.d.answered(c.n, c.flight, err)
	c.what.told(err)
	if !silent(err) {
		c.d.pay(c.n)
	}
}

// askNode makes one call of a node, by f, and hands the answer to done.
func askNode[T any](d *Driver, n *node, e errand, f func(context.Context) (T, error), done func(T, error)) {
	(&call{d: d, n: n, errand: e, what: &asked[T]{f: f, done: done}}).send(time.Now())
}

// asked is a question that is seldom enough to be two functions.
type asked[T any] struct {
	f    func(context.Context) (T, error)
	done func(T, error)
	v    T
}

func (a *asked[T]) ask(ctx context.Context) (err error) {
	a.v, err = a.f(ctx)
	return err
}

func (a *asked[T]) told(err error) { a.done(a.v, err) }
