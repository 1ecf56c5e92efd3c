package review

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/faultdriver"
	"github.com/holdlock/holdlock/memhold"
	"github.com/holdlock/holdlock/review/ledger"
)

// lived lets something happen to the lock "l", in virtual time through the real client, and calls judge with what is recorded of
// the last thirty days.
func lived(t *testing.T, live func(m *calendar), judge func(t *testing.T, l *ledger.Lock, p Period)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := &calendar{t: t, store: memhold.NewStore(), start: time.Now(), end: time.Now().Add(365 * 24 * time.Hour)}
		live(m)
		m.work.Wait()
		now := time.Now()
		judge(t, recorded(m), Period{now.AddDate(0, 0, -30), now})
		for _, f := range m.last {
			f()
		}
		for len(m.running) > 0 {
			m.running[0].quit()
		}
	})
}

// recorded is what the store has of the lock in the last thirty days.
func recorded(m *calendar) *ledger.Lock {
	now := time.Now()
	locks, problems, err := ledger.Load(context.Background(), memhold.NewDriver(&memhold.Options{Store: m.store}),
		driver.DayOf(now.AddDate(0, 0, -30)), driver.DayOf(now)+1)
	if err != nil || len(problems) > 0 || len(locks) != 1 {
		m.t.Fatal(locks, err, problems)
	}
	return locks[0]
}

// works runs a job n times, at each tick of a schedule, in a program of its own.
func works(m *calendar, o holdlock.LockOptions, every, job time.Duration, n int) {
	p := m.program()
	l := p.lock("l", o)
	for range n {
		next := time.Now().Add(every)
		_ = run(l, job)
		time.Sleep(time.Until(next))
	}
	p.quit()
}

// says checks the findings, and a text that is in what is said.
func says(t *testing.T, found []Finding, kinds_, text string) {
	t.Helper()
	said := ""
	for _, f := range found {
		said += f.Evidence + "; " + f.Advice + "\n"
	}
	if got := kinds(found); got != kinds_ || !strings.Contains(said, text) {
		t.Errorf("found %q, want %q and %q in:\n%s", got, kinds_, text, said)
	}
}

// A leader that stays attempts nothing, and nor do those who wait for it. Its lock is in use nevertheless, until it ends.
func TestLeaderIsInUse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		stands, gone time.Duration
		want, text   string
		verdict      string
	}{
		{25 * day, 0, "", "", Unknown},
		{40 * day, 0, "", "", "held"},
		{40 * day, 13 * day, "", "", "held"},
		{20 * day, 16 * day, "unused", "held last on 2000-01-20", "held"},
		{10 * day, 60 * day, "", "", "not used"}, // not declared in the period: there is nothing to take out
	} {
		lived(t, func(m *calendar) {
			o := declared(12 * hour) // it is renewed seldom, so that the test is fast
			o.MaxHold = holdlock.Forever
			p := m.program()
			lease, err := p.lock("l", o).Acquire(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(c.stands)
			if c.gone > 0 {
				p.kill()
				time.Sleep(c.gone)
			}
			m.after(func() { _ = lease.Release(context.Background()) })
		}, func(t *testing.T, l *ledger.Lock, p Period) {
			says(t, Judge(l, p), c.want, c.text)
			if a := Sheet(l, p, driver.Traits{})[4]; a.Verdict != c.verdict {
				t.Errorf("stood for %s, gone for %s: %+v, want %s", c.stands, c.gone, a, c.verdict)
			}
		})
	}
}

// A setting that was taken back, or an experiment that is over, is no drift: no day but those of the changes saw both.
func TestTakenBack(t *testing.T) {
	t.Parallel()
	one, other := declared(minute), declared(30*second)
	shadow := one
	shadow.Mode = holdlock.Shadow
	for _, b := range []holdlock.LockOptions{other, shadow} {
		lived(t, func(m *calendar) {
			for _, turn := range []struct {
				o    holdlock.LockOptions
				days int
			}{{one, 8}, {b, 4}, {one, 5}, {b, 4}, {one, 4}} { // not only once
				works(m, turn.o, 5*hour, minute, turn.days*24/5)
			}
		}, func(t *testing.T, l *ledger.Lock, p Period) {
			says(t, Judge(l, p), "", "")
		})
	}
}

// A roll-out that is taken back on the next day, once and again, is none either.
func TestRolledBackTwice(t *testing.T) {
	t.Parallel()
	one, other := declared(minute), declared(30*second)
	for _, c := range []struct{ days, want string }{ // a and b: one of them all day; x: first a, from noon on b; y: the reverse; c: both all day
		{"aaaaxyaaaaaxyaaaaaaa", ""},
		{"aaaaxyaaaaaaxbbbbbbb", ""},
		{"aaaaxyaaaxyaaaaxbbbb", ""},
		{"aaaaxbbyaaaaxbbbbbbb", ""},
		{"aaaacccaaaaaaaaaaaaa", "drifted"},
		{"aacaaaacaaaacaaaacaa", "drifted"},
		{"aaxyaaxyaaxyaaxyaaxy", "drifted"},
	} {
		t.Run(c.days, func(t *testing.T) {
			t.Parallel()
			lived(t, func(m *calendar) {
				for _, day := range c.days {
					switch day {
					case 'a':
						works(m, one, 6*hour, minute, 4)
					case 'b':
						works(m, other, 6*hour, minute, 4)
					case 'x':
						works(m, one, 6*hour, minute, 2)
						works(m, other, 6*hour, minute, 2)
					case 'y':
						works(m, other, 6*hour, minute, 2)
						works(m, one, 6*hour, minute, 2)
					default:
						m.beside(func() { time.Sleep(hour); works(m, other, 6*hour, minute, 3) })
						works(m, one, 6*hour, minute, 4)
					}
				}
			}, func(t *testing.T, l *ledger.Lock, p Period) {
				says(t, Judge(l, p), c.want, "")
			})
		})
	}
}

// A program that reads its configuration anew declares the lock once more, and does not differ from itself. Two that go on to differ do.
func TestReload(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		anew int // programs of two
		want string
	}{{"both", 2, ""}, {"one", 1, "drifted"}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			lived(t, func(m *calendar) {
				for i := range 2 {
					m.beside(func() {
						p := m.program()
						l := p.lock("l", declared(30*second))
						for n := range 28 * 4 {
							if n == 9*4 && i < c.anew {
								l = p.lock("l", declared(minute))
							}
							time.Sleep(time.Duration(i) * minute)
							_ = run(l, 2*minute)
							time.Sleep(6*hour - time.Duration(i+2)*minute)
						}
						p.quit()
					})
				}
			}, func(t *testing.T, l *ledger.Lock, p Period) {
				says(t, Judge(l, p), c.want, "")
				if ttl := l.Declared[0].TTL; c.anew == 2 && ttl != minute {
					t.Errorf("declared %+v", l.Declared)
				}
			})
		})
	}
}

// Terms that were left behind hide no holder that was killed: they explain their own lapse and no other one.
func TestReleasesHideNoKill(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		keyed   bool
		applied bool // only the answers do not come through
		left    int
		says    string
	}{
		{"none is left", true, false, 0, "5 leases were not released by their holders"},
		{"20 keys that nobody takes again", true, false, 20, "5 leases were not released by their holders"},
		{"more than are marked", true, false, 120, "only the release did not come through, which 5 of them may be at most"},
		{"releases whose answer is lost", false, true, 5, "5 leases were not released by their holders"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			lived(t, func(m *calendar) {
				p, o := m.program(), declared(10*second)
				l := p.lock("l", o)
				key := func(kind string, i int) *holdlock.Lock {
					if !c.keyed {
						return l
					}
					return l.For(fmt.Sprint(kind, i))
				}
				for i := range c.left {
					p.faults.SetScript(func(call faultdriver.Call) (f faultdriver.Fault) {
						if call.Op == faultdriver.Release {
							f.Err, f.Lose, f.Drop = context.DeadlineExceeded, c.applied, !c.applied
						}
						return f
					})
					_ = run(key("batch-", i), 2*second)
					time.Sleep(minute)
					p.back()
					_ = run(l, second)
				}
				for i := range 5 {
					time.Sleep(day)
					q := m.program()
					victim := q.lock("l", o)
					if c.keyed {
						victim = victim.For(fmt.Sprint("later-", i))
					}
					lease, err := victim.TryAcquire(context.Background())
					if err != nil {
						t.Error(err)
						return
					}
					q.kill()
					_ = lease.Release(context.Background())
					time.Sleep(minute)
					_ = run(key("later-", i), second)
				}
				p.quit()
			}, func(t *testing.T, l *ledger.Lock, p Period) {
				found := Judge(l, p)
				says(t, found, "lapsed", c.says)
				if len(found) > 0 && found[0].Severity != Error {
					t.Errorf("%+v, want an error", found[0])
				}
				if got := l.Total().Get(ledger.Abandoned); got != uint64(c.left) {
					t.Errorf("%d terms were left, want %d", got, c.left)
				}
			})
		})
	}
}

// Two programs that go on to differ are found, also if the one works every day and the other once a week.
func TestDriftOfARareProgram(t *testing.T) {
	t.Parallel()
	lived(t, func(m *calendar) {
		m.beside(func() { works(m, declared(minute), 5*hour, minute, 29*24/5) })
		m.beside(func() { time.Sleep(hour); works(m, declared(30*second), 7*day, minute, 4) })
	}, func(t *testing.T, l *ledger.Lock, p Period) {
		says(t, Judge(l, p), "drifted", "both on 4 days from 2000-01-01 to 2000-01-22: TTL is")
	})
}

// The statistics of an experiment are of its runs: not of those before it, between two, or of the hours before it on its first day.
func TestRunsOfAnExperiment(t *testing.T) {
	t.Parallel()
	enforced := declared(minute)
	shadow := enforced
	shadow.Mode = holdlock.Shadow
	contended := func(m *calendar, hours int) {
		m.work.Go(func() { works(m, enforced, hour, 40*minute, hours) })
		time.Sleep(10 * minute)
		works(m, enforced, hour, 20*minute, hours)
		m.work.Wait()
	}
	for _, c := range []struct {
		name string
		live func(m *calendar)
		says string
	}{
		{"busy before", func(m *calendar) {
			time.Sleep(13 * day)
			contended(m, 9*24-1)
			works(m, shadow, day, minute, 16)
		}, "in shadow mode since 2000-01-22 and excludes nobody: of 16 runs 0 overlapped with another; that is too little"},
		{"a second time", func(m *calendar) {
			works(m, shadow, hour, minute, 2)
			time.Sleep(22 * hour)
			contended(m, 20*24)
			works(m, shadow, hour, minute, 3)
		}, "since 2000-01-22 and excludes nobody: of 3 runs"},
		{"a second time within ten days", func(m *calendar) { // which are one sum by now
			time.Sleep(4 * day)
			works(m, shadow, hour, minute, 2)
			works(m, enforced, hour, minute, 100)
			works(m, shadow, day, minute, 24)
		}, "since 2000-01-09 and excludes nobody: of 19 runs"},
		{"in the evening", func(m *calendar) {
			works(m, enforced, hour, minute, 20)
			works(m, shadow, hour, minute, 2)
		}, "since 2000-01-01 and excludes nobody: of 2 runs"},
		{"enough", func(m *calendar) {
			contended(m, 30)
			works(m, shadow, hour, minute, 400)
		}, "since 2000-01-02 and excludes nobody: of 400 runs 0 overlapped with another: with 95% confidence under 0.75% do; the lock prevents nothing"},
	} {
		t.Run(c.name, func(t *testing.T) {
			lived(t, c.live, func(t *testing.T, l *ledger.Lock, p Period) {
				says(t, Judge(l, p), "shadow", c.says)
			})
		})
	}
}

// A release that failed because the store was away is no holder that was killed, and its run is among the holds.
func TestReleaseThatFailed(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name       string
		back       time.Duration // after the end of the work
		quits      bool          // before that
		killed     bool          // another one dies besides
		applied    bool          // only the answer does not come through
		kind, text string
		severity   Severity
	}{
		{"it was away until the term was over", 10 * minute, false, false, false, "lapsed", "1 lease was over when the work had ended already, because the store did not answer", Note},
		{"it came back after the term was over", 31 * second, false, false, false, "lapsed", "1 lease was over when the work had ended already", Note},
		{"the program did not wait for it", 10 * minute, true, false, false, "lapsed", "nobody ran beside it", Note},
		{"it came back in time", 5 * second, false, false, false, "", "", Note},
		{"it came back in time, and another one was killed", 5 * second, false, true, false, "lapsed", "1 lease was not released by its holder, which was killed", Error},
		{"its answer was lost, and another one was killed", minute, false, true, true, "lapsed", "1 lease was not released by its holder, which was killed", Error},
		{"and another one was killed", 10 * minute, false, true, false, "lapsed", "1 lease was not released by its holder, which was killed, paused or cut off: each may have run beside its successor; besides, 1 lease was over", Error},
	} {
		t.Run(c.name, func(t *testing.T) {
			lived(t, func(m *calendar) {
				p, o := m.program(), declared(30*second)
				_ = p.lock("l", o).Do(context.Background(), func(context.Context, *holdlock.Lease) error {
					time.Sleep(20 * second)
					if p.away(faultdriver.Release); c.applied {
						lost := false
						p.faults.SetScript(func(call faultdriver.Call) (f faultdriver.Fault) {
							if call.Op == faultdriver.Release && !lost {
								f.Err, f.Lose, lost = context.DeadlineExceeded, true, true
							}
							return f
						})
					}
					return nil
				})
				if c.quits {
					over, cancel := context.WithTimeout(context.Background(), second)
					m.forget(p)
					_ = p.client.Shutdown(over)
					cancel()
				}
				time.Sleep(c.back)
				p.back()
				works(m, o, minute, second, 2)
				if !c.quits {
					p.quit()
				}
				if c.killed {
					q := m.program()
					lease, err := q.lock("l", o).Acquire(context.Background())
					if err != nil {
						t.Error(err)
						return
					}
					q.kill()
					_ = lease.Release(context.Background())
					time.Sleep(minute)
					works(m, o, minute, second, 1)
				}
			}, func(t *testing.T, l *ledger.Lock, p Period) {
				found := Judge(l, p)
				says(t, found, c.kind, c.text)
				if len(found) > 0 && found[0].Severity != c.severity {
					t.Errorf("%+v, want %s", found[0], c.severity)
				}
				if got := l.Total().Hold.Max(); got < 20*second {
					t.Errorf("the longest hold is %s, want that of the run whose release failed", got)
				}
			})
		})
	}
}

// Locks that are counted together are not judged as if they were one.
func TestOtherLocks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := &calendar{t: t, store: memhold.NewStore(), start: time.Now()}
		p := m.program()
		var locks []*holdlock.Lock
		for i := range 1010 {
			locks = append(locks, p.lock(fmt.Sprint("tenant-", i), declared(time.Duration(1+i%2)*minute)))
		}
		for range 16 {
			for _, l := range locks {
				_ = run(l, 0)
			}
			time.Sleep(day)
		}
		time.Sleep(15 * day)
		p.quit()
		reader := memhold.NewDriver(&memhold.Options{Store: m.store})
		now := driver.DayOf(time.Now())
		all, problems, err := ledger.Load(t.Context(), reader, now-30, now)
		if err != nil || len(problems) > 0 || len(all) != 1001 {
			t.Fatal(len(all), problems, err)
		}
		period := Period{m.start, time.Now()}
		for _, l := range all {
			if l.Name != ledger.Others {
				continue
			}
			if n := l.Total().Get(ledger.Attempts); n != 160 || len(l.Declared) > 0 {
				t.Errorf("%d attempts, declared %+v; want 160 and none", n, l.Declared)
			}
			says(t, Judge(l, period), "", "")
			// As an older release has written it.
			today := driver.DayOf(period.To)
			for _, ttl := range []time.Duration{minute, hour} {
				l.Declared = append(l.Declared, daily(ledger.Declaration{TTL: ttl, MaxHold: holdlock.Forever, First: today - 20, Last: today}))
			}
			says(t, Judge(l, period), "", "")
			if a := Sheet(l, period, driver.Traits{})[0]; !strings.Contains(a.Why, "no program has said") {
				t.Errorf("%+v", a)
			}
			own := *l // control
			own.Name = "one of them"
			says(t, Judge(&own, period), "drifted undeclared unused", "")
		}
	})
}
