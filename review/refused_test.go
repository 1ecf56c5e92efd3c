package review

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/review/ledger"
)

// A job whose lock is refused at each use never runs. That is said, and not that nobody uses the lock.
func TestRefused(t *testing.T) {
	t.Parallel()
	harmful := declared(30 * second)
	harmful.DoubleRun = holdlock.Harmful
	accepted := harmful
	accepted.AcceptRisk = "it is reconciled at night"
	for _, c := range []struct {
		name, want, says string
		then             *holdlock.LockOptions // that it is declared as in the end
	}{
		{"always", "refused", "120 attempts were refused, and none was granted: the job does not run; a double run is declared harmful and no Guard is declared", nil},
		{"until the risk is accepted", "refused risk accepted", "and 20 attempts were granted", &accepted},
		{"until it is declared otherwise", "", "", func() *holdlock.LockOptions { o := declared(30 * second); return &o }()},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			lived(t, func(m *calendar) {
				p := m.program()
				l := p.lock("l", harmful)
				for range 120 {
					if err := run(l, second); !errors.Is(err, holdlock.ErrRefused) {
						t.Errorf("%v, want that it is refused", err)
					}
					_ = l.Usable() // asks, and is no attempt
					time.Sleep(4 * hour)
				}
				if c.then != nil {
					l = p.lock("l", *c.then)
					for range 20 {
						if err := run(l, second); err != nil {
							t.Error(err)
						}
						time.Sleep(4 * hour)
					}
				}
				p.quit()
			}, func(t *testing.T, l *ledger.Lock, p Period) {
				says(t, Judge(l, p), c.want, c.says)
				why := Sheet(l, p, driver.Traits{})[4]
				if c.then == nil && (why.Verdict != Unknown || !strings.Contains(why.Why, "120 attempts were refused")) {
					t.Errorf("the sheet says %+v", why)
				}
			})
		})
	}
}
