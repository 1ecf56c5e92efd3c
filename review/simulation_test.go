package review

import (
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
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

var (
	seeds = flag.Int("seeds", 1, "how many seeds TestSimulation and TestUsers try")
	seed  = flag.Uint64("seed", 0, "try this seed only")
)

const days = 30

// sim is 30 days of a company's locks, in virtual time, through the real client on a store in memory. What is planted is known.
type sim struct {
	*testing.T
	store    *memhold.Driver
	shared   *memhold.Store // what is in it
	open     func() *holdlock.Client
	replicas []*holdlock.Client // processes
	end      time.Time
	wg       sync.WaitGroup
}

// life is what one lock goes through, and what a review has to find: all of want, and nothing else but what may follow from it.
type life struct {
	name       string
	want, also []string
	live       func(s *sim, rng *rand.Rand, name string)
}

var lives = []life{
	{"healthy", nil, nil, func(s *sim, rng *rand.Rand, name string) {
		l := s.declare(name, holdlock.LockOptions{TTL: 30 * time.Second, DoubleRun: holdlock.Costly})
		s.schedule(rng, l, 40*time.Minute, 10*time.Minute, lognormal(20*time.Second, 0.5))
	}},
	{"healthy waiting", []string{"risk accepted"}, nil, func(s *sim, rng *rand.Rand, name string) {
		l := s.declare(name, holdlock.LockOptions{TTL: 10 * time.Second, DoubleRun: holdlock.Harmful, AcceptRisk: "we refund", Wait: 10 * time.Minute})
		s.schedule(rng, l, 40*time.Minute, 10*time.Minute, lognormal(20*time.Second, 0.5))
	}},
	{"borderline expiry", nil, nil, func(s *sim, rng *rand.Rand, name string) { // at most 75% of what it allows, and a TTL of 4 minutes
		l := s.declare(name, holdlock.LockOptions{TTL: 4 * time.Minute, Renew: holdlock.RenewOff, DoubleRun: holdlock.Costly})
		s.schedule(rng, l, 50*time.Minute, 10*time.Minute, func(rng *rand.Rand) time.Duration {
			return time.Duration(30+rng.IntN(132)) * time.Second
		})
	}},
	{"borderline patience", nil, nil, func(s *sim, rng *rand.Rand, name string) { // about 3% of those that wait give up
		l := s.declare(name, holdlock.LockOptions{TTL: 30 * time.Second, DoubleRun: holdlock.Costly, Wait: 5 * time.Minute})
		s.schedule(rng, l, 45*time.Minute, 0, func(rng *rand.Rand) time.Duration {
			if rng.IntN(30) == 0 {
				return 6 * time.Minute
			}
			return time.Duration(20+rng.IntN(60)) * time.Second
		})
	}},
	{"borderline idle", nil, nil, func(s *sim, rng *rand.Rand, name string) { // a weekly job
		l := s.declare(name, holdlock.LockOptions{TTL: 30 * time.Second, DoubleRun: holdlock.Costly})
		s.schedule(rng, l, 7*24*time.Hour, time.Hour, lognormal(time.Hour, 0.3))
	}},
	{"borderline roll-out", nil, nil, func(s *sim, rng *rand.Rand, name string) { // another TTL from some day on
		l := s.declare(name, holdlock.LockOptions{TTL: 30 * time.Second, DoubleRun: holdlock.Costly})
		end := s.end
		s.end = s.end.Add(-time.Duration(5+rng.IntN(20)) * 24 * time.Hour)
		s.schedule(rng, l, time.Hour, 0, lognormal(20*time.Second, 0.5))
		s.end = end
		s.restart()
		l = s.declare(name, holdlock.LockOptions{TTL: 40 * time.Second, DoubleRun: holdlock.Costly})
		s.schedule(rng, l, time.Hour, 0, lognormal(20*time.Second, 0.5))
	}},
	{"borderline roll-back", nil, nil, func(s *sim, rng *rand.Rand, name string) { // a release that is taken back on the next day, twice
		end, at := s.end, time.Now()
		for i := range 5 {
			at = at.Add(time.Duration([]int{4 + rng.IntN(6), 1, 5 + rng.IntN(6), 1, 40}[i])*24*time.Hour + time.Duration(rng.IntN(120))*time.Minute)
			if s.end = end; at.Before(end) {
				s.end = at
			}
			s.restart()
			l := s.declare(name, holdlock.LockOptions{TTL: time.Duration(30+10*(i%2)) * time.Second, DoubleRun: holdlock.Costly})
			s.schedule(rng, l, time.Hour, 0, lognormal(20*time.Second, 0.5))
		}
		s.end = end
	}},
	{"borderline reload", nil, nil, func(s *sim, rng *rand.Rand, name string) { // a new TTL that the running programs read from their configuration
		end := s.end
		s.end = s.end.Add(-time.Duration(5+rng.IntN(20)) * 24 * time.Hour)
		for _, ttl := range []time.Duration{30 * time.Second, 40 * time.Second} {
			l := s.declare(name, holdlock.LockOptions{TTL: ttl, DoubleRun: holdlock.Costly})
			s.schedule(rng, l, time.Hour, 0, lognormal(20*time.Second, 0.5))
			s.end = end
		}
	}},
	{"borderline monthly", nil, nil, func(s *sim, rng *rand.Rand, name string) { // it runs at the beginning of the month, and its program is started every day
		for s.end.After(time.Now()) {
			s.restart()
			l := s.declare(name, holdlock.LockOptions{TTL: 30 * time.Second, DoubleRun: holdlock.Costly})
			if time.Until(s.end) > 29*24*time.Hour {
				end := s.end
				s.end = time.Now().Add(3 * time.Hour)
				s.schedule(rng, l, time.Hour, 0, lognormal(20*time.Second, 0.5))
				s.end = end
			}
			time.Sleep(24 * time.Hour)
		}
	}},
	{"left behind", []string{"lapsed"}, nil, func(s *sim, rng *rand.Rand, name string) { // as "lapsing", and the releases of keys that are taken once did not come through
		l := s.declare(name, holdlock.LockOptions{TTL: 30 * time.Second, DoubleRun: holdlock.Costly})
		for i := range 10 + rng.IntN(10) {
			faults := faultdriver.New(memhold.NewDriver(&memhold.Options{Store: s.shared}), nil)
			c, err := holdlock.NewClient(faults, &holdlock.ClientOptions{Recorder: ledger.New(nil)})
			if err != nil {
				s.Error(err)
				return
			}
			one, err := c.NewLock(name, &holdlock.LockOptions{TTL: 30 * time.Second, DoubleRun: holdlock.Costly})
			if err != nil {
				s.Error(err)
				return
			}
			faults.SetScript(func(call faultdriver.Call) (f faultdriver.Fault) {
				if f.Drop = call.Op == faultdriver.Release; f.Drop {
					f.Err = driver.ErrNotApplied
				}
				return f
			})
			_ = one.For(fmt.Sprint("batch-", i)).Do(context.Background(), func(context.Context, *holdlock.Lease) error { return nil })
			time.Sleep(time.Minute)
			if err := c.Shutdown(context.Background()); err != nil {
				s.Error(err)
			}
		}
		if _, err := s.store.Acquire(context.Background(), &driver.AcquireRequest{
			Ref: driver.Ref{Key: name, Nonce: fmt.Sprintf("%032x", rng.Uint64())}, TTL: 30 * time.Second,
		}); err != nil {
			s.Error(err)
		}
		s.schedule(rng, l, 40*time.Minute, 5*time.Minute, lognormal(20*time.Second, 0.5))
	}},
	{"idle", []string{"unused"}, nil, func(s *sim, rng *rand.Rand, name string) {
		l := s.declare(name, holdlock.LockOptions{TTL: 30 * time.Second, DoubleRun: holdlock.Costly})
		end := s.end
		s.end = s.end.Add(-time.Duration(15+rng.IntN(10)) * 24 * time.Hour)
		s.schedule(rng, l, time.Hour, 0, lognormal(20*time.Second, 0.5))
		s.end = end
	}},
	{"uncontended", []string{"uncontended"}, nil, func(s *sim, rng *rand.Rand, name string) {
		l := s.declare(name, holdlock.LockOptions{TTL: 30 * time.Second, DoubleRun: holdlock.Costly})
		s.schedule(rng, l[:1], time.Hour, 10*time.Minute, lognormal(20*time.Second, 0.5))
	}},
	{"overrunning", []string{"overrunning"}, []string{"lapsed"}, func(s *sim, rng *rand.Rand, name string) { // its work takes longer from week to week
		l := s.declare(name, holdlock.LockOptions{TTL: 4 * time.Minute, Renew: holdlock.RenewOff, DoubleRun: holdlock.Costly})
		begin := time.Now()
		s.schedule(rng, l, time.Hour, 10*time.Minute, func(rng *rand.Rand) time.Duration {
			grown := 1 + time.Since(begin).Hours()/24/days*1.8
			return time.Duration(float64(80+rng.IntN(20)) * grown * float64(time.Second))
		})
	}},
	{"lapsing", []string{"lapsed"}, nil, func(s *sim, rng *rand.Rand, name string) { // a worker is killed now and then
		l := s.declare(name, holdlock.LockOptions{TTL: 30 * time.Second, DoubleRun: holdlock.Costly})
		kills := rand.New(rand.NewPCG(rng.Uint64(), 1))
		s.wg.Go(func() {
			rng := kills
			for range 3 + rng.IntN(4) {
				time.Sleep(time.Duration(20+rng.IntN(100)) * time.Hour)
				if _, err := s.store.Acquire(context.Background(), &driver.AcquireRequest{
					Ref: driver.Ref{Key: name, Nonce: fmt.Sprintf("%032x", rng.Uint64())}, TTL: 30 * time.Second,
				}); err != nil {
					continue // it was not the one that held it
				}
			}
		})
		s.schedule(rng, l, 40*time.Minute, 5*time.Minute, lognormal(20*time.Second, 0.5))
	}},
	{"blocking", []string{"blocking"}, []string{"overrunning"}, func(s *sim, rng *rand.Rand, name string) { // it hangs for hours once
		l := s.declare(name, holdlock.LockOptions{TTL: 30 * time.Second, DoubleRun: holdlock.Costly})
		hang := time.Now().Add(time.Duration(5+rng.IntN(15)) * 24 * time.Hour)
		var hangs time.Time // the tick that does, whichever replica gets it
		s.schedule(rng, l, 40*time.Minute, 5*time.Minute, func(rng *rand.Rand) time.Duration {
			if now := time.Now(); now.After(hang) && (hangs.IsZero() || now.Equal(hangs)) {
				hangs = now
				return 20 * time.Hour
			}
			return lognormal(20*time.Second, 0.5)(rng)
		})
	}},
	{"starving", []string{"starving"}, nil, func(s *sim, rng *rand.Rand, name string) {
		l := s.declare(name, holdlock.LockOptions{TTL: 30 * time.Second, DoubleRun: holdlock.Costly, Wait: 5 * time.Second})
		s.schedule(rng, l, 45*time.Minute, 0, lognormal(20*time.Second, 0.5))
	}},
	{"drifting", []string{"drifted"}, nil, func(s *sim, rng *rand.Rand, name string) { // one replica has been forgotten in the roll-out
		l := s.declare(name, holdlock.LockOptions{TTL: 30 * time.Second, DoubleRun: holdlock.Costly})
		other, err := s.replicas[1].NewLock(name, &holdlock.LockOptions{TTL: 20 * time.Second, DoubleRun: holdlock.Costly})
		if err != nil {
			s.Error(err)
		}
		l[1] = other
		s.schedule(rng, l, 45*time.Minute, 5*time.Minute, lognormal(20*time.Second, 0.5))
	}},
	{"undeclared", []string{"undeclared"}, nil, func(s *sim, rng *rand.Rand, name string) {
		l := s.declare(name, holdlock.LockOptions{TTL: 30 * time.Second})
		s.schedule(rng, l, 45*time.Minute, 5*time.Minute, lognormal(20*time.Second, 0.5))
	}},
	{"unfenced", []string{"guard unseen", "risk accepted"}, nil, func(s *sim, rng *rand.Rand, name string) {
		l := s.declare(name, holdlock.LockOptions{TTL: 30 * time.Second, DoubleRun: holdlock.Harmful, Guard: holdlock.Fenced, AcceptRisk: "we refund"})
		s.schedule(rng, l, 45*time.Minute, 5*time.Minute, lognormal(20*time.Second, 0.5))
	}},
	{"harmless", []string{"declared idempotent"}, nil, func(s *sim, rng *rand.Rand, name string) {
		l := s.declare(name, holdlock.LockOptions{TTL: 30 * time.Second, DoubleRun: holdlock.Harmless})
		s.schedule(rng, l, 45*time.Minute, 5*time.Minute, lognormal(20*time.Second, 0.5))
	}},
	{"slow to notice", []string{"TTL too long"}, nil, func(s *sim, rng *rand.Rand, name string) {
		l := s.declare(name, holdlock.LockOptions{TTL: 4 * time.Hour, DoubleRun: holdlock.Costly})
		s.schedule(rng, l, 45*time.Minute, 5*time.Minute, lognormal(20*time.Second, 0.5))
	}},
	{"shadow", []string{"shadow"}, nil, func(s *sim, rng *rand.Rand, name string) {
		l := s.declare(name, holdlock.LockOptions{TTL: 30 * time.Second, DoubleRun: holdlock.Costly, Mode: holdlock.Shadow})
		s.schedule(rng, l, 40*time.Minute, 5*time.Minute, lognormal(time.Minute, 0.5))
	}},
	{"cut off", []string{"overrunning"}, nil, func(s *sim, rng *rand.Rand, name string) {
		l := s.declare(name, holdlock.LockOptions{TTL: 30 * time.Second, MaxHold: 90 * time.Second, DoubleRun: holdlock.Costly})
		s.schedule(rng, l, 45*time.Minute, 5*time.Minute, func(rng *rand.Rand) time.Duration {
			if rng.IntN(50) == 0 {
				return 2 * time.Minute
			}
			return time.Duration(10+rng.IntN(30)) * time.Second
		})
	}},
}

// restart ends the processes and starts others.
func (s *sim) restart() {
	for i := range s.replicas {
		s.replicas[i] = s.open()
	}
}

// declare declares a lock in all replicas.
func (s *sim) declare(name string, o holdlock.LockOptions) (locks []*holdlock.Lock) {
	for _, c := range s.replicas {
		l, err := c.NewLock(name, &o)
		if err != nil {
			s.Error(err)
			return nil
		}
		locks = append(locks, l)
	}
	return locks
}

// schedule runs a job on all replicas, as cron does: nearly at the same time, again and again.
func (s *sim) schedule(rng *rand.Rand, locks []*holdlock.Lock, every, jitter time.Duration, work func(*rand.Rand) time.Duration) {
	for time.Now().Before(s.end) {
		time.Sleep(every + time.Duration(rng.Int64N(int64(jitter)+1)))
		var tick sync.WaitGroup
		for _, l := range locks {
			after, takes := time.Duration(rng.IntN(2000))*time.Millisecond, work(rng)
			tick.Go(func() {
				time.Sleep(after)
				_ = l.Do(context.Background(), func(ctx context.Context, _ *holdlock.Lease) error {
					select {
					case <-time.After(takes):
					case <-ctx.Done():
					}
					return nil
				})
			})
		}
		done := make(chan struct{})
		go func() { tick.Wait(); close(done) }()
		select { // a run that hangs does not stop the clock
		case <-done:
		case <-time.After(every):
		}
	}
}

func lognormal(median time.Duration, sigma float64) func(*rand.Rand) time.Duration {
	return func(rng *rand.Rand) time.Duration {
		return time.Duration(float64(median) * math.Exp(sigma*rng.NormFloat64()))
	}
}

// simulate plays 30 days and returns what a review finds, by lock.
func simulate(t *testing.T, seed uint64) (found map[string][]Finding) {
	synctest.Test(t, func(t *testing.T) {
		store := memhold.NewStore()
		s := &sim{
			T: t, store: memhold.NewDriver(&memhold.Options{Store: store}),
			end: time.Now().Add(days * 24 * time.Hour),
		}
		from := time.Now()
		var mu sync.Mutex
		var opened []*holdlock.Client
		s.open = func() *holdlock.Client {
			c, err := holdlock.NewClient(memhold.NewDriver(&memhold.Options{Store: store}),
				&holdlock.ClientOptions{Recorder: ledger.New(&ledger.Options{Every: time.Hour})})
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			opened = append(opened, c)
			return c
		}
		for i, l := range lives {
			rng := rand.New(rand.NewPCG(seed, uint64(i)))
			own := &sim{T: t, store: s.store, shared: store, open: s.open, end: s.end, replicas: make([]*holdlock.Client, 2)}
			s.wg.Go(func() {
				own.restart()
				l.live(own, rng, l.name)
				own.wg.Wait()
			})
		}
		s.wg.Wait()
		time.Sleep(time.Until(s.end))
		for _, c := range opened {
			if err := c.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
		}
		locks, problems, err := ledger.Load(t.Context(), s.store, driver.DayOf(from), driver.DayOf(time.Now()))
		if err != nil || len(problems) > 0 {
			t.Fatal(problems, err)
		}
		found = map[string][]Finding{}
		for _, l := range locks {
			found[l.Name] = Judge(l, Period{from, time.Now()})
		}
	})
	return found
}

func TestSimulation(t *testing.T) {
	first, last := uint64(1), uint64(*seeds)
	if *seed != 0 {
		first, last = *seed, *seed
	}
	for n := first; n <= last; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			judgeLives(t, n)
		})
	}
}

// judgeLives compares what a review finds with what was planted.
func judgeLives(t *testing.T, seed uint64) {
	found := simulate(t, seed)
	for _, l := range lives {
		kinds := map[string]Finding{}
		for _, f := range found[l.name] {
			kinds[f.Kind] = f
		}
		for _, want := range l.want {
			if _, ok := kinds[want]; !ok {
				t.Errorf("seed %d: lock %q: %q is not found", seed, l.name, want)
			} else if want == "lapsed" && kinds[want].Severity == Note { // as if nobody ran beside it
				t.Errorf("seed %d: lock %q: %s", seed, l.name, kinds[want].Evidence)
			}
			delete(kinds, want)
		}
		for kind, f := range kinds {
			if !slices.Contains(l.also, kind) {
				t.Errorf("seed %d: lock %q is accused of %q: %s", seed, l.name, kind, f.Evidence)
			}
		}
	}
}
