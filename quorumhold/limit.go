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

// limit returns that of a context, and of latest if that is not zero and comes before. It is to be given back with spare.
func (d *Driver) limit(ctx context.Context, latest time.Time) limit {
	end, ok := ctx.Deadline()
	var done <-chan struct{}
	if !ok || !driver.BudgetOnly(ctx) {
		done, end = ctx.Done(), latest
	} else if !latest.IsZero() && latest.Before(end) {
		end = latest
	}
	if end.IsZero() {
		return limit{done: done}
	}
	timer, _ := d.timers.Get().(*time.Timer)
	if timer == nil {
		timer = time.NewTimer(time.Until(end))
	} else {
		timer.Reset(time.Until(end))
	}
	return limit{done: done, late: timer.C, timer: timer}
}

func (d *Driver) spare(l limit) {
	if l.timer != nil && l.timer.Stop() {
		d.timers.Put(l.timer)
	}
}
