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
