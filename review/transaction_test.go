package review

import (
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/review/ledger"
)

// uses takes a lock in transactions, at some distance from each other.
func uses(m *calendar, o holdlock.LockOptions, n int, gap time.Duration, atOnce, doubtful bool, kind holdlock.EventKind) {
	p := m.program()
	l := p.lock("l", o)
	for range n {
		u, err := l.InTransaction()
		if err != nil {
			m.t.Fatal(err)
		}
		if atOnce {
			u.AtOnce()
		}
		if doubtful {
			u.Doubtful()
		}
		u.Ended(kind, nil)
		time.Sleep(gap)
	}
	p.quit()
}

// Of a lock in transactions it is known whom TryLock met, and not whom Lock waited for.
func TestInTransactions(t *testing.T) {
	t.Parallel()
	harmful := declared(hour)
	harmful.DoubleRun = holdlock.Harmful

	const last = "Is it still needed?"
	for _, c := range []struct {
		name        string
		live        func(m *calendar)
		want, text  string
		verdict, at string // of the last question
	}{
		{"waits in the server", func(m *calendar) {
			uses(m, harmful, 401, hour, false, false, holdlock.Granted)
		}, "", "", Unknown, "none of 0 attempts is known to have met another holder; of 401 more, in transactions, only the server knows"},
		{"waits, and some are refused", func(m *calendar) {
			uses(m, harmful, 401, hour, false, false, holdlock.Granted)
			uses(m, harmful, 40, second, true, false, holdlock.Skipped)
		}, "", "", "yes", "40 of 40 attempts met another holder; of 401 more"},
		{"maybe there is no row", func(m *calendar) {
			uses(m, harmful, 401, hour, true, true, holdlock.Granted)
			uses(m, harmful, 40, second, true, true, holdlock.Skipped)
		}, "", "", Unknown, "none of 401 attempts is known to have met another holder; of 40 more"},
		{"tries and meets nobody", func(m *calendar) {
			uses(m, harmful, 401, hour, true, false, holdlock.Granted)
		}, "uncontended", "keep it: a double run is declared harmful", "perhaps not", "none of 401"},
		{"costly", func(m *calendar) {
			uses(m, declared(hour), 401, hour, true, false, holdlock.Granted)
		}, "uncontended", "no shadow mode", "perhaps not", "none of 401"},
		{"nobody gets it", func(m *calendar) {
			uses(m, harmful, 30, hour, false, false, holdlock.Granted)
			uses(m, harmful, 100, hour, true, false, holdlock.Skipped)
		}, "blocking", "100 attempts were skipped, and for the last 4.12 d of that nobody got it", "yes", "100 of 100"},
	} {
		t.Run(c.name, func(t *testing.T) {
			lived(t, c.live, func(t *testing.T, l *ledger.Lock, p Period) {
				says(t, Judge(l, p), c.want, c.text)
				sheet := Sheet(l, p, driver.Traits{FrozenBlocks: true, Transactional: true})
				if a := sheet[4]; a.Question != last || a.Verdict != c.verdict || !strings.Contains(a.Why, c.at) {
					t.Errorf("%+v, want %s, %q", a, c.verdict, c.at)
				}
				if got := sheet[2].Verdict; sheet[0].Verdict != "no expiry" || got != "free at once if its holder dies, never if it hangs" || strings.Contains(sheet[2].Why, "one term") {
					t.Errorf("%+v", sheet[:3])
				}
			})
		})
	}
	// The advice is one that can be followed.
	for text, o := range map[string]ledger.Declaration{
		"keep it: a double run is declared harmful": {DoubleRun: holdlock.Harmful, AcceptRisk: "x"},
		"declare what a double run costs; if":       {},
		"not while a fence relies on its tokens":    {DoubleRun: holdlock.Costly, Guard: holdlock.Fenced},
		"try shadow mode first":                     {DoubleRun: holdlock.Costly},
	} {
		o.TTL = time.Minute
		for _, f := range Judge(made(o, map[ledger.Counter]uint64{ledger.Attempts: 300}), month) {
			if f.Kind == "uncontended" && !strings.Contains(f.Advice, text) {
				t.Errorf("%+v, want %q", f, text)
			}
		}
	}
}

// A lock that is taken in transactions and outside of them has both answers.
func TestPartlyInTransactions(t *testing.T) {
	l := made(costly, map[ledger.Counter]uint64{ledger.Attempts: 10, ledger.InTx: 4, ledger.Granted: 10}, time.Second)
	if a := Sheet(l, month, driver.Traits{})[2]; !strings.HasPrefix(a.Verdict, "free after 30 s") || !strings.Contains(a.Why, "4 of 10 attempts were in transactions") {
		t.Errorf("%+v", a)
	}
}

// Terms without tokens are not one term: 40 runs each of which one attempt met are well.
func TestTermsWithoutTokens(t *testing.T) {
	for token, want := range map[holdlock.Token]string{0: "", 7: "blocking"} { // the control is one term
		l := made(costly, map[ledger.Counter]uint64{ledger.Attempts: 80, ledger.Granted: 40, ledger.Skipped: 40, ledger.Contended: 40}, many(40, 24*time.Millisecond)...)
		for _, u := range l.Days {
			u.Counts[ledger.Lapsed], u.Counts[ledger.Granted] = 0, 41 // one has not told its end
			u.Blocks = []ledger.Block{{Token: token, Skips: 40, First: end.Add(-48 * time.Hour), Last: end.Add(-time.Hour)}}
		}
		if got := kinds(Judge(l, month)); got != want {
			t.Errorf("token %d: %q, want %q", token, got, want)
		}
		if why := Sheet(l, month, driver.Traits{})[2].Why; strings.Contains(why, "behind one term") != (token != 0) {
			t.Errorf("token %d: %q", token, why)
		}
	}
}

// A store in which a holder that stands still keeps its key is not said to free it after the TTL.
func TestNeverReleasedInAStoreThatBlocks(t *testing.T) {
	off := costly
	off.RenewOff = true
	for _, d := range []ledger.Declaration{off, costly} {
		for _, blocks := range []bool{false, true} {
			a := Sheet(made(d, nil), month, driver.Traits{Name: "sessions", FrozenBlocks: blocks})[2]
			if strings.Contains(a.Why, "in this store (sessions) a process that stands still keeps it") != blocks ||
				d.RenewOff && strings.Contains(a.Verdict, "not while its process stands still") != blocks {
				t.Errorf("blocks: %v: %+v", blocks, a)
			}
		}
	}
}

// A client that has nothing but transactions says so of a lock before its first use.
func TestBeforeTheFirstTransaction(t *testing.T) {
	l := made(costly, nil)
	for transactional, want := range map[bool]string{true: "free at once if its holder dies", false: "free after 30 s if its holder dies"} {
		if a := Sheet(l, month, driver.Traits{Transactional: transactional})[2]; !strings.Contains(a.Verdict, want) {
			t.Errorf("%+v, want %q", a, want)
		}
	}
	harmful := costly
	harmful.DoubleRun = holdlock.Harmful
	l = made(harmful, map[ledger.Counter]uint64{ledger.Attempts: 400, ledger.InTx: 400})
	if found := Judge(l, month); kinds(found) != "uncontended" || !strings.HasPrefix(found[0].Advice, "keep it") || strings.Contains(found[0].Advice, "try shadow mode then") {
		t.Errorf("a harmful lock in transactions: %+v", found)
	}
}
