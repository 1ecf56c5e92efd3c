package review

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/memhold"
	"github.com/holdlock/holdlock/review/ledger"
)

// A program that runs on still has the locks that it does not use. One that has ended has none any more, and is not told to take them out.
func TestIdleInALongLivedProgram(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(200 * day)
		m := &calendar{t: t, store: memhold.NewStore(), start: time.Now(), end: time.Now().Add(365 * day)}
		p, ended := m.program(), m.program()
		o := holdlock.LockOptions{DoubleRun: holdlock.Costly}
		p.lock("never", o)
		early, busy := p.lock("early", o), p.lock("busy", o)
		_ = run(ended.lock("gone", o), time.Second)
		ended.quit()
		look := func(days int) map[string]*Finding {
			now := time.Now()
			period := Period{now.AddDate(0, 0, -days), now}
			locks, problems, err := ledger.Load(context.Background(), memhold.NewDriver(&memhold.Options{Store: m.store}), driver.DayOf(period.From), driver.DayOf(now)+1)
			if err != nil || len(problems) > 0 {
				t.Fatal(err, problems)
			}
			found := map[string]*Finding{}
			for _, f := range JudgeAll(locks, period) {
				if f.Kind == "unused" {
					found[f.Lock] = &f
				}
			}
			return found
		}
		for d := range 60 {
			if d < 8 {
				_ = run(early, time.Second)
			}
			_ = run(busy, time.Second)
			time.Sleep(day)
			if d < 30 {
				continue
			}
			found := look(30)
			if found["never"] == nil || found["early"] == nil {
				t.Fatalf("after %d days: %v, want that two are unused", d, found)
			}
			if found["busy"] != nil || found["gone"] != nil {
				t.Fatalf("after %d days: %v, want only what a program has and does not use", d, found)
			}
		}
		// Until when it is known to be declared is told within a week.
		_, told, _ := strings.Cut(look(30)["never"].Evidence, "known last of ")
		when, err := time.Parse(time.DateOnly, told[:len(time.DateOnly)])
		if ago := time.Since(when); err != nil || ago > 8*day || ago < 0 {
			t.Errorf("it is known last %v before: %q, %v", ago, told, err)
		}
		if got := look(100)["early"]; got == nil || !strings.Contains(got.Evidence, "on 8 days in all") {
			t.Errorf("found %+v, want that it was used on 8 days", got)
		}
		p.quit()
	})
}
