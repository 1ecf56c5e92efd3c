package review

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/review/ledger"
)

var (
	end    = time.Date(2026, 3, 31, 0, 0, 0, 0, time.UTC)
	month  = Period{end.AddDate(0, 0, -30), end}
	costly = ledger.Declaration{TTL: 30 * time.Second, MaxHold: 24 * time.Hour, DoubleRun: holdlock.Costly}
)

// daily says that a declaration was in use on all its days.
func daily(d ledger.Declaration) ledger.Declaration {
	d.Used = 1<<(d.Last-d.First+1) - 1
	return d
}

// made is a lock with one day of usage and one declaration that has been in use for long.
func made(d ledger.Declaration, counts map[ledger.Counter]uint64, holds ...time.Duration) *ledger.Lock {
	if d.First == 0 {
		d.First, d.Last = driver.DayOf(month.From)-100, driver.DayOf(end)
	}
	d = daily(d)
	u := &ledger.Usage{LastTry: end.Add(-time.Hour), LastGrant: end.Add(-time.Hour)}
	for c, n := range counts {
		u.Counts[c] = n
	}
	for _, h := range holds {
		u.Hold.Record(h)
	}
	return &ledger.Lock{Name: "l", Days: map[driver.Day]*ledger.Usage{driver.DayOf(end) - 1: u}, Declared: []ledger.Declaration{d}}
}

func many(n int, d time.Duration) (list []time.Duration) {
	for range n {
		list = append(list, d)
	}
	return list
}

// Each threshold, on both sides.
func TestThresholds(t *testing.T) {
	with := func(change func(*ledger.Declaration)) ledger.Declaration {
		d := costly
		change(&d)
		return d
	}
	type counts = map[ledger.Counter]uint64
	shadow := with(func(d *ledger.Declaration) { d.Shadow = true })
	off := with(func(d *ledger.Declaration) { d.RenewOff, d.TTL = true, 100*time.Second })
	for _, c := range []struct {
		name string
		lock *ledger.Lock
		want string // "kind severity" of all findings
	}{
		{"nothing", made(costly, nil), ""},
		{"a lapse", made(costly, counts{ledger.Granted: 10, ledger.Lapsed: 1}), "lapsed error"},
		{"a harmless lapse", made(with(func(d *ledger.Declaration) { d.DoubleRun = holdlock.Harmless }), counts{ledger.Lapsed: 1}), "lapsed warning"},
		{"79% of the trust", made(off, nil, append(many(20, time.Second), 71*time.Second)...), ""},
		{"80% of the trust", made(off, nil, append(many(20, time.Second), 72*time.Second)...), "overrunning warning"},
		{"80% of the trust, few runs", made(off, nil, append(many(18, time.Second), 72*time.Second)...), ""},
		{"all of the trust", made(off, nil, 90*time.Second), "overrunning error"},
		{"expired", made(off, counts{ledger.LostExpired: 1}, time.Second), "overrunning error"},
		{"MaxHold", made(costly, counts{ledger.LostMaxHold: 1}, time.Hour), "overrunning error"},
		{"80% of MaxHold", made(costly, nil, append(many(19, time.Second), 20*time.Hour)...), "overrunning warning"},
		{"one lost of 500", made(costly, counts{ledger.Granted: 500, ledger.LostGone: 1}), "lost warning"},
		{"20 lost of 500", made(costly, counts{ledger.Granted: 500, ledger.LostGone: 20}), "lost error"},
		{"one failed of 1000", made(costly, counts{ledger.Attempts: 1000, ledger.Contended: 1, ledger.Failed: 1}), ""},
		{"10 failed of 1000", made(costly, counts{ledger.Attempts: 1000, ledger.Contended: 1, ledger.Failed: 10}), "not run warning"},
		{"100 failed of 1000", made(costly, counts{ledger.Attempts: 1000, ledger.Contended: 1, ledger.Failed: 100}), "not run error"},
		{"4 of 20 gave up", made(costly, counts{ledger.Waited: 20, ledger.GaveUp: 4}), ""},
		{"8 of 20 gave up", made(costly, counts{ledger.Waited: 20, ledger.GaveUp: 8}), "starving warning"},
		{"all of 19 gave up", made(costly, counts{ledger.Waited: 19, ledger.GaveUp: 19}), ""},
		{"two paused", made(costly, counts{ledger.Granted: 500, ledger.LostPaused: 2}), "lost warning"},
		{"five paused", made(costly, counts{ledger.Granted: 500, ledger.LostPaused: 5}), "lost warning, TTL too tight warning"},
		{"299 uncontended", made(costly, counts{ledger.Attempts: 299}), ""},
		{"300 uncontended", made(costly, counts{ledger.Attempts: 300}), "uncontended note"},
		{"300, one contended", made(costly, counts{ledger.Attempts: 300, ledger.Contended: 1}), ""},
		{"undeclared", made(with(func(d *ledger.Declaration) { d.DoubleRun = holdlock.Undeclared }), nil), "undeclared warning"},
		{"harmless", made(with(func(d *ledger.Declaration) { d.DoubleRun = holdlock.Harmless }), counts{ledger.Attempts: 1}), "declared idempotent note"},
		{"risk", made(with(func(d *ledger.Declaration) { d.AcceptRisk = "x" }), nil), "risk accepted note"},
		{"fence unseen", made(with(func(d *ledger.Declaration) { d.Guard = holdlock.Fenced }), nil, many(20, time.Second)...), "guard unseen warning"},
		{"fence seen", made(with(func(d *ledger.Declaration) { d.Guard = holdlock.Fenced }), counts{ledger.TokenRead: 1}, many(20, time.Second)...), ""},
		{"long TTL, rare", made(with(func(d *ledger.Declaration) { d.TTL = 24 * time.Hour }), counts{ledger.Granted: 20, ledger.Contended: 1}), ""},
		{"long TTL, often", made(with(func(d *ledger.Declaration) { d.TTL = 24 * time.Hour }), counts{ledger.Granted: 300, ledger.Contended: 1}), "TTL too long warning"},
		{"long TTL, by key", made(with(func(d *ledger.Declaration) { d.TTL = 24 * time.Hour }), counts{ledger.Granted: 300, ledger.Keyed: 300}), ""},
		{"shadow, new", made(shadow, nil), "shadow note"},
		{"shadow, nobody met", made(shadow, counts{ledger.Attempts: 300, ledger.ShadowRuns: 300, ledger.Granted: 300}), "shadow note"},
		{"shadow, met", made(shadow, counts{ledger.Attempts: 300, ledger.Overlaps: 1, ledger.Contended: 1}), "shadow warning"},
		{"shadow, harmless", made(with(func(d *ledger.Declaration) { d.DoubleRun, d.Shadow = holdlock.Harmless, true }), counts{ledger.Attempts: 9, ledger.Overlaps: 1}), "shadow note"},
		{"shadow is judged by nothing else", made(shadow, counts{ledger.Lapsed: 3, ledger.LostGone: 9, ledger.LostMaxHold: 3, ledger.Granted: 9, ledger.Attempts: 9}), "shadow note"},
		{"expiry 20 times the work", made(off, nil, many(100, 5*time.Second)...), ""},
		{"expiry over 20 times the work", made(off, nil, many(100, 4*time.Second)...), "TTL too long warning"},
	} {
		got := ""
		for _, f := range Judge(c.lock, month) {
			got += ", " + f.Kind + " " + f.Severity.String()
			if f.Lock != "l" || f.Evidence == "" || f.Advice == "" {
				t.Errorf("%s: %+v", c.name, f)
			}
		}
		if got = strings.TrimPrefix(got, ", "); got != c.want {
			t.Errorf("%s: found %q, want %q", c.name, got, c.want)
		}
	}
}

// What is known of which terms lapsed and which were left behind decides; what is not known is said.
func TestLapsesAndReleases(t *testing.T) {
	marks := func(from, n int) (list []ledger.TermMark) {
		for i := range n {
			list = append(list, ledger.TermMark(from+i))
		}
		return list
	}
	for _, c := range []struct {
		name              string
		lapsed, abandoned uint64
		known, left       []ledger.TermMark
		open, may         uint64
		want              Severity
		says              string
	}{
		{"killed", 3, 0, marks(1, 3), nil, 3, 0, Error, "3 leases were not released by their holders, which were killed"},
		{"not released", 3, 3, marks(1, 3), marks(1, 3), 0, 0, Note, "nobody ran beside them"},
		{"others were left", 3, 50, marks(1, 3), marks(100, 32), 3, 3, Error, "which 3 of them may be at most"},
		{"others were left, and all are known", 3, 30, marks(1, 3), marks(100, 30), 3, 0, Error, "3 leases were not released by their holders"},
		{"one of three", 3, 5, marks(1, 3), marks(3, 5), 2, 0, Error, "besides, 1 lease was over when the work had ended"},
		{"it is not told which", 3, 2, nil, marks(100, 2), 3, 2, Error, "which 2 of them may be at most"},
		{"an older release", 3, 3, nil, nil, 3, 3, Error, "which 3 of them may be at most"},
		{"an older release, and fewer were left", 3, 1, nil, nil, 3, 1, Error, "which 1 of them may be at most"},
		{"one is told, and one left is not known", 3, 1, marks(1, 1), nil, 3, 1, Error, "which 1 of them may be at most"},
	} {
		l := made(costly, map[ledger.Counter]uint64{ledger.Granted: 100, ledger.Contended: 1, ledger.Lapsed: c.lapsed, ledger.Abandoned: c.abandoned})
		for _, u := range l.Days {
			u.LapsedTerms, u.AbandonedTerms = c.known, c.left
		}
		if got := subjectOf(l, month).lapses(); got.open() != c.open || got.may != c.may {
			t.Errorf("%s: %+v, want %d open, of which %d may be over", c.name, got, c.open, c.may)
		}
		found := Judge(l, month)
		if len(found) != 1 || found[0].Severity != c.want || !strings.Contains(found[0].Evidence, c.says) {
			t.Errorf("%s: %+v, want %s %q", c.name, found, c.want, c.says)
		}
		if why := Sheet(l, month, driver.Traits{Name: "test"})[3].Why; !strings.Contains(why, times(c.open, "loss", "losses")+" that may have been one") {
			t.Errorf("%s: the sheet says %q", c.name, why)
		}
	}
}

// A host whose clock is a day ahead counts, and nobody is accused because two hosts do not agree about the time.
func TestClocksApart(t *testing.T) {
	l := made(costly, map[ledger.Counter]uint64{ledger.Attempts: 150, ledger.Contended: 1, ledger.Granted: 20, ledger.Released: 20}, many(20, 10*time.Second)...)
	ahead := &ledger.Usage{LastTry: end.Add(24 * time.Hour), LastGrant: end.Add(24 * time.Hour)}
	ahead.Counts[ledger.Attempts], ahead.Counts[ledger.Failed] = 150, 30
	l.Days[driver.DayOf(end)+1] = ahead
	for _, u := range l.Days { // both were skipped behind one term of ten seconds
		u.Blocks = []ledger.Block{{Token: 7, Skips: 6, First: end.Add(-24 * time.Hour), Last: end.Add(-24*time.Hour + 9*time.Second)}}
	}
	ahead.Blocks[0].First, ahead.Blocks[0].Last = end, end.Add(9*time.Second)
	found := Judge(l, month)
	if len(found) != 1 || found[0].Kind != "not run" || !strings.Contains(found[0].Evidence, "of 300") {
		t.Errorf("found %+v, want that 30 of 300 did not run", found)
	}
	for _, u := range l.Days { // control: as long as a term has not ended, it may have lasted so long
		u.Counts[ledger.Granted]++
	}
	if found = Judge(l, month); len(found) != 2 {
		t.Errorf("found %+v, want blocking as well", found)
	}
}

func TestBlocking(t *testing.T) {
	for _, c := range []struct {
		name      string
		skips     uint64
		took      time.Duration
		lastGrant time.Time
		want      string
	}{
		{"long", 10, 101 * time.Second, end, "warning"},
		{"few", 9, 101 * time.Second, end, ""},
		{"short", 10, 100 * time.Second, end, ""},
		{"still", 1000, 5 * 24 * time.Hour, end.Add(-5 * 24 * time.Hour), "error"},
	} {
		l := made(costly, map[ledger.Counter]uint64{ledger.Contended: 1, ledger.Granted: 21}, many(20, 10*time.Second)...)
		for _, u := range l.Days {
			u.LastGrant = c.lastGrant
			u.Blocks = []ledger.Block{{Token: 1, Skips: c.skips, First: end.Add(-c.took), Last: end}}
		}
		got := ""
		for _, f := range Judge(l, month) {
			got = f.Severity.String()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// A lock that nobody can get is told as that, however few runs there were before.
func TestBlockingForDays(t *testing.T) {
	ever := costly
	ever.MaxHold = holdlock.Forever
	week := Period{end.AddDate(0, 0, -7), end}
	for _, c := range []struct {
		name     string
		declared ledger.Declaration
		runs     int // of a second each
		skips    uint64
		took     time.Duration // until now
		period   Period
		want     string
	}{
		{"after nine runs", costly, 9, 200, 10 * day, month, "blocking error"},
		{"from the beginning", costly, 0, 600, 30 * day, month, "blocking error"},
		{"from the beginning of a week", costly, 0, 600, 7 * day, week, "blocking error"},
		{"from the beginning, and nothing ends it", ever, 0, 600, 30 * day, month, "blocking warning"},
		{"after nine runs, and nothing ends it", ever, 9, 200, 10 * day, month, "blocking warning"},
		{"after nine runs, for two days", costly, 9, 200, 2 * day, month, ""},
		{"ten skips", costly, 0, 10, 4 * day, month, "blocking error"},
		{"nine skips", costly, 0, 9, 4 * day, month, ""},
		{"a day that is looked at alone", costly, 0, 200, 23 * time.Hour, Period{end.AddDate(0, 0, -1), end}, ""},
	} {
		l := made(c.declared, map[ledger.Counter]uint64{
			ledger.Contended: c.skips, ledger.Skipped: c.skips, ledger.Attempts: c.skips + uint64(c.runs),
			ledger.Granted: uint64(c.runs),
		}, many(c.runs, time.Second)...)
		for _, u := range l.Days {
			u.LastGrant = time.Time{}
			if c.runs > 0 {
				u.LastGrant = end.Add(-c.took)
			}
			u.Blocks = []ledger.Block{{Token: 1, Skips: c.skips, First: end.Add(-c.took), Last: end.Add(-time.Hour)}}
		}
		got := ""
		for _, f := range Judge(l, c.period) {
			got += f.Kind + " " + f.Severity.String()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		lasted := c.took - time.Hour
		if c.runs > 0 {
			lasted -= min(day, lasted-2*time.Second) // a day may be due to the clocks
		}
		want := fmt.Sprintf("%d attempts skipped behind one term over %s", c.skips, span(lasted))
		if why := Sheet(l, c.period, driver.Traits{Name: "test"})[2].Why; !strings.Contains(why, want) {
			t.Errorf("%s: the sheet says %q, want %q", c.name, why, want)
		}
	}
}

func TestDrifted(t *testing.T) {
	today := driver.DayOf(end)
	for _, c := range []struct {
		name        string
		first, last driver.Day // of the second declaration; the first has been there for long and still is
		want        bool
	}{
		{"on one day", today, today, false},
		{"on two days", today - 1, today, false},
		{"on three days", today - 2, today, true},
		{"long ago", today - 90, today - 60, false},
	} {
		l := made(costly, nil)
		other := costly
		other.TTL, other.First, other.Last = time.Minute, c.first, c.last
		l.Declared = append(l.Declared, daily(other))
		found := Judge(l, month)
		if got := len(found) == 1 && found[0].Kind == "drifted" && strings.Contains(found[0].Evidence, "TTL is"); got != c.want {
			t.Errorf("%s: %+v, want %v", c.name, found, c.want)
		}
	}
}

func TestUnused(t *testing.T) {
	for _, c := range []struct {
		name  string
		last  time.Time
		since driver.Day
		used  int        // days before that
		every driver.Day // days between these
		want  string     // in the evidence or the advice
	}{
		{"13 days ago", end.Add(-13 * 24 * time.Hour), 0, 4, 1, ""},
		{"15 days ago", end.Add(-15 * 24 * time.Hour), 0, 4, 1, "last on 2026-03-16, on 5 days in all with 1 d between two of them at most"},
		{"15 days ago, and four times in all", end.Add(-15 * 24 * time.Hour), 0, 3, 1, ""},
		{"once a month", end.Add(-29 * 24 * time.Hour), 0, 0, 0, ""},
		{"every third day", end.Add(-15 * 24 * time.Hour), 0, 4, 3, "only if it is not to"},
		{"with pauses that are half as long", end.Add(-15*24*time.Hour - time.Minute), 0, 1, 8, ""},
		{"never", time.Time{}, 0, 0, 0, "--since 100d"},
		{"new", time.Time{}, driver.DayOf(end) - 5, 0, 0, ""},
	} {
		d := costly
		d.First, d.Last = c.since, driver.DayOf(end)
		l := made(d, nil)
		l.Days = map[driver.Day]*ledger.Usage{}
		if !c.last.IsZero() {
			for i := range driver.Day(c.used) + 1 {
				at := c.last.Add(-time.Duration(i*c.every) * 24 * time.Hour)
				l.Days[driver.DayOf(at)] = &ledger.Usage{LastTry: at}
			}
		}
		found := Judge(l, month)
		if len(found) > 1 || (len(found) == 1) != (c.want != "") || len(found) == 1 && !strings.Contains(found[0].Evidence+found[0].Advice, c.want) {
			t.Errorf("%s: %+v, want %q", c.name, found, c.want)
		}
	}
}

// A habit of long pauses, and a job that runs once a month: two months are looked at.
func TestRarelyUsed(t *testing.T) {
	long := Period{end.AddDate(0, 0, -100), end}
	for _, c := range []struct {
		name string
		ago  []int // days
		want bool
	}{
		{"every week, two weeks ago", []int{16, 23, 30, 37, 44}, true},
		{"every ten days", []int{19, 29, 39, 49, 59}, false},
		{"every ten days, three weeks ago", []int{22, 32, 42, 52, 62}, true},
		{"once a month", []int{30, 60, 90}, false},
		{"once a month, and two months ago", []int{63, 93}, true},
		{"for five days each month", []int{26, 27, 28, 29, 30, 56, 57, 58, 59, 60}, false},
	} {
		l := made(costly, nil)
		l.Days = map[driver.Day]*ledger.Usage{}
		for _, ago := range c.ago { // older days are kept as sums, with a bit for each
			at := end.Add(-time.Duration(ago) * 24 * time.Hour)
			first := driver.DayOf(at) - driver.DayOf(at)%10
			u := l.Days[first]
			if u == nil {
				u = &ledger.Usage{Covers: 10, LastTry: at}
				l.Days[first] = u
			}
			u.Used |= 1 << (driver.DayOf(at) - first)
		}
		if found := Judge(l, long); (kinds(found) == "unused") != c.want {
			t.Errorf("%s: %+v, want unused %v", c.name, found, c.want)
		}
	}
}

// A host whose clock is far ahead has declared the lock otherwise: it is not the declaration in use.
func TestDeclaredInTheFuture(t *testing.T) {
	l := made(costly, nil)
	ahead := ledger.Declaration{TTL: time.Minute, MaxHold: time.Hour, First: driver.DayOf(end) + 365, Last: driver.DayOf(end) + 365}
	l.Declared = append([]ledger.Declaration{daily(ahead)}, l.Declared...)
	if found := Judge(l, month); len(found) != 0 {
		t.Errorf("found %+v", found)
	}
	l.Declared[0].First, l.Declared[0].Last = driver.DayOf(end)+1, driver.DayOf(end)+1 // control: a day ahead it may be the newest
	if found := Judge(l, month); kinds(found) != "undeclared" {
		t.Errorf("control: found %+v", found)
	}
}

// The bounds against values from tables.
func TestWilson(t *testing.T) {
	for _, c := range []struct {
		k, n   uint64
		lo, hi float64
	}{{0, 0, 0, 1}, {0, 10, 0, 0.2129}, {5, 10, 0.2693, 0.7307}, {10, 10, 0.7871, 1}, {1, 1000, 0.00023, 0.0044}} {
		lo, hi := wilson(c.k, c.n)
		if math.Abs(lo-c.lo) > 0.0002 || math.Abs(hi-c.hi) > 0.0002 {
			t.Errorf("wilson(%d, %d) = %.5f, %.5f; want %.5f, %.5f", c.k, c.n, lo, hi, c.lo, c.hi)
		}
	}
}

// What is not known is said to be unknown.
func TestSheet(t *testing.T) {
	verdicts := func(l *ledger.Lock) (v []string) {
		for _, a := range Sheet(l, month, driver.Traits{Name: "test"}) {
			if a.Question == "" || a.Why == "" {
				t.Errorf("%+v", a)
			}
			v = append(v, a.Verdict)
		}
		return v
	}
	nothing := strings.Join(verdicts(&ledger.Lock{Name: "l"}), ", ")
	if want := "unknown, yes, unknown, unknown, not used"; nothing != want {
		t.Errorf("of nothing: %s; want %s", nothing, want)
	}
	harmful := costly
	harmful.DoubleRun = holdlock.Harmful
	known := strings.Join(verdicts(made(harmful, map[ledger.Counter]uint64{ledger.Attempts: 10, ledger.Contended: 2}, time.Second)), ", ")
	if want := "yes, yes, free after 30 s if its holder dies, after 1 d if it hangs, needs the database, yes"; known != want {
		t.Errorf("of much: %s; want %s", known, want)
	}
}
