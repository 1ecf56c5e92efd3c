package holdlock_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
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
)

var (
	seeds = flag.Int("seeds", 60, "how many random schedules TestHistory runs")
	seed  = flag.Uint64("seed", 0, "run this one schedule only")
)

// section is the time for which one holder believed in its lease, as its work saw it.
type section struct {
	client         int
	token          holdlock.Token
	invoked        time.Time // before the call that led to it
	granted, ended time.Time // ended: when the work had stopped, or its context told it to
}

// findings are what is wrong with a history: sections that overlap (R1, R2), and tokens that repeat or fall (R3).
func findings(history []section) (out []string) {
	if len(history) == 0 {
		return nil
	}
	slices.SortFunc(history, func(a, b section) int { return a.granted.Compare(b.granted) })
	for i, s := range history[1:] {
		if before := history[i]; s.granted.Before(before.ended) {
			out = append(out, fmt.Sprintf("R2: client %d (token %d) believed from %v on, client %d (token %d) until %v",
				s.client, s.token, s.granted, before.client, before.token, before.ended))
		}
	}
	// Returned before invoked implies a smaller token.
	byReturn := slices.Clone(history)
	invoked := slices.Clone(history)
	slices.SortFunc(invoked, func(a, b section) int { return a.invoked.Compare(b.invoked) })
	var highest holdlock.Token
	next := 0
	for _, s := range invoked {
		for next < len(byReturn) && byReturn[next].granted.Before(s.invoked) {
			highest = max(highest, byReturn[next].token)
			next++
		}
		if s.token <= highest {
			out = append(out, fmt.Sprintf("R3: client %d got token %d after %d had been returned", s.client, s.token, highest))
		}
	}
	slices.SortFunc(byReturn, func(a, b section) int { return cmp.Compare(a.token, b.token) })
	for i, s := range byReturn[1:] {
		if s.token == byReturn[i].token {
			out = append(out, fmt.Sprintf("R3: token %d twice", s.token))
		}
	}
	return out
}

// schedule lets several clients contend for one lock over drivers that lose, delay and hang, and returns who believed
// what when. The same seed is the same schedule. bend, if not nil, is put between each client and its faulty driver.
func schedule(t *testing.T, seed uint64, bend func(driver.Driver) driver.Driver) (history []section, lost int) {
	synctest.Test(t, func(t *testing.T) {
		var (
			mu    sync.Mutex
			group sync.WaitGroup
			store = memhold.NewStore()
			rng   = rand.New(rand.NewPCG(seed, 0))
			ttl   = time.Duration(200+rng.IntN(800)) * time.Millisecond
			odds  = faultdriver.Odds{
				Drop: rng.Float64() / 5, Lose: rng.Float64() / 5, Before: rng.Float64() / 3, After: rng.Float64() / 3,
				Ghost: rng.Float64() / 5, Hang: rng.Float64() / 10, MaxDelay: ttl + ttl/2,
			}
			end = time.Now().Add(60 * ttl)
		)
		for i := range 5 {
			var drv driver.Driver = faultdriver.New(memhold.NewDriver(&memhold.Options{Store: store}), faultdriver.Seeded(seed+uint64(i), odds))
			if bend != nil {
				drv = bend(drv)
			}
			c, err := holdlock.NewClient(drv, nil)
			if err != nil {
				t.Fatal(err)
			}
			l, err := c.NewLock("job", &holdlock.LockOptions{TTL: ttl, Wait: ttl, MaxHold: 20 * ttl})
			if err != nil {
				t.Fatal(err)
			}
			dice := rand.New(rand.NewPCG(seed, uint64(i)+1))
			group.Go(func() {
				for time.Now().Before(end) {
					s := section{client: i, invoked: time.Now()}
					err := l.Do(t.Context(), func(ctx context.Context, lease *holdlock.Lease) error {
						s.token, s.granted = lease.Token(), time.Now()
						hold := time.NewTimer(time.Duration(dice.Int64N(int64(3 * ttl))))
						defer hold.Stop()
						select {
						case <-ctx.Done():
						case <-hold.C:
						}
						s.ended = time.Now()
						return nil
					})
					mu.Lock()
					if !s.granted.IsZero() {
						history = append(history, s)
					}
					if errors.Is(err, holdlock.ErrLost) {
						lost++
					}
					mu.Unlock()
					time.Sleep(time.Duration(dice.Int64N(int64(ttl / 4))))
				}
				if err := c.Shutdown(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
	})
	return history, lost
}

// R1, R2, R3 over many random schedules: no two holders believe at the same time, and tokens rise.
func TestHistory(t *testing.T) {
	from, to := uint64(1), uint64(*seeds)
	if *seed != 0 {
		from, to = *seed, *seed
	}
	grants, losses := 0, 0
	for s := from; s <= to; s++ {
		history, lost := schedule(t, s, nil)
		for _, f := range findings(history) {
			t.Errorf("seed %d: %s", s, f)
		}
		grants, losses = grants+len(history), losses+lost
	}
	t.Logf("%d schedules, %d leases, %d lost", to-from+1, grants, losses)
	if *seed == 0 && (grants < 10**seeds || losses < *seeds) {
		t.Errorf("%d leases and %d losses in %d schedules: too tame to show anything", grants, losses, *seeds)
	}
}

// shortTerms is a store that keeps terms for half as long as it says: as if trust were counted wrongly.
type shortTerms struct{ driver.Driver }

func (d shortTerms) Acquire(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	short := *req
	short.TTL /= 2
	return d.Driver.Acquire(ctx, &short)
}

func (d shortTerms) Renew(ctx context.Context, req *driver.RenewRequest) (driver.Grant, error) {
	short := *req
	short.TTL /= 2
	return d.Driver.Renew(ctx, &short)
}

// sameToken is a store whose tokens do not rise.
type sameToken struct{ driver.Driver }

func (d sameToken) Acquire(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	g, err := d.Driver.Acquire(ctx, req)
	g.Token = 7
	return g, err
}

// TestHistory can fail: the same schedules find what is wrong with a bad store.
func TestHistoryFinds(t *testing.T) {
	for name, tt := range map[string]struct {
		bend func(driver.Driver) driver.Driver
		rule string
	}{
		"short terms": {func(d driver.Driver) driver.Driver { return shortTerms{d} }, "R2"},
		"same token":  {func(d driver.Driver) driver.Driver { return sameToken{d} }, "R3"},
	} {
		found := map[string]int{}
		for s := range uint64(20) {
			history, _ := schedule(t, s+1, tt.bend)
			for _, f := range findings(history) {
				found[f[:2]]++
			}
		}
		if found[tt.rule] == 0 {
			t.Errorf("%s: nothing found under %s", name, tt.rule)
		}
	}
}
