package sqlitehold

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// Rows of keys that have not been used for driver.CounterTTL are collected by the calls that are made anyway, behind a
// release, where nobody's time is running: two rows are looked at for each key that is new, in steps of some 100 µs. So the
// garbage stays in proportion to what is in use. A hand goes round the rows in the order in which they were made; where
// it starts is chosen at random, so that short-lived processes look everywhere in the long run. Records of jobs that are no
// longer kept are found by an index, and as many of them go in each step.
const (
	newKeysPerStep = 64
	rowsPerStep    = 2 * newKeysPerStep
	collectEvery   = time.Minute          // a step is also due after this time, without new keys
	collectBudget  = 5 * time.Millisecond // more steps follow at once while there is much to collect, for so long
	strayWaiterAge = time.Hour            // waiters of another network namespace cannot be asked whether they live
	waitersPerStep = 16
)

// A collector knows when a step is due and where the hand is.
type collector struct {
	mu      sync.Mutex
	newKeys int
	next    time.Duration // by the boot clock
	due     bool
	hand    int64 // the last id looked at; below 0 before the first step
}

func (c *collector) start(now time.Duration) {
	c.hand = -1
	c.newKeys = rand.IntN(newKeysPerStep)
	if c.next = now + collectEvery; rand.IntN(4) == 0 {
		c.next = now // some of the short-lived processes must do it
	}
}

func (c *collector) acquired(isNew bool, now time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if isNew {
		c.newKeys++
	}
	if c.newKeys >= newKeysPerStep || now >= c.next {
		c.due, c.newKeys, c.next = true, 0, now+collectEvery
	}
}

// take says whether a step is due, to one caller.
func (c *collector) take() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	due := c.due
	c.due = false
	return due
}

// collect makes a step if one is due. It does not matter if it fails; another one follows.
func (d *Driver) collect(ctx context.Context) {
	if !d.collector.take() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 10*collectBudget)
	defer cancel()
	for start := time.Now(); time.Since(start) < collectBudget; {
		removed, err := d.collectStep(ctx)
		if err != nil || removed < rowsPerStep/2 {
			break
		}
	}
	d.collectWaiters(ctx)
}

// collectStep looks at the next rows and returns how many it removed.
func (d *Driver) collectStep(ctx context.Context) (removed int64, err error) {
	c := &d.collector
	err = d.call(ctx, "collect", "", func(w *writer) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.hand < 0 {
			var last sql.NullInt64
			if _, err := w.row(lastStatement, nil, &last); err != nil {
				return err
			}
			c.hand = rand.Int64N(last.Int64 + 1)
		}
		end := int64(math.MaxInt64)
		more, err := w.row(stepEndStatement, []any{c.hand, rowsPerStep - 1}, &end)
		if err != nil {
			return err
		}
		m := d.moment()
		removed, err = w.exec(collectStatement, c.hand, end, d.boot,
			m.now-int64(driver.CounterTTL), m.wall.Add(-driver.CounterTTL).UnixMicro())
		if err != nil {
			return err
		}
		if c.hand = end; !more {
			c.hand = 0
		}
		jobs, err := w.exec(collectJobsStatement, m.micro(), rowsPerStep)
		removed += jobs
		return err
	})
	return removed, err
}

// collectWaiters removes waiters whose process has died or whose key nobody releases any more.
func (d *Driver) collectWaiters(ctx context.Context) {
	_ = d.call(ctx, "collect", "", func(w *writer) error {
		if any, err := w.row(`SELECT 1 FROM waiter LIMIT 1`, nil); err != nil || !any {
			return err
		}
		if _, err := w.exec(strayWaitersStatement, d.boot, d.net, int64(d.now()-strayWaiterAge)); err != nil {
			return err
		}
		var dead []waiter
		var v waiter
		err := w.all(oldWaitersStatement, []any{d.boot, d.net, waitersPerStep}, []any{&v.seq, &v.address}, func() {
			if !isListening(v.address) {
				dead = append(dead, v)
			}
		})
		return errors.Join(err, w.unwatch(dead))
	})
}

// A waiter is one watch of one process.
type waiter struct {
	seq     int64
	address string
}

// unwatch takes waiters out of the line.
func (w *writer) unwatch(waiters []waiter) error {
	for _, v := range waiters {
		if _, err := w.exec(unwatchStatement, v.seq, v.address); err != nil {
			return err
		}
	}
	return nil
}
