package review

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/review/ledger"
)

// A leader that stops when it is told of its loss, in an outage, has not run beside its successor, which begins when the store is back.
// One that runs on may have, and one that was killed.
func TestLeaderInAnOutage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		runsOn   time.Duration
		killed   bool
		severity Severity
		says     string
	}{
		{"stops", 0, false, Note, "nobody ran beside it"},
		{"runs on", 10 * second, false, Error, "1 lease was not released by its holder"},
		{"killed", 0, true, Error, "1 lease was not released by its holder"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			lived(t, func(m *calendar) {
				p, q := m.program(), m.program()
				o := declared(15 * second)
				o.Wait, o.MaxHold = holdlock.Forever, holdlock.Forever
				leads := p.lock("l", o)
				m.beside(func() {
					lease, err := leads.TryAcquire(context.Background())
					if err != nil {
						t.Error(err)
						return
					}
					<-lease.Done()
					time.Sleep(c.runsOn)
					_ = lease.Release(context.Background())
				})
				m.until(0.05)
				p.away()
				q.away()
				if c.killed {
					p.kill()
				}
				time.Sleep(20 * minute)
				p.back()
				q.back()
				_ = run(q.lock("l", o), hour)
				q.quit()
				if !c.killed {
					p.quit()
				}
			}, func(t *testing.T, l *ledger.Lock, p Period) {
				var found *Finding
				for _, f := range Judge(l, p) {
					if f.Kind == "lapsed" {
						found = &f
					}
				}
				if found == nil || found.Severity != c.severity || !strings.Contains(found.Evidence, c.says) {
					t.Errorf("found %+v, want %s %q", found, c.severity, c.says)
				}
			})
		})
	}
}

// The holder of a term tells of its loss, and its successor of its lapse: that is one, and not two. Which terms are in both is not known.
func TestLossesAreCountedOnce(t *testing.T) {
	for _, c := range []struct {
		lapsed, lost uint64
		says         string
	}{
		{0, 0, "0 losses that may have been one"},
		{1, 0, "1 loss that may have been one"},
		{0, 2, "2 losses that may have been one"},
		{3, 3, "3 to 6 losses that may have been one: 3 that successors have found and 3 that holders have told of, and a term may be in both"},
		{1, 4, "4 to 5 losses that may have been one: 1 that successors have found and 4"},
	} {
		l := made(costly, map[ledger.Counter]uint64{ledger.Granted: 100, ledger.Contended: 1, ledger.Lapsed: c.lapsed, ledger.LostPaused: c.lost})
		if why := Sheet(l, month, driver.Traits{Name: "test"})[3].Why; !strings.Contains(why, "; seen in this period: "+c.says) {
			t.Errorf("%d lapsed and %d lost: the sheet says %q, want %q", c.lapsed, c.lost, why, c.says)
		}
	}
}

// Where it may have been something else than a killed holder or a TTL that is too tight, that is said, and is as severe.
func TestOtherReasons(t *testing.T) {
	ok := map[ledger.Counter]uint64{ledger.Granted: 500, ledger.Contended: 1}
	with := func(counts ...uint64) map[ledger.Counter]uint64 {
		all := map[ledger.Counter]uint64{}
		for c, n := range ok {
			all[c] = n
		}
		for i := 0; i < len(counts); i += 2 {
			all[ledger.Counter(counts[i])] = counts[i+1]
		}
		return all
	}
	twice := made(costly, with(uint64(ledger.LostUnreachable), 8))
	twice.Days[driver.DayOf(end)-5] = &ledger.Usage{LastTry: end.Add(-5 * day)}
	twice.Days[driver.DayOf(end)-5].Counts[ledger.LostUnreachable] = 1
	sum := made(costly, with(uint64(ledger.LostUnreachable), 8))
	for _, u := range sum.Days {
		u.Covers = 10
	}
	const outage, cut = "all of them on 2026-03-30", "and a lease that is not released then ends like that"
	for _, c := range []struct {
		name, kind, text string
		says             bool
		severity         Severity
		lock             *ledger.Lock
	}{
		{"one day", "TTL too tight", outage, true, Warning, made(costly, with(uint64(ledger.LostUnreachable), 8))},
		{"two days", "TTL too tight", outage, false, Warning, twice},
		{"a sum of days", "TTL too tight", outage, false, Warning, sum},
		{"paused", "TTL too tight", outage, false, Warning, made(costly, with(uint64(ledger.LostUnreachable), 7, uint64(ledger.LostPaused), 1))},
		{"as many at MaxHold", "lapsed", cut, true, Error, made(costly, with(uint64(ledger.Lapsed), 3, uint64(ledger.LostMaxHold), 3))},
		{"fewer at MaxHold", "lapsed", cut, false, Error, made(costly, with(uint64(ledger.Lapsed), 3, uint64(ledger.LostMaxHold), 2))},
	} {
		ok := false
		for _, f := range Judge(c.lock, month) {
			if f.Kind == c.kind {
				ok = f.Severity == c.severity && strings.Contains(f.Evidence, c.text) == c.says
			}
		}
		if !ok {
			t.Errorf("%s: found %+v, want %s %s, and that it says %q: %v", c.name, Judge(c.lock, month), c.severity, c.kind, c.text, c.says)
		}
	}
}
