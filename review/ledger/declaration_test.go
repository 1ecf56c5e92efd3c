package ledger

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/memhold"
)

// A lock is judged by what it is declared as now, from the moment of the change on: also if the old declaration was used on that day.
func TestNewestDeclaration(t *testing.T) {
	old := holdlock.LockOptions{TTL: 30 * time.Second}
	changed := holdlock.LockOptions{TTL: time.Minute, DoubleRun: holdlock.Costly}
	const hour = time.Hour
	type use struct {
		at    time.Duration // from the first midnight
		opts  holdlock.LockOptions
		again time.Duration // when the same program uses it once more, 0 never
	}
	for _, c := range []struct {
		name string
		uses []use
		want time.Duration // the TTL that comes first
	}{
		{"one after the other on one day", []use{{hour, old, 0}, {2 * hour, changed, 0}, {3 * hour, changed, 0}}, time.Minute},
		{"after days of the old one", []use{{hour, old, 0}, {49 * hour, old, 0}, {50 * hour, changed, 0}}, time.Minute},
		{"on the next day", []use{{hour, old, 0}, {2 * hour, changed, 26 * hour}}, time.Minute},
		{"taken back on the same day", []use{{hour, old, 0}, {2 * hour, changed, 0}, {3 * hour, old, 0}}, 30 * time.Second},
		{"taken back on the next day", []use{{hour, old, 0}, {2 * hour, changed, 0}, {26 * hour, old, 0}}, 30 * time.Second},
		{"the old program runs on for a while", []use{{hour, old, 26 * hour}, {25 * hour, changed, 27 * hour}}, time.Minute},
		{"the new program is stopped, the old one runs on", []use{{hour, old, 50 * hour}, {2 * hour, changed, 0}}, 30 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := memhold.NewStore()
			l := memhold.NewDriver(&memhold.Options{Store: store})
			midnight := driver.DayOf(time.Now()).Start().Add(-5 * 24 * time.Hour)
			var now time.Time
			type again struct {
				r  *Recorder
				at time.Time
			}
			var later []again
			for _, u := range c.uses {
				now = midnight.Add(u.at)
				r := started(l, nil)
				r.now = func() time.Time { return now }
				r.Declare("a", u.opts)
				r.Observe(holdlock.Event{Kind: holdlock.Granted, Name: "a"})
				if err := r.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
				later = append(later, again{r, midnight.Add(u.again)})
			}
			for _, a := range later {
				if a.at.After(midnight) {
					now = a.at
					a.r.Observe(holdlock.Event{Kind: holdlock.Granted, Name: "a"})
				}
				if err := a.r.Stop(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			locks, problems, err := Load(t.Context(), l, 1, 1<<30)
			if err != nil || len(problems) > 0 || len(locks) != 1 || len(locks[0].Declared) != 2 {
				t.Fatalf("%+v, %v, %v", locks, problems, err)
			}
			if got := locks[0].Declared[0]; got.TTL != c.want {
				t.Errorf("the newest is %+v, want that with a TTL of %s", got, c.want)
			}
		})
	}
}

func someDeclaration(rng *rand.Rand) Declaration {
	day := driver.Day(20_000 + rng.IntN(3))
	d := Declaration{
		TTL: time.Duration(1+rng.IntN(3)) * time.Second, DoubleRun: holdlock.DoubleRun(rng.IntN(2)), First: day, Last: day + driver.Day(rng.IntN(2)),
		Host: []string{"a", "b"}[rng.IntN(2)], Purpose: []string{"", "x", "y"}[rng.IntN(3)],
	}
	if rng.IntN(2) == 0 { // else it is of an older release
		d.At = day.Start().Add(time.Duration(rng.IntN(3)) * time.Second)
	}
	return d
}

// Programs send what they declare in any order, and the record is the same.
func TestDeclarationsCommute(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for range 500 {
		var sent []Declaration
		for len(sent) < 5 {
			d := someDeclaration(rng)
			d.TTL = time.Duration(1+rng.IntN(2)) * time.Second // four kinds: none has to go
			sent = append(sent, d)
		}
		var one, other []Declaration
		for _, d := range sent {
			one = declare(one, d)
		}
		rng.Shuffle(len(sent), func(i, j int) { sent[i], sent[j] = sent[j], sent[i] })
		for _, d := range sent {
			other = declare(other, d)
		}
		if a, b := encodeDeclarations(one), encodeDeclarations(other); !bytes.Equal(a, b) {
			t.Fatalf("the order matters:\n%s\n%s", a, b)
		}
	}
}

// A record of a release that did not know when something was declared is read: what came up last on the last day comes first.
func TestDeclarationsOfOlderRelease(t *testing.T) {
	const record = `{"v":1,"d":[{"ttl":30000,"max":86400000,"f":20000,"l":20010,"h":"a"},{"ttl":60000,"max":86400000,"dr":2,"f":20010,"l":20010,"h":"a"}]}`
	list, err := decodeDeclarations([]byte(record))
	if err != nil || len(list) != 2 || list[0].TTL != time.Minute || !list[0].At.IsZero() {
		t.Errorf("%+v, %v", list, err)
	}
	old := list[1] // of which only the first and the last day are known
	for day, want := range map[driver.Day]bool{19_999: false, 20_000: true, 20_005: false, 20_010: true, 20_011: false} {
		if old.UsedOn(day) != want {
			t.Errorf("in use on %d: %v", day, !want)
		}
	}
	newer := declare(list, Declaration{TTL: 30 * time.Second, MaxHold: 24 * time.Hour, First: 20_012, Last: 20_012, Used: 1})
	if d := newer[0]; d.First != 20_000 || !d.UsedOn(20_012) || !d.UsedOn(20_010) || d.UsedOn(20_011) || !d.UsedOn(20_000) {
		t.Errorf("and used again: %+v", d)
	}
}

// A program tells of a lock that it does not use once a week that it still has it, together with what others have done. One that uses
// none is silent: no request is made because time passes.
func TestIdleLocksAreTold(t *testing.T) {
	store := newLedger()
	r := started(store, &Options{Every: 24 * time.Hour})
	today := driver.DayOf(time.Now()) - 30
	r.now = func() time.Time { return today.Start().Add(time.Hour) }
	for _, name := range []string{"idle", "busy"} {
		r.Declare(name, holdlock.LockOptions{TTL: time.Minute})
	}
	flush := func() (requests int) {
		t.Helper()
		before := store.requests
		if err := r.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		return store.requests - before
	}
	declared := func(name string) (d Declaration) {
		t.Helper()
		locks, _, err := Load(t.Context(), store, 1, driver.DayOf(time.Now())+1)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range locks {
			if l.Name == name && len(l.Declared) == 1 {
				d = l.Declared[0]
			}
		}
		return d
	}
	flush()
	first, told := today, 0
	for range 29 {
		today++
		granted(r, "busy", 1)
		if got := flush(); got != 3 { // its day, the sum, and the declarations
			t.Fatalf("%d requests for a day's counts, want 3", got)
		}
		if d := declared("idle"); d.Told == today {
			told++
		} else if today-d.KnownOn() >= tellEvery {
			t.Fatalf("on day %d it is known last of day %d", today, d.KnownOn())
		}
	}
	if told != 4 {
		t.Errorf("told %d times in 29 days, want 4", told)
	}
	if d := declared("idle"); d.Last != first || d.UsedOn(today) || d.First != first {
		t.Errorf("%+v, want that it was in use on the first day only", d)
	}
	if d := declared("busy"); d.Last != today || d.Told != 0 {
		t.Errorf("%+v, want that it was in use until today, and nothing more told", d)
	}
	today -= 20 // a clock that was ahead is set back: what has been told for a day to come is told again
	granted(r, "busy", 1)
	if flush(); r.entries["idle"].sentOn != today {
		t.Errorf("told for day %d, want %d", r.entries["idle"].sentOn, today)
	}
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A program that uses none of its locks makes no request because time passes.
func TestIdleProgramIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := newLedger()
		r := started(store, nil)
		r.Declare("idle", holdlock.LockOptions{TTL: time.Minute})
		time.Sleep(60 * 24 * time.Hour)
		store.mu.Lock()
		if store.requests != 1 {
			t.Errorf("%d requests in 60 days, want 1", store.requests)
		}
		store.mu.Unlock()
		if err := r.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
}
