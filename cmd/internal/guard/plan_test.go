package guard

import (
	"testing"
	"time"
)

const ms = time.Millisecond

func TestPlanTimeline(t *testing.T) {
	p := &plan{grace: 1000 * ms, deadline: 10000 * ms} // lead 50 ms
	check := func(now time.Duration, want step, why Reason, at time.Duration) {
		t.Helper()
		if s, r, d := p.next(now); s != want || r != why || d != at {
			t.Errorf("next(%v) = %v %q %v, want %v %q %v", now, s, r, d, want, why, at)
		}
	}
	check(0, wait, "", 8950*ms)
	p.renew(20000 * ms)
	check(9000*ms, wait, "", 18950*ms)
	p.renew(15000 * ms) // never to earlier
	check(9000*ms, wait, "", 18950*ms)
	check(18950*ms, term, Deadline, 0)
	p.ended(Deadline, 18950*ms)
	check(18950*ms, wait, "", 19950*ms)
	p.renew(60000 * ms) // too late to call it off, and the grace was given in full
	check(18960*ms, wait, "", 19950*ms)
	check(19950*ms, kill, "", 0)
}

// After a suspend TERM may go out with no time left before the deadline. A renewal then gives the command its grace.
func TestPlanLateTermAndRenewal(t *testing.T) {
	p := &plan{grace: 1000 * ms, deadline: 10000 * ms}
	if s, why, _ := p.next(9940 * ms); s != term || why != Deadline {
		t.Fatalf("next = %v %q, want TERM for the deadline", s, why)
	}
	p.ended(Deadline, 9940*ms)
	if s, _, at := p.next(9940 * ms); s != wait || at != 9950*ms {
		t.Errorf("KILL at %v, want 9.95s", at)
	}
	p.renew(30000 * ms)
	if s, _, at := p.next(9950 * ms); s != wait || at != 10940*ms {
		t.Errorf("after the renewal KILL at %v, want 10.94s: a full grace after TERM, and no more", at)
	}
}

func TestPlanEnds(t *testing.T) {
	for _, tt := range []struct {
		name             string
		p                plan
		killDue, termDue time.Duration
	}{
		{name: "asked, deadline far", p: plan{grace: 100 * ms, deadline: 9000 * ms, reason: Asked, termAt: 1000 * ms}, killDue: 1100 * ms, termDue: 8875 * ms},
		{name: "orphaned, deadline near", p: plan{grace: 100 * ms, deadline: 1050 * ms, reason: Orphaned, termAt: 1000 * ms}, killDue: 1025 * ms, termDue: 925 * ms},
		{name: "no grace", p: plan{deadline: 1000 * ms, reason: Deadline, termAt: 1000 * ms}, killDue: 1000 * ms, termDue: 1000 * ms},
	} {
		if got := tt.p.killDue(); got != tt.killDue {
			t.Errorf("%s: KILL at %v, want %v", tt.name, got, tt.killDue)
		}
		if got := tt.p.termDue(); got != tt.termDue {
			t.Errorf("%s: TERM at %v, want %v", tt.name, got, tt.termDue)
		}
	}
}

func TestPlanLeftovers(t *testing.T) {
	p := &plan{grace: 1000 * ms, settle: 100 * ms, deadline: 10000 * ms, exited: true, exitAt: 2000 * ms}
	if s, _, at := p.next(2000 * ms); s != wait || at != 2100*ms {
		t.Errorf("leftovers get until %v, want 2.1s", at)
	}
	if s, why, _ := p.next(2100 * ms); s != term || why != Leftovers {
		t.Errorf("next = %v %q, want TERM for leftovers", s, why)
	}
	p.exitAt = 8940 * ms // the deadline comes before they have had their moment
	if s, why, _ := p.next(8950 * ms); s != term || why != Deadline {
		t.Errorf("next = %v %q, want TERM for the deadline", s, why)
	}
}

func TestPlanEndedOnce(t *testing.T) {
	p := &plan{}
	p.ended(Asked, 1)
	p.ended(Deadline, 2)
	if p.reason != Asked || p.termAt != 1 {
		t.Errorf("second end changed the first: %q at %v", p.reason, p.termAt)
	}
}
