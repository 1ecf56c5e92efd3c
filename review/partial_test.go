package review

import (
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/review/ledger"
)

// What could not be read may have been anything: nothing is held against a lock because it is not among what could.
func TestPartialRecords(t *testing.T) {
	fenced := costly
	fenced.Guard = holdlock.Fenced
	shadow := costly
	shadow.Shadow = true
	off := costly
	off.RenewOff, off.TTL = true, time.Hour
	idle := made(costly, nil)
	idle.Days = nil
	for _, c := range []struct {
		name, all, partial string
		lock               *ledger.Lock
		verdict            string // of the fifth question, where all is known
	}{
		{"idle", "unused", "", idle, "not used"},
		{"uncontended", "uncontended", "", made(costly, map[ledger.Counter]uint64{ledger.Attempts: 300}), "perhaps not"},
		{"guard unseen", "guard unseen", "", made(fenced, map[ledger.Counter]uint64{ledger.Contended: 1}, many(20, time.Second)...), "not used"},
		{"short holds", "TTL too long", "", made(off, map[ledger.Counter]uint64{ledger.Attempts: 100, ledger.Granted: 100, ledger.Contended: 1}, many(100, time.Second)...), "yes"},
		{"lapsed", "lapsed", "lapsed", made(costly, map[ledger.Counter]uint64{ledger.Attempts: 9, ledger.Contended: 1, ledger.Lapsed: 1}), "yes"},
		{"shadow", "shadow", "shadow", made(shadow, map[ledger.Counter]uint64{ledger.Attempts: 300, ledger.ShadowRuns: 300}), "being tried"},
	} {
		if got := kinds(Judge(c.lock, month)); got != c.all {
			t.Errorf("%s: found %q, want %q", c.name, got, c.all)
		}
		if got := Sheet(c.lock, month, driver.Traits{})[4]; got.Verdict != c.verdict {
			t.Errorf("%s: the sheet says %+v, want %q", c.name, got, c.verdict)
		}
		c.lock.Partial = true
		found := Judge(c.lock, month)
		if got := kinds(found); got != c.partial {
			t.Errorf("%s, and some cannot be read: found %q, want %q", c.name, got, c.partial)
		}
		if c.name == "shadow" && (len(found) != 1 || strings.Contains(found[0].Advice, "take it out")) {
			t.Errorf("%+v", found)
		}
		sheet := Sheet(c.lock, month, driver.Traits{})
		if v := sheet[4].Verdict; (v == "not used" || v == "perhaps not") || sheet[0].Verdict == "yes" || !strings.Contains(sheet[4].Why, "could not be read") {
			t.Errorf("%s, and some cannot be read: the sheet says %+v", c.name, sheet)
		}
	}
}
