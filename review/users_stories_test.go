package review

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver/faultdriver"
)

const (
	second = time.Second
	minute = time.Minute
	hour   = time.Hour
)

// declared is a lock that is declared as it should be.
func declared(ttl time.Duration) holdlock.LockOptions {
	return holdlock.LockOptions{TTL: ttl, Purpose: "one report each", DoubleRun: holdlock.Costly}
}

// twoHosts runs a job on a schedule that two programs have, as cron does on two machines.
func twoHosts(m *calendar, lock string, o holdlock.LockOptions, r *rand.Rand, every, shortest, longest time.Duration) {
	for range 2 {
		r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
		m.beside(func() {
			l := m.program().lock(lock, o)
			m.every(every, 2*second, r, func() bool {
				_ = run(l, between(r, shortest, longest))
				return true
			})
		})
	}
}

// turns has two hosts go from one setting to another and back, twice, for some days each.
func turns(m *calendar, lock string, r *rand.Rand, one, other holdlock.LockOptions) {
	var at []float64
	for day := 3 + 2*r.Float64(); len(at) < 4; day += 4 + 2*r.Float64() {
		at = append(at, day)
	}
	for range 2 {
		r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
		m.beside(func() {
			p := m.program()
			l, done := p.lock(lock, one), 0
			m.every(hour, 2*second, r, func() bool {
				if done < len(at) && m.day() > at[done] {
					p.quit()
					p, done = m.program(), done+1
					l = p.lock(lock, []holdlock.LockOptions{one, other}[done%2])
				}
				_ = run(l, between(r, 10*second, 50*second))
				return true
			})
		})
	}
}

// healthy is how many stories have nothing in them that its owner would want to hear.
const healthy = 18

// stories are what can happen to a lock. First those in which all is well.
var stories = []story{
	{title: "hourly on two hosts", live: func(m *calendar, lock string, r *rand.Rand) {
		o := declared(time.Duration(30+r.IntN(240)) * second)
		o.MinHold = 10 * second
		twoHosts(m, lock, o, r, time.Duration(30+r.IntN(31))*minute, 20*second, 4*minute)
	}},
	{title: "nightly for hours", live: func(m *calendar, lock string, r *rand.Rand) {
		twoHosts(m, lock, declared(time.Duration(3+r.IntN(3))*minute), r, 24*hour, hour, 3*hour)
	}},
	{title: "payments by id", live: func(m *calendar, lock string, r *rand.Rand) {
		for range 3 {
			r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
			m.beside(func() {
				l := m.program().lock(lock, declared(30*second))
				for !m.over() {
					time.Sleep(between(r, 5*minute, 2*hour))
					payment := l.For(fmt.Sprint("payment/", time.Now().Unix()))
					for range 1 + r.IntN(2) { // a message may come twice
						job := between(r, 100*time.Millisecond, 3*second)
						m.beside(func() { _ = run(payment, job) })
					}
				}
			})
		}
	}},
	{title: "short waits", live: func(m *calendar, lock string, r *rand.Rand) {
		o := declared(30 * second)
		o.Wait = 2 * minute
		for range 3 {
			r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
			m.beside(func() {
				l := m.program().lock(lock, o)
				m.every(90*minute, 5*second, r, func() bool {
					_ = run(l, between(r, 2*second, 20*second))
					return true
				})
			})
		}
	}},
	{title: "no renewal and room enough", live: func(m *calendar, lock string, r *rand.Rand) {
		longest := time.Duration(30+r.IntN(200)) * second
		o := declared(longest * time.Duration(20+r.IntN(40)) / 10)
		o.Renew = holdlock.RenewOff
		twoHosts(m, lock, o, r, hour, longest/10, longest)
	}},
	{title: "a leader that changes now and then", live: func(m *calendar, lock string, r *rand.Rand) {
		o := declared(30 * minute)
		o.MaxHold = holdlock.Forever
		for range 3 {
			r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
			m.beside(func() {
				l := m.program().lock(lock, o)
				m.every(10*minute, 30*second, r, func() bool {
					_ = run(l, min(between(r, 12*hour, 40*hour), time.Until(m.end)))
					return true
				})
			})
		}
	}},
	{title: "new since this week", live: func(m *calendar, lock string, r *rand.Rand) {
		m.until(25 + 3*r.Float64())
		twoHosts(m, lock, declared(minute), r, 20*minute, 5*second, minute)
	}},
	{title: "one rollout", live: func(m *calendar, lock string, r *rand.Rand) {
		at := 5 + 20*r.Float64()
		for range 2 {
			r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
			m.beside(func() {
				p := m.program()
				l, updated := p.lock(lock, declared(minute)), false
				at := at + r.Float64()/8 // one host after the other
				m.every(30*minute, second, r, func() bool {
					if !updated && m.day() > at {
						p.quit()
						p, updated = m.program(), true
						l = p.lock(lock, declared(3*minute))
					}
					_ = run(l, between(r, 5*second, 30*second))
					return true
				})
			})
		}
	}},
	{title: "the store was away for a moment", live: func(m *calendar, lock string, r *rand.Rand) {
		twoHosts(m, lock, declared(minute), r, 20*minute, 5*second, 30*second)
		at := 1 + 28*r.Float64()
		m.beside(func() {
			p, blip := m.program(), false
			l := p.lock(lock, declared(minute))
			m.every(20*minute, 0, r, func() bool {
				if !blip && m.day() > at {
					p.away()
					blip = true
				}
				_ = run(l, between(r, 5*second, 30*second))
				p.back()
				return true
			})
		})
	}},
	{title: "restarted every day", live: func(m *calendar, lock string, r *rand.Rand) {
		for range 2 {
			r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
			m.beside(func() {
				for !m.over() {
					p := m.program()
					l, until := p.lock(lock, declared(2*minute)), time.Now().Add(24*hour)
					m.every(hour, 2*second, r, func() bool {
						_ = run(l, between(r, 10*second, 5*minute))
						return time.Now().Before(until)
					})
					p.quit()
				}
			})
		}
	}},
	{title: "fence in use", live: func(m *calendar, lock string, r *rand.Rand) {
		o := declared(minute)
		o.Guard = holdlock.Fenced
		for range 2 {
			r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
			m.beside(func() {
				l := m.program().lock(lock, o)
				m.every(hour, 2*second, r, func() bool {
					_ = l.Do(context.Background(), func(_ context.Context, lease *holdlock.Lease) error {
						_ = lease.Token()
						time.Sleep(between(r, 5*second, minute))
						return nil
					})
					return true
				})
			})
		}
	}},
	{title: "declared at last", live: func(m *calendar, lock string, r *rand.Rand) { // on the last day, on which the old declaration is used as well
		at := 29.2 + 0.6*r.Float64()
		for range 2 {
			r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
			m.beside(func() {
				for m.day() < 29.9 { // each run is a program of its own, as of a command
					p, o := m.program(), holdlock.LockOptions{TTL: minute}
					if m.day() > at {
						o = declared(minute)
					}
					l := p.lock(lock, o)
					m.every(hour, 2*second, r, func() bool {
						_ = run(l, between(r, 10*second, 2*minute))
						return false
					})
					p.quit()
				}
			})
		}
	}},
	{title: "a fence since a week", live: func(m *calendar, lock string, r *rand.Rand) {
		at := 20 + 3*r.Float64()
		for range 2 {
			r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
			m.beside(func() {
				p := m.program()
				l, fenced := p.lock(lock, declared(minute)), false
				m.every(30*minute, second, r, func() bool {
					if !fenced && m.day() > at {
						p.quit()
						p, fenced = m.program(), true
						o := declared(minute)
						o.Guard = holdlock.Fenced
						l = p.lock(lock, o)
					}
					_ = l.Do(context.Background(), func(_ context.Context, lease *holdlock.Lease) error {
						if fenced {
							_ = lease.Token()
						}
						time.Sleep(between(r, 5*second, 30*second))
						return nil
					})
					return true
				})
			})
		}
	}},

	{title: "a leader that stays", live: func(m *calendar, lock string, r *rand.Rand) {
		o := declared(3 * hour)
		o.MaxHold, o.Wait = holdlock.Forever, holdlock.Forever
		for _, begins := range []float64{r.Float64(), 29.8 + r.Float64()/10} { // and one that waits for it; a longer wait makes the test slow
			m.beside(func() {
				m.until(begins)
				over, stop := context.WithDeadline(context.Background(), m.end.Add(-second))
				defer stop()
				_ = m.program().lock(lock, o).Do(over, func(ctx context.Context, _ *holdlock.Lease) error {
					<-ctx.Done()
					return nil
				})
			})
		}
	}},

	{title: "rolled back twice", live: func(m *calendar, lock string, r *rand.Rand) {
		turns(m, lock, r, declared(minute), declared(3*minute))
	}},
	{title: "an experiment that is over", live: func(m *calendar, lock string, r *rand.Rand) {
		o := declared(minute)
		o.Mode = holdlock.Shadow
		turns(m, lock, r, declared(minute), o)
	}},

	{title: "in the transactions of its writes", live: func(m *calendar, lock string, r *rand.Rand) { // a store that gives no tokens, and waits by itself
		o := holdlock.LockOptions{DoubleRun: holdlock.Harmful, TTL: hour}
		l := m.program().lock(lock, o)
		m.every(time.Duration(20+r.IntN(40))*minute, minute, r, func() bool {
			u, err := l.InTransaction()
			if err != nil {
				m.t.Error(err)
				return false
			}
			if r.IntN(20) == 0 {
				u.Ended(holdlock.Skipped, holdlock.ErrHeld)
			} else {
				u.Ended(holdlock.Granted, nil)
			}
			return true
		})
	}},

	{title: "the store was away at the end of a run", minds: []string{"lapsed"}, never: "die or stall", live: func(m *calendar, lock string, r *rand.Rand) { // nobody was killed
		p := m.program()
		l := p.lock(lock, declared(minute))
		q := m.program()
		l2 := q.lock(lock, declared(minute))
		bad := 1 + r.IntN(200)
		for n := 0; !m.over(); n++ {
			_ = l.Do(context.Background(), func(context.Context, *holdlock.Lease) error {
				time.Sleep(between(r, second, 10*second))
				if n%200 == bad%200 {
					p.away(faultdriver.Release)
				}
				return nil
			})
			time.Sleep(5 * second)
			_ = l2.Do(context.Background(), func(context.Context, *holdlock.Lease) error { return nil })
			time.Sleep(10 * minute)
			p.back()
			_ = run(l2, 10*second)
			time.Sleep(hour)
		}
	}},

	// What may hurt, or has.
	{title: "an expiry that was raised", minds: []string{"lapsed"}, live: func(m *calendar, lock string, r *rand.Rand) { // what was, was
		at := 4 + 24*r.Float64()
		for range 2 {
			r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
			m.beside(func() {
				o := declared(90 * second)
				o.Renew = holdlock.RenewOff
				p := m.program()
				l, raised := p.lock(lock, o), false
				m.every(hour, 2*second, r, func() bool {
					if !raised && m.day() > at {
						p.quit()
						p, raised = m.program(), true
						o.TTL = 12 * minute
						l = p.lock(lock, o)
					}
					_ = plod(l, between(r, minute, 3*minute))
					return true
				})
			})
		}
	}},
	{title: "killed at work", wants: []string{"lapsed"}, live: func(m *calendar, lock string, r *rand.Rand) {
		twoHosts(m, lock, declared(2*minute), r, hour, 20*second, 3*minute)
		m.beside(func() {
			for range 2 + r.IntN(4) {
				time.Sleep(between(r, 24*hour, 6*24*hour))
				p := m.program()
				lease, err := p.lock(lock, declared(2*minute)).Acquire(context.Background())
				if err != nil {
					m.t.Error(err)
					return
				}
				time.Sleep(between(r, second, minute))
				p.kill()
				_ = lease.Release(context.Background()) // the process is dead; this ends what is left of it in the test
			}
		})
	}},
	{title: "slower than its expiry", wants: []string{"overrunning"}, minds: []string{"lapsed"}, live: func(m *calendar, lock string, r *rand.Rand) {
		o := declared(5 * minute)
		o.Renew = holdlock.RenewOff
		for range 2 {
			r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
			m.beside(func() {
				l := m.program().lock(lock, o)
				m.every(hour, 2*second, r, func() bool {
					job := between(r, 30*second, 2*minute)
					if r.IntN(25) == 0 {
						job = between(r, 6*minute, 12*minute)
					}
					_ = plod(l, job)
					return true
				})
			})
		}
	}},
	{title: "nearly as slow as its expiry", wants: []string{"overrunning"}, live: func(m *calendar, lock string, r *rand.Rand) {
		o := declared(10 * minute)
		o.Renew = holdlock.RenewOff
		twoHosts(m, lock, o, r, hour, 2*minute, time.Duration(8.5*float64(minute)))
	}},
	{title: "longer than it may be held", wants: []string{"overrunning"}, minds: []string{"lapsed"}, live: func(m *calendar, lock string, r *rand.Rand) {
		o := declared(2 * minute)
		o.MaxHold = 30 * minute
		for range 2 {
			r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
			m.beside(func() {
				l := m.program().lock(lock, o)
				m.every(2*hour, 2*second, r, func() bool {
					job := between(r, minute, 15*minute)
					if r.IntN(30) == 0 {
						job = between(r, 35*minute, hour)
					}
					_ = plod(l, job)
					return true
				})
			})
		}
	}},
	{title: "cut off at work", wants: []string{"lost"}, minds: []string{"lapsed", "TTL too tight"}, live: func(m *calendar, lock string, r *rand.Rand) {
		twoHosts(m, lock, declared(minute), r, 2*hour, 5*second, minute)
		m.beside(func() {
			p := m.program()
			l := p.lock(lock, declared(minute))
			m.every(90*minute, second, r, func() bool {
				if r.IntN(6) == 0 {
					p.away(faultdriver.Renew, faultdriver.RenewBatch, faultdriver.Release)
				}
				_ = run(l, between(r, 3*minute, 5*minute))
				p.back()
				return true
			})
		})
	}},
	{title: "stuck for half a day", wants: []string{"blocking"}, live: func(m *calendar, lock string, r *rand.Rand) {
		at, o := 3+20*r.Float64(), declared(2*minute)
		twoHosts(m, lock, o, r, 20*minute, 10*second, minute)
		m.beside(func() {
			l := m.program().lock(lock, o)
			m.until(at)
			lease, err := l.Acquire(context.Background())
			if err != nil {
				m.t.Error(err)
				return
			}
			time.Sleep(between(r, 8*hour, 15*hour))
			_ = lease.Release(context.Background())
		})
	}},
	{title: "stuck until today", wants: []string{"blocking"}, live: func(m *calendar, lock string, r *rand.Rand) {
		at, o := 22+4*r.Float64(), declared(5*minute)
		o.MaxHold = holdlock.Forever
		twoHosts(m, lock, o, r, 20*minute, 10*second, minute)
		m.beside(func() {
			p := m.program()
			m.until(at)
			lease, err := p.lock(lock, o).Acquire(context.Background())
			if err != nil {
				m.t.Error(err)
				return
			}
			m.until(30.001) // it never ends, but the test has to
			_ = lease.Release(context.Background())
		})
	}},
	{title: "stuck from the first days on", wants: []string{"blocking"}, live: func(m *calendar, lock string, r *rand.Rand) {
		o := declared(5 * minute)
		o.MaxHold = holdlock.Forever
		twoHosts(m, lock, o, r, 6*hour, 10*second, minute)
		m.beside(func() {
			p := m.program()
			m.until(float64(r.IntN(3)) + 0.1 + 0.1*r.Float64())
			lease, err := p.lock(lock, o).Acquire(context.Background())
			if err != nil {
				m.t.Error(err)
				return
			}
			m.until(30.001)
			p.kill() // it never ends, but the test has to
			_ = lease.Release(context.Background())
		})
	}},
	{title: "the store was away for days", wants: []string{"not run"}, live: func(m *calendar, lock string, r *rand.Rand) {
		from := 2 + 20*r.Float64()
		to := from + 1 + 3*r.Float64()
		for range 2 {
			r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
			m.beside(func() {
				p := m.program()
				l := p.lock(lock, declared(minute))
				m.every(hour, 2*second, r, func() bool {
					if m.day() > from && m.day() < to {
						p.away()
					} else {
						p.back()
					}
					_ = run(l, between(r, 5*second, 40*second))
					return true
				})
			})
		}
	}},
	{title: "waits in vain", wants: []string{"starving"}, live: func(m *calendar, lock string, r *rand.Rand) {
		o := declared(5 * minute)
		o.Wait = 5 * second
		for range 4 {
			r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
			m.beside(func() {
				l := m.program().lock(lock, o)
				m.every(time.Duration(20+r.IntN(20))*minute, 20*minute, r, func() bool {
					_ = run(l, between(r, 5*minute, 12*minute))
					return true
				})
			})
		}
	}},
	{title: "dead for half a day if it dies", wants: []string{"TTL too long"}, live: func(m *calendar, lock string, r *rand.Rand) {
		twoHosts(m, lock, declared(time.Duration(4+r.IntN(8))*hour), r, time.Duration(10+r.IntN(20))*minute, 5*second, minute)
	}},
	{title: "a TTL of a second", wants: []string{"TTL too tight"}, minds: []string{"lost", "lapsed"}, live: func(m *calendar, lock string, r *rand.Rand) {
		o := declared(time.Duration(1000+r.IntN(1000)) * time.Millisecond)
		twoHosts(m, lock, o, r, 4*hour, 3*second, 8*second)
		m.beside(func() {
			p := m.program()
			l := p.lock(lock, o)
			m.every(100*minute, minute, r, func() bool {
				if r.IntN(12) == 0 {
					p.away(faultdriver.Renew, faultdriver.RenewBatch)
				}
				_ = run(l, between(r, 5*second, 10*second))
				p.back()
				return true
			})
		})
	}},

	// What is worth knowing.
	{title: "two versions all month", wants: []string{"drifted"}, live: func(m *calendar, lock string, r *rand.Rand) {
		twoHosts(m, lock, declared(minute), r, hour, 5*second, 30*second)
		twoHosts(m, lock, declared(4*minute), r, hour, 5*second, 30*second)
	}},
	{title: "nobody said what for", wants: []string{"undeclared"}, live: func(m *calendar, lock string, r *rand.Rand) {
		twoHosts(m, lock, holdlock.LockOptions{TTL: minute}, r, hour, 5*second, 2*minute)
	}},
	{title: "a fence that nobody asks", wants: []string{"guard unseen"}, live: func(m *calendar, lock string, r *rand.Rand) {
		o := declared(minute)
		o.Guard = holdlock.Fenced
		twoHosts(m, lock, o, r, hour, 5*second, 2*minute)
	}},
	{title: "at one's own risk", wants: []string{"risk accepted"}, live: func(m *calendar, lock string, r *rand.Rand) {
		o := declared(minute)
		o.DoubleRun, o.AcceptRisk = holdlock.Harmful, "until the ledger checks it"
		twoHosts(m, lock, o, r, hour, 5*second, 2*minute)
	}},
	{title: "alone", wants: []string{"uncontended"}, live: func(m *calendar, lock string, r *rand.Rand) {
		l := m.program().lock(lock, declared(minute))
		m.every(time.Duration(10+r.IntN(50))*minute, minute, r, func() bool {
			_ = run(l, between(r, 5*second, 2*minute))
			return true
		})
	}},
	{title: "safe to run twice", wants: []string{"declared idempotent"}, live: func(m *calendar, lock string, r *rand.Rand) {
		o := declared(minute)
		o.DoubleRun = holdlock.Harmless
		twoHosts(m, lock, o, r, hour, 5*second, 2*minute)
	}},
	{title: "being tried without", wants: []string{"shadow"}, live: func(m *calendar, lock string, r *rand.Rand) {
		o := declared(minute)
		o.Mode = holdlock.Shadow
		twoHosts(m, lock, o, r, hour, 5*second, 2*minute)
	}},
	{title: "tried again after a busy time", wants: []string{"shadow"}, never: "take it out", live: func(m *calendar, lock string, r *rand.Rand) { // a few runs say nothing
		o := declared(minute)
		o.Mode = holdlock.Shadow
		busy := 18 + 2*r.Float64()
		for i, end := range []float64{1 + r.Float64(), busy, 31} {
			opts, every := o, 7*hour
			if i == 1 {
				opts, every = declared(minute), hour
			}
			p := m.program()
			l := p.lock(lock, opts)
			m.every(every, minute, r, func() bool { _ = run(l, between(r, second, minute)); return m.day() < end })
			p.quit()
		}
	}},
	{title: "no longer used", wants: []string{"unused"}, live: func(m *calendar, lock string, r *rand.Rand) {
		last := 4 + 10*r.Float64()
		o := declared(minute)
		for range 2 {
			r := rand.New(rand.NewPCG(r.Uint64(), r.Uint64()))
			m.beside(func() {
				l := m.program().lock(lock, o)
				m.every(hour, second, r, func() bool {
					_ = run(l, between(r, 5*second, minute))
					return m.day() < last
				})
			})
		}
	}},
}
