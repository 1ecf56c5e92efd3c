//go:build unix

package redishold

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// Waiters whose TTL is shorter than a heartbeat make progress, strictly in the order in which they stand in line. A claim
// that has run out by the server's clock before its waiter was run by the machine is all that excuses one, and only him.
func TestLineWithShortTTLs(t *testing.T) {
	t.Parallel()
	o := shortTTLs(t, nil, nobody)
	if wrong := o.wrong(); wrong != "" {
		t.Error(wrong)
	}
	t.Logf("%d waiters with a TTL of %v: %d claims ran out, the others were granted in order", shortWaiters, shortTTL, len(o.excused()))
}

// The excuse holds for those whose claim ran out, and not for those behind them.
func TestLinePassesAClaimThatRanOut(t *testing.T) {
	t.Parallel()
	const deaf = 7
	o := shortTTLs(t, nil, deaf)
	if wrong := o.wrong(); wrong != "" {
		t.Error(wrong)
	}
	if who := o.excused(); !slices.Contains(who, deaf) {
		t.Errorf("the claims of %v ran out, and not that of the one who does not hear", who)
	}
	if at := slices.Index(o.leases, deaf); at < deaf+1 {
		t.Errorf("the one who does not hear had its lease at place %d", at)
	}
}

// The control: a server that serves the last one first is found out.
func TestShortTTLsTellTheOrder(t *testing.T) {
	t.Parallel()
	o := shortTTLs(t, unfairly, nobody)
	if o.wrong() == "" {
		t.Errorf("granted in the order %v, and it was taken for the right one", o.leases)
	}
}

const (
	shortWaiters = 50
	shortTTL     = 300 * time.Millisecond
	nobody       = -1
)

// shortTTLs lets waiters take a lock one after the other. change replaces scripts; deaf is one who does not hear of its grant
// until it is too late.
func shortTTLs(t *testing.T, change func(*script) *script, deaf int) *orderly {
	t.Helper()
	for try := 1; ; try++ {
		o := takeTurnsInOrder(t, change, deaf)
		o.mu.Lock()
		silent := o.silent
		o.mu.Unlock()
		if silent < driver.Alive-shortTTL {
			return o
		}
		// The server takes it for dead, as it should, and skips all of its places.
		if try == 5 {
			t.Fatalf("the machine stood still for %v, also in try %d", silent, try)
		}
	}
}

func takeTurnsInOrder(t *testing.T, change func(*script) *script, deaf int) *orderly {
	t.Helper()
	r := testenv.StartRedis(t)
	o := &orderly{
		Driver: openDriver(t, r.Addr, nil), places: map[string]int{}, listed: make(chan int, shortWaiters), deaf: deaf,
	}
	if change != nil {
		s := o.Driver.scripts
		for _, one := range []**script{&s.acquire, &s.release, &s.turn, &s.attend} {
			*one = change(*one)
		}
	}
	c, err := holdlock.NewClient(o, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Shutdown(context.Background()) }()
	holder := mustAcquire(t, newLock(t, open(t, r.Addr, nil), "k", time.Minute))
	var wg sync.WaitGroup
	for i := range shortWaiters {
		l, err := c.NewLock("k", &holdlock.LockOptions{TTL: shortTTL, Purpose: strconv.Itoa(i)})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			for {
				lease, err := l.Acquire(t.Context())
				if errors.Is(err, holdlock.ErrUnknown) || errors.Is(err, holdlock.ErrUnreachable) {
					continue // the machine was slower than the TTL: it does not stand in line yet
				}
				if err != nil {
					t.Error(err)
					return
				}
				o.mu.Lock()
				o.leases = append(o.leases, i)
				o.mu.Unlock()
				_ = lease.Release(t.Context()) // on a busy machine it may have been lost
				return
			}
		})
		select {
		case n := <-o.listed:
			if n != i {
				t.Fatalf("waiter %d stands in line, want %d", n, i)
			}
		case <-time.After(60 * time.Second):
			t.Fatalf("waiter %d does not stand in line", i)
		}
	}
	testenv.Eventually(t, "they listen", func() bool {
		return strings.Contains(r.Do(t, "PUBSUB", "CHANNELS", "*"), o.channel()+o.hub.id)
	})
	if err := holder.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	return o
}

// orderly is a driver that remembers who stood in line and when the server granted it, from all that it hears.
type orderly struct {
	*Driver
	listed chan int
	deaf   int

	mu     sync.Mutex
	places map[string]int // the nonces of the first places
	seen   [shortWaiters]bool
	grants []orderlyGrant
	leases []int // who had them
	beaten time.Time
	silent time.Duration // the longest time between heartbeats
}

type orderlyGrant struct {
	who   int // or nobody: of a place that is not the first one
	token driver.Token
}

func (o *orderly) Enqueue(ctx context.Context, req *driver.AcquireRequest) (driver.Grant, error) {
	g, err := o.Driver.Enqueue(ctx, req)
	var held *driver.HeldError
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err == nil:
		o.granted(req.Ref.Nonce, g.Token)
	case errors.As(err, &held) && held.Place > 0:
		who, err := strconv.Atoi(req.Holder.Purpose)
		if err != nil {
			panic(err)
		}
		if !o.seen[who] {
			o.seen[who], o.places[req.Ref.Nonce] = true, who
			o.listed <- who
		}
	}
	return g, err
}

// granted is called with mu held.
func (o *orderly) granted(nonce string, token driver.Token) {
	if slices.ContainsFunc(o.grants, func(g orderlyGrant) bool { return g.token == token }) {
		return // heard twice
	}
	who, ok := o.places[nonce]
	if !ok {
		who = nobody
	}
	o.grants = append(o.grants, orderlyGrant{who, token})
}

// muffled says whether a nonce is that of the one who does not hear, as long as nobody else was granted after it.
func (o *orderly) muffled(nonce string) bool {
	who, ok := o.places[nonce]
	if !ok || o.deaf == nobody || who != o.deaf {
		return false
	}
	at := slices.IndexFunc(o.grants, func(g orderlyGrant) bool { return g.who == who })
	return at >= 0 && at == len(o.grants)-1
}

func (o *orderly) Listen(ctx context.Context, hear func(driver.Push)) error {
	return o.Driver.Listen(ctx, func(p driver.Push) {
		o.mu.Lock()
		if p.Nonce != "" {
			o.granted(p.Nonce, p.Grant.Token)
		}
		muffled := o.muffled(p.Nonce)
		o.mu.Unlock()
		if !muffled {
			hear(p)
		}
	})
}

func (o *orderly) Attend(ctx context.Context, reqs []*driver.AcquireRequest) []driver.Standing {
	out := make([]driver.Standing, len(reqs))
	var some []*driver.AcquireRequest
	var which []int
	o.mu.Lock()
	for i, req := range reqs {
		if o.muffled(req.Ref.Nonce) {
			out[i].Err = fmt.Errorf("no answer (%w)", driver.ErrNotApplied)
			continue
		}
		some, which = append(some, req), append(which, i)
	}
	o.mu.Unlock()
	for n, s := range o.Driver.Attend(ctx, some) {
		out[which[n]] = s
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if !o.beaten.IsZero() {
		o.silent = max(o.silent, now.Sub(o.beaten))
	}
	o.beaten = now
	for i, s := range out {
		if s.Granted {
			o.granted(reqs[i].Ref.Nonce, s.Grant.Token)
		}
		if s.Granted && o.muffled(reqs[i].Ref.Nonce) {
			out[i] = driver.Standing{Err: fmt.Errorf("no answer (%w)", driver.ErrNotApplied)}
		}
	}
	return out
}

// sorted returns what the server has granted, in its order: a token is the time of the server in µs.
func (o *orderly) sorted() []orderlyGrant {
	o.mu.Lock()
	defer o.mu.Unlock()
	slices.SortFunc(o.grants, func(a, b orderlyGrant) int { return cmp.Compare(a.token, b.token) })
	return slices.Clone(o.grants)
}

// excused are those who had the key for at least their claim before the next one got it.
func (o *orderly) excused() (who []int) {
	all := o.sorted()
	for i, g := range all {
		if g.who != nobody && i+1 < len(all) && all[i+1].token-g.token >= driver.Token(shortTTL.Microseconds()) {
			who = append(who, g.who)
		}
	}
	return who
}

// wrong says what is not in order, or nothing.
func (o *orderly) wrong() string {
	var granted, leases []int
	for _, g := range o.sorted() {
		if g.who != nobody {
			granted = append(granted, g.who)
		}
	}
	excused := o.excused()
	for _, who := range o.leases {
		if !slices.Contains(excused, who) {
			leases = append(leases, who)
		}
	}
	everybody := slices.Clone(o.leases)
	slices.Sort(everybody)
	switch {
	case !slices.IsSorted(granted) || len(granted) != shortWaiters:
		return fmt.Sprintf("the server has granted in the order %v", granted)
	case !slices.IsSorted(leases):
		return fmt.Sprintf("the leases were had in the order %v, and only the claims of %v ran out", o.leases, excused)
	case len(slices.Compact(everybody)) != shortWaiters || len(o.leases) != shortWaiters:
		return fmt.Sprintf("not everybody had it once: %v", o.leases)
	}
	return ""
}
