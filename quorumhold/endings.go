package quorumhold

import (
	"sync"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// When a term runs out, the nodes free it within milliseconds of each other, and whoever polls meanwhile is granted some of
// them, fails, and gives them back. A node that has heard of that by the next grant still tells of the term before; one that
// has not may call it released. So what a failed attempt was told of a lapse is kept for a moment as well, for the next attempt
// of this process.
const (
	keepEnding = 2 * time.Second
	maxEndings = 1024
)

type endings struct {
	mu    sync.Mutex
	byKey map[string]ending
}

type ending struct {
	how   driver.Ending
	prior *driver.Term
	until time.Time
}

// keep remembers what the nodes told of a term that is now given back.
func (e *endings) keep(key string, g driver.Grant) {
	if g.Previous != driver.Lapsed && g.Previous != driver.Broken {
		return
	}
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.byKey) >= maxEndings {
		for k, x := range e.byKey {
			if now.After(x.until) {
				delete(e.byKey, k)
			}
		}
	}
	if len(e.byKey) < maxEndings {
		e.byKey[key] = ending{g.Previous, g.Prior, now.Add(keepEnding)}
	}
}

// take returns what was kept, once.
func (e *endings) take(key string) (driver.Ending, *driver.Term) {
	e.mu.Lock()
	defer e.mu.Unlock()
	x, ok := e.byKey[key]
	delete(e.byKey, key)
	if !ok || time.Now().After(x.until) {
		return driver.None, nil
	}
	return x.how, x.prior
}

// lastEnding says how the term before ended, from what the nodes of a majority were told. Not all of them have seen it
// stand, and some have since been granted to attempts that failed, which they may call released: so a lapse counts if enough of
// them say the same. If a majority calls the last term released, it was; others have missed that term and tell of an older one.
func lastEnding(told []driver.Grant, enough, need int) (how driver.Ending, prior *driver.Term) {
	votes := map[driver.Ending]int{}
	for _, g := range told {
		votes[g.Previous]++
	}
	if votes[driver.Released] >= need {
		return driver.Released, nil
	}
	for _, e := range []driver.Ending{driver.Broken, driver.Lapsed, driver.Released} {
		if n := votes[e]; n >= enough && n > 0 || e == driver.Released && n > 0 {
			how = e
			break
		}
	}
	for _, g := range told {
		if g.Previous == how && g.Prior != nil && (prior == nil || g.Prior.Token < prior.Token) {
			prior = g.Prior
		}
	}
	return how, prior
}
