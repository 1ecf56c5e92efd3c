package review

import (
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/review/ledger"
)

// What is said of an experiment: how many, since when, and what to do.
func TestInShadow(t *testing.T) {
	first := driver.DayOf(end) - 20
	of := func(runs, overlaps, unseen uint64) *ledger.Lock {
		d := costly
		d.Shadow, d.First, d.Last = true, first, driver.DayOf(end)
		l := made(d, map[ledger.Counter]uint64{
			ledger.Attempts: runs, ledger.ShadowRuns: runs, ledger.Granted: runs - overlaps - unseen, ledger.Overlaps: overlaps, ledger.Contended: overlaps, ledger.Unseen: unseen,
		})
		enforced := &ledger.Usage{LastTry: first.Start().Add(-time.Hour)} // of the days before it
		enforced.Counts[ledger.Attempts], enforced.Counts[ledger.Contended] = 10_000, 500
		l.Days[first-1] = enforced
		return l
	}
	for _, c := range []struct {
		lock *ledger.Lock
		want []string
	}{
		{of(299, 0, 0), []string{"of 299 runs 0 overlapped", "too little", "since 2026-03-11"}},
		{of(300, 0, 0), []string{"of 300 runs 0 overlapped", "under 1%", "take it out"}},
		{of(300, 0, 1), []string{"of 1 nobody knows", "too little"}},
		{of(300, 2, 0), []string{"2 overlapped", "enforce"}},
	} {
		found := Judge(c.lock, month)
		if len(found) != 1 {
			t.Fatalf("found %+v", found)
		}
		for _, want := range c.want {
			if text := found[0].Evidence + "; " + found[0].Advice; !strings.Contains(text, want) {
				t.Errorf("%q does not say %q", text, want)
			}
		}
	}
	sheet := Sheet(of(300, 2, 0), month, driver.Traits{Name: "memory"})
	for i, want := range map[int]string{2: "nothing", 4: "being tried"} {
		if sheet[i].Verdict != want {
			t.Errorf("%s: %q, want %q", sheet[i].Question, sheet[i].Verdict, want)
		}
	}
}
