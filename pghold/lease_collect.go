package pghold

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// Old rows are removed in small steps, beside the calls that make new ones: one step for about every hundred grants, or
// every minute in which there is one. Among all processes of a namespace one at a time takes a step.
const (
	grantsPerStep = 100
	rowsPerStep   = 500
	stepInterval  = time.Minute
	collectBudget = 5 * time.Second
)

type collector struct {
	grants  atomic.Int64
	last    atomic.Int64 // when the last step was, in seconds since 1970
	mu      sync.Mutex
	running bool
	stopped bool
	steps   sync.WaitGroup
}

// start has a program that makes a single grant collect once in a hundred runs, so that such programs keep up too.
func (c *collector) start() {
	c.grants.Store(rand.Int64N(grantsPerStep))
	c.last.Store(time.Now().Unix())
}

// acquired is called after every grant.
func (c *collector) acquired(d *LeaseDriver) {
	now := time.Now().Unix()
	if c.grants.Add(1) < grantsPerStep && now-c.last.Load() < int64(stepInterval/time.Second) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running || c.stopped {
		return
	}
	c.running = true
	c.grants.Store(0)
	c.last.Store(now)
	c.steps.Go(func() {
		defer func() {
			c.mu.Lock()
			c.running = false
			c.mu.Unlock()
		}()
		ctx, cancel := context.WithTimeout(d.open, collectBudget)
		defer cancel()
		// While there is much to remove, it goes on.
		for removed := rowsPerStep; removed >= rowsPerStep/2; {
			var err error
			if removed, err = d.collect(ctx, rowsPerStep); err != nil {
				return // the next one will
			}
		}
		for removed := rowsPerStep; removed == rowsPerStep; {
			var err error
			if removed, err = d.collectJobs(ctx, rowsPerStep); err != nil {
				return
			}
		}
	})
}

// collect takes one step and returns how many keys it removed.
func (d *LeaseDriver) collect(ctx context.Context, rows int) (removed int, err error) {
	err = d.step(ctx, "collect", d.namespace, d.sql.collect, []any{d.namespace, rows},
		func(r pgx.Rows) error { return r.Scan(&removed) })
	return removed, err
}

// collectJobs removes some of the records that are not kept any more.
func (d *LeaseDriver) collectJobs(ctx context.Context, rows int) (removed int, err error) {
	err = d.step(ctx, "collect", d.namespace, d.sql.collectJobs, []any{rows}, func(r pgx.Rows) error { return r.Scan(&removed) })
	return removed, err
}

// wait waits for a step that is under way; no other one begins.
func (c *collector) wait() {
	c.mu.Lock()
	c.stopped = true
	c.mu.Unlock()
	c.steps.Wait()
}
