package guard

import "time"

const (
	maxLead   = 50 * time.Millisecond  // see the timeline in the package comment
	maxSettle = 250 * time.Millisecond // the default of Config.Settle is no longer
	patience  = time.Second            // from KILL to the report that somebody refuses it
	minPause  = 2 * time.Millisecond   // between attempts to kill: doubled each time,
	maxPause  = 100 * time.Millisecond // as looking at a process in /proc makes its end slower on a busy machine
	giveUp    = 5 * time.Second        // from KILL to the end of all attempts, if the deadline has passed too
)

// plan decides what the guard does when. It only computes; all times are of bootclock.Now.
type plan struct {
	grace    time.Duration
	settle   time.Duration
	deadline time.Duration

	exited bool          // the command has ended, and left descendants
	exitAt time.Duration // when

	reason Reason        // why TERM was sent; empty before
	termAt time.Duration // when
}

// A step is what is to be done now.
type step int

const (
	wait step = iota
	term      // send TERM, then call ended
	kill      // kill whatever is left
)

// hard is the last moment to begin killing.
func (p *plan) hard() time.Duration { return p.deadline - min(p.grace/4, maxLead) }

// termDue is when TERM goes out unless the deadline moves. It is also what the command is told.
func (p *plan) termDue() time.Duration { return p.hard() - p.grace }

// killDue is when KILL goes out after TERM.
func (p *plan) killDue() time.Duration { return min(p.hard(), p.termAt+p.grace) }

// renew moves the deadline, never to earlier.
func (p *plan) renew(deadline time.Duration) { p.deadline = max(p.deadline, deadline) }

// next returns the step to do now, and for term its reason; if it is to wait, next returns until when.
func (p *plan) next(now time.Duration) (step, Reason, time.Duration) {
	if p.reason != "" {
		if due := p.killDue(); now < due {
			return wait, "", due
		}
		return kill, "", 0
	}
	due, why := p.termDue(), Deadline
	if settled := p.exitAt + p.settle; p.exited && settled < due {
		due, why = settled, Leftovers
	}
	if now < due {
		return wait, "", due
	}
	return term, why, 0
}

// ended notes that TERM was sent. Only the first time counts.
func (p *plan) ended(why Reason, now time.Duration) {
	if p.reason == "" {
		p.reason, p.termAt = why, now
	}
}
