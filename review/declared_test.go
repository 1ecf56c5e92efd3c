package review

import (
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/review/ledger"
)

// changed is a lock whose declaration was changed some days before the end, with what happened before and from that day on. The old
// one was still used on the day of the change.
func changed(before, now ledger.Declaration, ago driver.Day, old, fresh *ledger.Usage) *ledger.Lock {
	today := driver.DayOf(end)
	before.First, before.Last = today-60, today-ago
	now.First, now.Last = today-ago, today
	for _, u := range []*ledger.Usage{old, fresh} {
		u.LastTry, u.LastGrant = end.Add(-time.Hour), end.Add(-time.Hour)
	}
	return &ledger.Lock{Name: "l", Declared: []ledger.Declaration{daily(now), daily(before)}, Days: map[driver.Day]*ledger.Usage{
		today - ago: old, today - ago + 1: fresh, // on the day of the change as well, nobody knows under which
	}}
}

func usage(counts map[ledger.Counter]uint64, holds ...time.Duration) *ledger.Usage {
	u := &ledger.Usage{}
	for c, n := range counts {
		u.Counts[c] = n
	}
	for _, h := range holds {
		u.Hold.Record(h)
	}
	return u
}

func kinds(found []Finding) (text string) {
	for _, f := range found {
		text += " " + f.Kind
	}
	return strings.TrimSpace(text)
}

// What was wrong under a setting is not held against the one that has replaced it.
func TestChangedDeclaration(t *testing.T) {
	type counts = map[ledger.Counter]uint64
	off := func(ttl time.Duration) ledger.Declaration {
		return ledger.Declaration{TTL: ttl, MaxHold: 24 * time.Hour, RenewOff: true, DoubleRun: holdlock.Costly}
	}
	on := func(ttl, maxHold time.Duration) ledger.Declaration {
		return ledger.Declaration{TTL: ttl, MaxHold: maxHold, DoubleRun: holdlock.Costly}
	}
	fenced := costly
	fenced.Guard = holdlock.Fenced
	for _, c := range []struct {
		name        string
		before, now ledger.Declaration
		old, fresh  *ledger.Usage
		want, still string // findings; those if nothing had been changed
	}{
		{
			"the TTL was raised", off(time.Minute), off(10 * time.Minute), usage(counts{ledger.LostExpired: 3}, many(3, time.Minute)...), usage(nil, many(150, time.Minute)...),
			"", "overrunning",
		},
		{
			"it was raised too far, as far as is known", off(time.Minute), off(time.Hour), usage(counts{ledger.LostExpired: 3}, many(3, time.Minute)...), usage(nil, many(150, time.Minute)...),
			"", "overrunning",
		},
		{
			"it was raised far beyond all runs", off(10 * time.Minute), off(time.Hour), usage(nil, many(3, 2*time.Minute)...), usage(nil, many(150, time.Minute)...),
			"TTL too long", "TTL too long",
		},
		{
			"it was raised for runs that are rare", off(10 * time.Minute), off(time.Hour), usage(nil, many(3, 4*time.Minute)...), usage(nil, many(150, time.Minute)...),
			"", "",
		},
		{
			"renewal was turned off", on(time.Minute, 24*time.Hour), off(10 * time.Minute), usage(nil, many(30, time.Hour)...), usage(nil, many(30, time.Minute)...),
			"", "overrunning",
		},
		{
			"MaxHold was raised", on(time.Minute, time.Hour), on(time.Minute, 5*time.Hour), usage(counts{ledger.LostMaxHold: 3}, many(3, time.Hour)...), usage(nil, many(30, time.Hour)...),
			"", "overrunning",
		},
		{
			"a TTL that was too tight", on(time.Second, 24*time.Hour), on(time.Minute, 24*time.Hour), usage(counts{ledger.Granted: 100, ledger.LostPaused: 5}), usage(counts{ledger.Granted: 100}),
			"lost", "lost TTL too tight",
		},
		{
			"a TTL that was too long", on(24*time.Hour, 24*time.Hour), on(time.Minute, 24*time.Hour), usage(counts{ledger.Granted: 1000}), usage(counts{ledger.Granted: 10}),
			"", "",
		},
		{
			"a fence since then", costly, fenced, usage(nil, many(30, time.Second)...), usage(nil, many(10, time.Second)...),
			"", "guard unseen",
		},
	} {
		for _, ago := range []driver.Day{3, 20} {
			found := Judge(changed(c.before, c.now, ago, c.old, c.fresh), month)
			if got := kinds(found); got != c.want {
				t.Errorf("%s: found %+v, want %q", c.name, found, c.want)
			}
		}
		// The control: had it always been declared as it is now, the same counts would be found.
		l := changed(c.before, c.now, 3, c.old, c.fresh)
		l.Declared = l.Declared[:1]
		l.Declared[0].First -= 100
		if found := Judge(l, month); kinds(found) != c.still {
			t.Errorf("%s, without a change: found %+v, want %q", c.name, found, c.still)
		}
	}
}

// Two programs that go on to differ hide nothing.
func TestDriftHidesNothing(t *testing.T) {
	a := costly
	a.RenewOff, a.TTL = true, time.Minute
	b := a
	b.TTL = 2 * time.Minute
	l := changed(b, a, 10, usage(map[ledger.Counter]uint64{}, time.Second), usage(map[ledger.Counter]uint64{ledger.LostExpired: 1}, 90*time.Second))
	l.Declared[1].Last = l.Declared[0].Last
	l.Declared[1] = daily(l.Declared[1])
	if got := kinds(Judge(l, month)); got != "overrunning drifted" {
		t.Errorf("found %q", got)
	}
}

// The sheet says the same as the findings, and that it knows nothing yet on the day of a change.
func TestSheetOfChanged(t *testing.T) {
	off := costly
	off.RenewOff = true
	raised := off
	raised.TTL = 10 * time.Minute
	old := usage(map[ledger.Counter]uint64{ledger.LostExpired: 3}, many(3, time.Minute)...)
	for ago, want := range map[driver.Day]string{0: Unknown, 5: "yes"} {
		l := changed(off, raised, ago, old, usage(nil, time.Minute))
		delete(l.Days, driver.DayOf(end)+1) // that is to come
		a := Sheet(l, month, driver.Traits{})[0]
		if a.Verdict != want {
			t.Errorf("%d days ago: %+v, want %s", ago, a, want)
		}
	}
}

// A run that was cut off took longer than it was seen to take, and nobody pretends to know how long.
func TestCutRuns(t *testing.T) {
	off := costly
	off.RenewOff, off.TTL = true, 300*time.Millisecond
	type counts = map[ledger.Counter]uint64
	for _, c := range []struct {
		name         string
		counts       counts
		holds        []time.Duration
		says, silent string
	}{
		{"stopped when they were told to", counts{ledger.LostExpired: 3}, many(3, 271*time.Millisecond), "is not known, as it was cut off: 271 ms at least", "542"},
		{"never seen to their end", counts{ledger.LostExpired: 3}, nil, "is not known, as it was cut off: 270 ms at least", "540"},
		{"seen to their end", counts{ledger.LostExpired: 3}, many(3, 3*time.Second), "took 3 s or longer", "not known"},
	} {
		l := made(off, c.counts, c.holds...)
		found := Judge(l, month)
		if len(found) != 1 || found[0].Kind != "overrunning" {
			t.Fatalf("%s: %+v", c.name, found)
		}
		text := found[0].Evidence + "; " + found[0].Advice
		if !strings.Contains(text, c.says) || strings.Contains(text, c.silent) {
			t.Errorf("%s: %q, want %q and not %q", c.name, text, c.says, c.silent)
		}
		if a := Sheet(l, month, driver.Traits{})[0]; a.Verdict != "no" || !strings.Contains(a.Why, "not known how much longer") {
			t.Errorf("%s: %+v", c.name, a)
		}
	}
}

// Workers are not said to die where work outlives its expiry.
func TestLapsedByExpiry(t *testing.T) {
	off := costly
	off.RenewOff = true
	for _, c := range []struct {
		lapsed, expired uint64
		killed          bool
		says            string
	}{
		{3, 0, true, "killed, paused or cut off"},
		{3, 3, false, "3 runs outlived their expiry"},
		{3, 2, true, "up to 2 of them because the work outlived its expiry"},
	} {
		found := Judge(made(off, map[ledger.Counter]uint64{ledger.Lapsed: c.lapsed, ledger.LostExpired: c.expired}, time.Second), month)
		text := found[0].Evidence
		if found[0].Kind != "lapsed" || strings.Contains(text, "killed") != c.killed || !strings.Contains(text, c.says) {
			t.Errorf("%d lapsed, %d expired: %+v", c.lapsed, c.expired, found[0])
		}
	}
}

// Counts are of whole days, and older ones of ten: a rate is over the time that they cover.
func TestPeriodOfCounts(t *testing.T) {
	d := costly
	d.TTL = 10 * time.Minute
	now := end.Add(9 * time.Hour)
	l := made(d, map[ledger.Counter]uint64{ledger.Granted: 27, ledger.Contended: 1}) // every 20 minutes
	l.Days = map[driver.Day]*ledger.Usage{driver.DayOf(now): l.Days[driver.DayOf(end)-1]}
	if found := Judge(l, Period{now.Add(-time.Hour), now}); len(found) != 0 {
		t.Errorf("of the last hour: %+v", found)
	}
	for _, u := range l.Days { // control
		u.Counts[ledger.Granted] = 200
	}
	if got := kinds(Judge(l, Period{now.Add(-time.Hour), now})); got != "TTL too long" {
		t.Errorf("every 2.7 minutes: %q", got)
	}

	// 39 days, every 20 minutes and a bit; the first ten of them as one.
	sum, rest := usage(map[ledger.Counter]uint64{ledger.Granted: 10 * 70}), usage(map[ledger.Counter]uint64{ledger.Granted: 29 * 70})
	sum.Covers, l.Declared[0].TTL = 10, 35*time.Minute
	l.Days = map[driver.Day]*ledger.Usage{driver.DayOf(month.From) - 9: sum, driver.DayOf(end) - 1: rest}
	for _, u := range l.Days {
		u.LastTry, u.LastGrant = end.Add(-time.Hour), end.Add(-time.Hour)
		u.Counts[ledger.Contended] = 1
	}
	if found := Judge(l, month); len(found) != 0 {
		t.Errorf("of a month that begins in a sum: %+v", found)
	}
}

// That the store was down says nothing about whether a lock is needed.
func TestNotAnswered(t *testing.T) {
	harmless := costly
	harmless.DoubleRun = holdlock.Harmless
	failed := map[ledger.Counter]uint64{ledger.Attempts: 316, ledger.Failed: 315, ledger.Granted: 1}
	for d, want := range map[*ledger.Declaration]string{&costly: "not run", &harmless: "not run declared idempotent"} {
		l := made(*d, failed)
		found := Judge(l, month)
		if got := kinds(found); got != want {
			t.Errorf("found %+v, want %s", found, want)
		}
		if a := Sheet(l, month, driver.Traits{})[4]; a.Verdict != Unknown || !strings.Contains(a.Why, "the only attempt") {
			t.Errorf("%+v", a)
		}
	}
	failed[ledger.Attempts] = 315
	if a := Sheet(made(harmless, failed), month, driver.Traits{})[4]; a.Verdict != Unknown || !strings.Contains(a.Why, "answered none of 315") {
		t.Errorf("%+v", a)
	}
}
