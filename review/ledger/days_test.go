package ledger

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

// The days on which a lock was used are known for as long as its counts are, also where ten of them are one record; a declaration is no use.
func TestDaysOfUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLedger()
		begin := driver.DayOf(time.Now())
		var want []driver.Day
		for day := range driver.Day(60) {
			r := started(l, nil)
			r.Declare("a", holdlock.LockOptions{TTL: time.Minute})
			switch {
			case day%7 == 2:
				granted(r, "a", 2)
				want = append(want, begin+day)
			case day%13 == 0: // a term stands
				r.Observe(holdlock.Event{Kind: holdlock.Renewed, Name: "a"})
				want = append(want, begin+day)
			case day%11 == 0: // what ends was begun before
				r.Observe(holdlock.Event{Kind: holdlock.Released, Name: "a", Held: time.Hour})
			}
			if err := r.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(24 * time.Hour)
		}
		locks, problems, err := Load(t.Context(), l, begin, begin+60)
		if err != nil || len(problems) > 0 || len(locks) != 1 {
			t.Fatal(locks, problems, err)
		}
		if got := locks[0].DaysOfUse(); !slices.Equal(got, want) {
			t.Errorf("used on %v, want %v", got, want)
		}
		if sums := slices.ContainsFunc(mapValues(locks[0].Days), func(u *Usage) bool { return u.Covers == spanDays }); !sums {
			t.Error("control: there is no sum")
		}
		for _, u := range locks[0].Days { // as an older release has written it
			u.Used = 0
		}
		if got := locks[0].DaysOfUse(); len(got) == 0 || len(got) >= len(want) || !slices.Contains(want, got[len(got)-1]) {
			t.Errorf("used on %v, want some of %v", got, want)
		}
	})
}

func mapValues(days map[driver.Day]*Usage) (list []*Usage) {
	for _, u := range days {
		list = append(list, u)
	}
	return list
}

// A term that was left and one that lapsed have the same mark if they are the same, and a record keeps the latest of many.
func TestTermMarks(t *testing.T) {
	l := newLedger()
	for flush := range 3 {
		r := started(l, nil)
		for i := range 60 {
			nonce := string(rune('a'+flush)) + string(rune('a'+i))
			r.Observe(holdlock.Event{Kind: holdlock.Unreleased, Name: "a", Abandoned: true, Left: &driver.Ref{Key: "a", Nonce: nonce}})
			r.Observe(holdlock.Event{Kind: holdlock.Lapsed, Name: "a", Ending: driver.Lapsed, Prior: &driver.Term{Nonce: nonce}})
		}
		r.Observe(holdlock.Event{Kind: holdlock.Lapsed, Name: "a", Ending: driver.Lapsed}) // the store does not know which
		if err := r.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	u := total(t, l, "a")
	if u.Get(Lapsed) != 183 || u.Get(Abandoned) != 180 || len(u.LapsedTerms) != maxTerms || !slices.Equal(u.LapsedTerms, u.AbandonedTerms) {
		t.Errorf("%d lapsed, %d left, marks %x and %x", u.Get(Lapsed), u.Get(Abandoned), u.LapsedTerms, u.AbandonedTerms)
	}
	for i := range 60 {
		if m := markOf("c" + string(rune('a'+i))); !slices.Contains(u.LapsedTerms, m) {
			t.Errorf("the mark of the latest term %d is gone", i)
		}
	}
}
