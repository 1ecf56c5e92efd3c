package quorumhold

import (
	"context"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// A limit tells a caller who waits for nodes that his time is over. A context of driver.WithBudget has no timer until somebody asks
// for its end, and to make one for each call costs more than to keep a few and set them. Only those go back that have certainly not
// fired, so a limit never ends early.
type limit struct {
	done  <-chan struct{}
	late  <-chan time.Time
	timer *time.Timer
}

// limit returns that of a context. It is to be given back with spare.
func (d *Driver) limit(ctx context.Context) limit {
	end, ok := ctx.Deadline()
	if !ok || !driver.BudgetOnly(ctx) {
		return limit{done: ctx.Done()}
	}
	timer, _ := d.timers.Get().(*time.Timer)
	if timer == nil {
		timer = time.NewTimer(time.Until(end))
	} else {
		timer.Reset(time.Until(end))
	}
	return limit{late: timer.C, timer: timer}
}

func (d *Driver) spare(l limit) {
	if l.timer != nil && l.timer.Stop() {
		d.timers.Put(l.timer)
	}
}
