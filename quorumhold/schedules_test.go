package quorumhold

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/drivertest"
	"github.com/holdlock/holdlock/driver/faultdriver"
)

// without switches a rule off.
type without struct {
	broken
	abstaining bool
}

// A told is what one schedule has shown.
type told struct {
	wrong           []string
	tenures, forgot int
}

// schedule lets clients contend for one lock over servers that forget, hang, are cut off and have clocks of their own,
// over connections that lose and delay. The seed decides about everything but the order of what happens in the same
// microsecond.
func schedule(t *testing.T, seed uint64, off without) (out told) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 0))
		ttl := time.Duration(200+rng.IntN(800)) * time.Millisecond
		maxTTL := max(ttl, 400*time.Millisecond)
		abstain := maxTTL + maxTTL/50
		if off.abstaining {
			abstain = 0
		}
		l := newLab([]int{3, 5, 5}[rng.IntN(3)], abstain)
		// Tokens survive the loss of counters, and wrong clocks, but not both together: so it is one or the other.
		forgetful, wrong := rng.IntN(2) == 0, tokenLead*3/4
		if !forgetful {
			wrong = 2 * time.Second
		}
		for _, s := range l.servers {
			s.rate = (rng.Float64() - 0.5) / 100
			s.offset = time.Duration(rng.Int64N(int64(2*wrong))) - wrong
		}
		end := time.Now().Add(25 * ttl)
		var (
			mu      sync.Mutex
			tenures []drivertest.Tenure
			group   sync.WaitGroup
		)
		odds := faultdriver.Odds{
			Drop: rng.Float64() / 10, Lose: rng.Float64() / 10, Before: rng.Float64() / 10, After: rng.Float64() / 10,
			Ghost: 0.5, MaxDelay: ttl,
		}
		group.Go(func() { l.nemesis(rand.New(rand.NewPCG(seed, 99)), ttl, end, forgetful) })
		for i := range 4 {
			dice := rand.New(rand.NewPCG(seed, uint64(i)+1))
			var nodes []driver.Driver
			for k, n := range l.nodes(steady(rand.New(rand.NewPCG(seed, uint64(i)+50)), ttl/200)) {
				nodes = append(nodes, faultdriver.New(n, faultdriver.Seeded(seed*100+uint64(10*i+k), odds)))
			}
			d, err := NewDriver(nodes, &Options{MaxTTL: maxTTL, NodeTimeout: ttl / 8})
			if err != nil {
				t.Fatal(err)
			}
			d.broken = off.broken
			if seed%3 == 0 {
				d.flights = 1 // so calls wait for their turn, and some are not made
			}
			luck := rand.New(rand.NewPCG(seed, uint64(i)+70))
			var luckMu sync.Mutex
			d.random = func(n time.Duration) time.Duration {
				luckMu.Lock()
				defer luckMu.Unlock()
				return time.Duration(luck.Int64N(int64(n)))
			}
			c := &contender{d: d, who: fmt.Sprintf("client %d", i), ttl: ttl, dice: dice, end: end}
			group.Go(func() {
				for time.Now().Before(end) {
					if tenure, ok := c.attempt(); ok {
						mu.Lock()
						tenures = append(tenures, tenure)
						mu.Unlock()
					}
					c.sleep(ttl / 6)
				}
				d.Close()
			})
		}
		group.Wait()
		for _, s := range l.servers {
			s.wake()
			out.forgot += s.forgets
		}
		time.Sleep(2 * ttl)
		out.wrong, out.tenures = drivertest.CheckHistory(tenures), len(tenures)
	})
	return out
}

// nemesis does things to the servers until end.
func (l *lab) nemesis(dice *rand.Rand, ttl time.Duration, end time.Time, forgetful bool) {
	var all sync.WaitGroup
	for time.Now().Before(end) {
		time.Sleep(time.Duration(dice.Int64N(int64(3 * ttl))))
		s := l.servers[dice.IntN(len(l.servers))]
		pause := time.Duration(dice.Int64N(int64(2 * ttl)))
		switch dice.IntN(4) {
		case 0, 1:
			if forgetful {
				s.forget()
			}
		case 2:
			s.hang()
			all.Go(func() { time.Sleep(pause); s.wake() })
		case 3:
			s.down(true)
			all.Go(func() { time.Sleep(pause); s.down(false) })
		}
	}
	all.Wait()
}

// A contender uses the driver as the library does, but believes in its term to the last moment.
type contender struct {
	d    *Driver
	who  string
	ttl  time.Duration
	dice *rand.Rand
	end  time.Time
}

func (c *contender) sleep(upTo time.Duration) { time.Sleep(time.Duration(c.dice.Int64N(int64(upTo)))) }

func (c *contender) attempt() (t drivertest.Tenure, ok bool) {
	req := request("k", c.ttl)
	t = drivertest.Tenure{Key: "k", Who: c.who, Invoked: time.Now()}
	ctx, cancel := context.WithTimeout(context.Background(), c.ttl/2)
	g, err := c.d.Acquire(ctx, req)
	cancel()
	if err != nil {
		return t, false
	}
	t.Token, t.Granted, t.Ended = g.Token, time.Now(), t.Invoked.Add(c.ttl)
	for n := c.dice.IntN(8); n > 0; n-- {
		c.sleep(c.ttl / 2)
		sent := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), c.ttl/4)
		_, err := c.d.Renew(ctx, &driver.RenewRequest{Ref: req.Ref, TTL: c.ttl})
		cancel()
		if !time.Now().Before(t.Ended) || errors.Is(err, driver.ErrGone) {
			break // too late, whatever the answer was; or lost
		}
		if err == nil {
			t.Ended = sent.Add(c.ttl)
		}
	}
	switch c.dice.IntN(4) {
	case 0: // dies
		return t, true
	case 1: // overruns
		c.sleep(2 * c.ttl)
	}
	if now := time.Now(); now.Before(t.Ended) {
		t.Ended = now
	}
	ctx, cancel = context.WithTimeout(context.Background(), c.ttl/4)
	defer cancel()
	_ = c.d.Release(ctx, &driver.ReleaseRequest{Ref: req.Ref})
	return t, true
}

func run(t *testing.T, from, to uint64, off without) (all told, bad int) {
	for s := from; s <= to; s++ {
		one := schedule(t, s, off)
		all.tenures, all.forgot = all.tenures+one.tenures, all.forgot+one.forgot
		if len(one.wrong) > 0 {
			bad++
			all.wrong = append(all.wrong, fmt.Sprintf("seed %d: %s", s, one.wrong[0]))
		}
	}
	return all, bad
}

func seedRange(few int) (from, to uint64) {
	switch {
	case *seed != 0:
		return *seed, *seed
	case *seeds != 0:
		return 1, uint64(*seeds)
	default:
		return 1, uint64(few)
	}
}

// R1 and R3 at the level of terms: no two overlap, and tokens rise, whatever the servers and the network do.
func TestSchedules(t *testing.T) {
	from, to := seedRange(40)
	all, _ := run(t, from, to, without{})
	for _, w := range all.wrong {
		t.Error(w)
	}
	t.Logf("%d schedules, %d tenures, %d times a server forgot", to-from+1, all.tenures, all.forgot)
	if n := int(to - from + 1); n > 10 && (all.tenures < 5*n || all.forgot < n) {
		t.Error("too tame to show anything")
	}
}

// The same schedules find what is wrong when a rule is switched off.
func TestSchedulesFind(t *testing.T) {
	for name, tt := range map[string]struct {
		off  without
		rule string
	}{
		"without abstaining": {without{abstaining: true}, "R1"},
		"without raising":    {without{broken: broken{raise: true}}, "R3"},
	} {
		t.Run(name, func(t *testing.T) {
			for s := uint64(1); s <= 3000; s++ {
				for _, w := range schedule(t, s, tt.off).wrong {
					if w[:2] == tt.rule {
						t.Logf("seed %d: %s", s, w)
						return
					}
				}
			}
			t.Errorf("nothing found under %s", tt.rule)
		})
	}
}
