package drivertest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/faultdriver"
)

var historyCases = []testCase{historyCase(1)}

func historyCase(seed uint64) testCase {
	return testCase{"R1/NoOverlapUnderFaults", func(r *rig) { r.history(seed) }}
}

// RunHistory runs the case R1/NoOverlapUnderFaults with another seed: many clients acquire, renew, overrun and release
// while their requests and replies get lost, late and stuck. What they believe is recorded and given to CheckHistory. It
// takes about a second in real time. The seed decides about the faults and the intentions of the clients; how they
// interleave is up to the scheduler.
func RunHistory(t *testing.T, h Harness, seed uint64) {
	h.run(t, historyCase(seed), nil, nil)
}

func (r *rig) history(seed uint64) {
	r.Helper()
	length := 1200 * time.Millisecond
	if r.h.Virtual {
		length = 40 * time.Second
	}
	end := time.Now().Add(length)
	patience := end.Add(10 * length) // for a store, or a machine, on which hardly anything succeeds in that time
	odds := faultdriver.Odds{
		Drop: 0.05, Lose: 0.1, Before: 0.1, After: 0.1, Ghost: 0.5, Hang: 0.02, MaxDelay: r.short,
	}
	var (
		mu      sync.Mutex
		tenures []Tenure
		clients sync.WaitGroup
	)
	few := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(tenures) < 3
	}
	for i := range 3 {
		d := faultdriver.New(r.open(), faultdriver.Seeded(seed+uint64(i), odds))
		r.opened[len(r.opened)-1] = d // to be closed instead: it waits for what is on its way
		for j := range 3 {
			c := &client{
				rig: r, d: d, who: fmt.Sprintf("client %d.%d", i, j), end: end,
				dice: rand.New(rand.NewPCG(seed, uint64(10*i+j))),
			}
			clients.Go(func() {
				for time.Now().Before(end) || few() && time.Now().Before(patience) {
					if t, ok := c.attempt(); ok {
						mu.Lock()
						tenures = append(tenures, t)
						mu.Unlock()
					}
					c.sleep(r.short / 8)
				}
			})
		}
	}
	clients.Wait()
	if len(tenures) < 3 {
		r.Errorf("seed %d: only %d tenures came about; the store is too slow to tell anything", seed, len(tenures))
	}
	if wrong := CheckHistory(tenures); len(wrong) > 0 {
		r.Errorf("seed %d: %d faults in %d tenures, the first: %s", seed, len(wrong), len(tenures), wrong[0])
	}
}

// A client is one that uses a driver as it should, over bad connections. It belongs to one goroutine.
type client struct {
	*rig
	d    driver.Driver
	who  string
	end  time.Time
	dice *rand.Rand
}

func (c *client) sleep(upTo time.Duration) {
	time.Sleep(time.Duration(c.dice.Float64() * float64(upTo)))
}
func (c *client) odds(p float64) bool { return c.dice.Float64() < p }

// limited gives a call as long as the library would.
func (c *client) limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(c.ctx, c.short/2)
}

// attempt tries to acquire a key and to hold it for a while. ok is false if it was not granted.
func (c *client) attempt() (t Tenure, ok bool) {
	req := c.request(fmt.Sprintf("k%d", c.dice.IntN(2)), c.short)
	t = Tenure{Key: req.Ref.Key, Who: c.who, Invoked: time.Now()}
	for try := 0; ; try++ {
		ctx, cancel := c.limited()
		sent := time.Now()
		grant, err := c.d.Acquire(ctx, req)
		cancel()
		if err == nil {
			t.Token, t.Granted, t.Ended = grant.Token, time.Now(), sent.Add(req.TTL)
			break
		}
		var held *driver.HeldError
		if errors.As(err, &held) {
			return t, false
		}
		if try == 2 || c.odds(0.5) { // unclear, and given up: undo
			c.undo(req.Ref)
			return t, false
		}
	}
	for c.odds(0.6) {
		c.sleep(c.short / 3)
		if c.odds(0.1) {
			time.Sleep(c.short) // paused: it overruns
		}
		if c.odds(0.5) && !c.extend(&t, req.Ref) {
			break
		}
	}
	if c.odds(0.15) {
		return t, true // dies
	}
	if now := time.Now(); now.Before(t.Ended) {
		t.Ended = now
	}
	c.undo(req.Ref) // perhaps much too late
	return t, true
}

// extend renews a tenure and says whether it still stands.
func (c *client) extend(t *Tenure, ref driver.Ref) bool {
	ctx, cancel := c.limited()
	defer cancel()
	sent := time.Now()
	_, err := c.d.Renew(ctx, &driver.RenewRequest{Ref: ref, TTL: c.short})
	heard := time.Now()
	switch {
	case !heard.Before(t.Ended):
		return false // too late, whatever the answer is
	case errors.Is(err, driver.ErrGone):
		c.Errorf("R1: %v\n\twas gone at %s, before its deadline", t, heard.Format(stamp))
		return false
	case err == nil:
		t.Ended = sent.Add(c.short)
	}
	return true
}

// undo releases with some effort. It does not matter whether it succeeds.
func (c *client) undo(ref driver.Ref) {
	for range 3 {
		ctx, cancel := c.limited()
		err := c.d.Release(ctx, &driver.ReleaseRequest{Ref: ref})
		cancel()
		if err == nil || errors.Is(err, driver.ErrGone) {
			return
		}
	}
}
