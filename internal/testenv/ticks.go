package testenv

import (
	"sync"
	"testing"
	"time"
)

// Ticks counts how often each tick of a schedule is run by replicas whose clocks are off. A run belongs to the tick that it is
// nearest to.
type Ticks struct {
	every, tooLate time.Duration
	first          time.Time

	mu   sync.Mutex
	ran  map[time.Time]int
	late map[time.Time]bool
}

// NewTicks returns half a tick before the first that counts, so that all replicas can be there. A replica that comes to a tick later
// than tooLate, because the machine stood still, makes what happens at that tick say nothing.
func NewTicks(every, tooLate time.Duration) *Ticks {
	first := time.Now().Truncate(every).Add(every)
	if time.Until(first) < every/2 {
		first = first.Add(every)
	}
	time.Sleep(time.Until(first.Add(-every / 2)))
	return &Ticks{every: every, tooLate: tooLate, first: first, ran: map[time.Time]int{}, late: map[time.Time]bool{}}
}

// Ran notes a run.
func (t *Ticks) Ran() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ran[time.Now().Round(t.every)]++
}

// Try notes that a replica, by whose clock it is now, is about to run a tick.
func (t *Ticks) Try(now time.Time) {
	tick := now.Round(t.every)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.late[tick] = t.late[tick] || now.Sub(tick) > t.tooLate
}

// Wait waits until so many ticks have passed to which no replica was late, and returns how many ran once and how many did not.
func (t *Ticks) Wait(tb testing.TB, ticks int) (once, other int) {
	tb.Helper()
	for once+other < ticks {
		time.Sleep(time.Until(time.Now().Truncate(t.every).Add(t.every + t.every/2)))
		var late int
		if once, other, late = t.judge(); late > 2*ticks {
			tb.Errorf("at %d ticks of %d a replica was late: the machine is too busy to tell", late, once+other+late)
			break
		}
	}
	return once, other
}

func (t *Ticks) judge() (once, other, late int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for tick := t.first; tick.Before(time.Now()); tick = tick.Add(t.every) {
		switch {
		case t.late[tick]:
			late++
		case t.ran[tick] == 1:
			once++
		default:
			other++
		}
	}
	return once, other, late
}
