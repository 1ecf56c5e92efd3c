package review

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/faultdriver"
	"github.com/holdlock/holdlock/memhold"
	"github.com/holdlock/holdlock/review/ledger"
)

// The second opinion. These stories were written by someone who had not read the rules nor the other simulation: from the names
// of the findings and from what a user means by them. A story is the life of one lock for a month, and what its owner would want to hear;
// users_stories_test.go has them. The two generators share no code, so that one mistake does not make both agree with the rules.

// A story is one lock and the programs that use it.
type story struct {
	title string
	wants []string // what its owner wants to hear
	minds []string // what is true as well, so that nobody minds hearing it
	never string   // what nobody may advise
	live  func(m *calendar, lock string, r *rand.Rand)
}

// A calendar is the month in which a story happens. Stories share the store and nothing else.
type calendar struct {
	t          *testing.T
	store      *memhold.Store
	start, end time.Time
	work       sync.WaitGroup
	mu         sync.Mutex
	running    []*program
	last       []func() // what ends leases when all has been looked at: a program that quits waits for them
}

// A program is a process that uses locks.
type program struct {
	m      *calendar
	client *holdlock.Client
	faults *faultdriver.Driver
}

func (m *calendar) program() *program {
	faults := faultdriver.New(memhold.NewDriver(&memhold.Options{Store: m.store}), nil)
	c, err := holdlock.NewClient(faults, &holdlock.ClientOptions{Recorder: ledger.New(&ledger.Options{Every: 3 * time.Hour})})
	if err != nil {
		m.t.Error(err)
		return nil
	}
	p := &program{m, c, faults}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running = append(m.running, p)
	return p
}

func (p *program) lock(name string, o holdlock.LockOptions) *holdlock.Lock {
	l, err := p.client.NewLock(name, &o)
	if err != nil {
		p.m.t.Errorf("%s: %v", name, err)
	}
	return l
}

// away makes the store unreachable for the program, for all calls or the given ones.
func (p *program) away(ops ...faultdriver.Op) {
	p.faults.SetScript(func(c faultdriver.Call) faultdriver.Fault {
		if len(ops) > 0 && !slices.Contains(ops, c.Op) {
			return faultdriver.Fault{}
		}
		return faultdriver.Fault{Drop: true, Err: driver.ErrNotApplied}
	})
}

func (p *program) back() { p.faults.SetScript(nil) }

// quit ends the program as an orderly one does.
func (p *program) quit() {
	p.m.forget(p)
	if err := p.client.Shutdown(context.Background()); err != nil {
		p.m.t.Errorf("shutdown: %v", err)
	}
}

// kill ends the program like kill -9: nothing that it had to say reaches the store.
func (p *program) kill() {
	p.m.forget(p)
	p.away()
	over, cancel := context.WithCancel(context.Background())
	cancel()
	_ = p.client.Shutdown(over)
}

func (m *calendar) forget(p *program) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.running = slices.DeleteFunc(m.running, func(q *program) bool { return q == p })
}

// over says that the month is.
func (m *calendar) over() bool { return !time.Now().Before(m.end) }

// day returns how many days have passed.
func (m *calendar) day() float64 { return time.Since(m.start).Hours() / 24 }

// until sleeps till a day of the month.
func (m *calendar) until(day float64) {
	time.Sleep(time.Until(m.start.Add(time.Duration(day * 24 * float64(time.Hour)))))
}

func (m *calendar) after(f func()) { m.last = append(m.last, f) }

// beside runs f as one more worker of the month.
func (m *calendar) beside(f func()) { m.work.Go(f) }

// every calls f at each tick of a schedule, late by up to skew, until the month is over or f says that it is enough.
func (m *calendar) every(d, skew time.Duration, r *rand.Rand, f func() bool) {
	for next := time.Now().Truncate(d).Add(d); ; next = next.Add(d) {
		if late := time.Now(); next.Before(late) { // ticks during a run are left out
			next = late.Truncate(d).Add(d)
		}
		time.Sleep(time.Until(next) + rand.N(skew+1))
		if m.over() || !f() {
			return
		}
	}
}

// run does a job of some length under the lock, which stops when it is told to.
func run(l *holdlock.Lock, job time.Duration) error {
	return l.Do(context.Background(), func(ctx context.Context, _ *holdlock.Lease) error {
		select {
		case <-time.After(job):
		case <-ctx.Done():
		}
		return nil
	})
}

// plod does a job that does not listen.
func plod(l *holdlock.Lock, job time.Duration) error {
	return l.Do(context.Background(), func(context.Context, *holdlock.Lease) error {
		time.Sleep(job)
		return nil
	})
}

// between returns a duration from a to b, more often a short one.
func between(r *rand.Rand, a, b time.Duration) time.Duration {
	x := r.Float64()
	return a + time.Duration(x*x*float64(b-a))
}

// hasty judges as one would without thinking of small numbers: whatever happened once is a finding.
func hasty(l *ledger.Lock, p Period) (found []Finding) {
	s := subjectOf(l, p)
	for kind, is := range map[string]bool{
		"overrunning": s.declared != nil && s.Hold.Max() > s.declared.TTL*8/10,
		"not run":     s.Get(ledger.Failed) > 0,
		"blocking":    s.Get(ledger.Skipped) > 0,
		"starving":    s.Get(ledger.GaveUp) > 0,
		"drifted":     len(l.Declared) > 1,
		"uncontended": s.Get(ledger.Contended) == 0,
	} {
		if is {
			found = append(found, Finding{Lock: l.Name, Kind: kind})
		}
	}
	return found
}

// TestUsersAreHard shows that the stories are no easy prey: who judges hastily accuses locks with which all is well.
func TestUsersAreHard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		accused := map[string]bool{}
		easy := slices.DeleteFunc(slices.Clone(stories[:healthy]), func(s story) bool { return s.title == "short waits" }) // it is slow
		m, locks := live(t, 1, easy)
		for _, l := range locks {
			for _, f := range hasty(l, Period{m.start, m.end}) {
				accused[f.Kind] = true
			}
		}
		for _, kind := range []string{"overrunning", "not run", "blocking", "drifted"} {
			if !accused[kind] {
				t.Errorf("no story tempts anyone to say %q", kind)
			}
		}
	})
}

// TestUsers lets each story happen and compares what a review says with what its owner wants to hear.
func TestUsers(t *testing.T) {
	t.Parallel()
	for s := range uint64(*seeds) {
		if *seed != 0 {
			s = *seed - 1
		}
		t.Run(fmt.Sprint("seed ", s+1), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { compare(t, s+1) })
		})
		if *seed != 0 {
			break
		}
	}
}

// live lets the stories happen and returns what is recorded of them.
func live(t *testing.T, seed uint64, stories []story) (*calendar, []*ledger.Lock) {
	m := &calendar{t: t, store: memhold.NewStore(), start: time.Now()}
	m.end = m.start.Add(30 * 24 * time.Hour)
	for i, s := range stories {
		m.beside(func() { s.live(m, s.title, rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
	m.work.Wait()
	for _, p := range slices.Clone(m.running) {
		p.quit()
	}
	reader := memhold.NewDriver(&memhold.Options{Store: m.store})
	locks, problems, err := ledger.Load(t.Context(), reader, driver.DayOf(m.start), driver.DayOf(m.end))
	if err != nil || len(problems) > 0 {
		t.Fatal(err, problems)
	}
	return m, locks
}

func compare(t *testing.T, seed uint64) {
	m, locks := live(t, seed, stories)
	said := map[string][]Finding{}
	for _, f := range JudgeAll(locks, Period{m.start, m.end}) {
		said[f.Lock] = append(said[f.Lock], f)
	}
	for _, s := range stories {
		heard := map[string]bool{}
		for _, f := range said[s.title] {
			heard[f.Kind] = true
			if !slices.Contains(s.wants, f.Kind) && !slices.Contains(s.minds, f.Kind) {
				t.Errorf("seed %d: %q was told %s %q: %s", seed, s.title, f.Severity, f.Kind, f.Evidence)
			}
		}
		for _, f := range said[s.title] {
			if s.never != "" && strings.Contains(f.Advice, s.never) {
				t.Errorf("seed %d: %q was told %s: %s", seed, s.title, f.Evidence, f.Advice)
			}
		}
		for _, kind := range s.wants {
			if !heard[kind] {
				t.Errorf("seed %d: %q was not told %q, but %+v", seed, s.title, kind, said[s.title])
			}
		}
	}
}
