package quorumhold

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// What nodes tell: l5 is a lapse of the term with token 5, and l5a that of the term with nonce a, and so on; - is nothing at all.
func telling(words ...string) (told []driver.Grant) {
	for _, w := range words {
		g := driver.Grant{Previous: map[byte]driver.Ending{'l': driver.Lapsed, 'b': driver.Broken, 'r': driver.Released}[w[0]]}
		switch {
		case len(w) == 1:
		case g.Previous == driver.Released:
			g.PriorToken = driver.Token(w[1] - '0')
		default:
			g.Prior = &driver.Term{Token: driver.Token(w[1] - '0'), Nonce: w[2:]}
		}
		told = append(told, g)
	}
	return told
}

func TestLastEnding(t *testing.T) {
	type decides func(told []driver.Grant, silent, need int) (driver.Grant, bool)
	wrong := func(decide decides) (bad []string) {
		for what, c := range map[string]struct {
			told []string
			of   int
			how  driver.Ending
			last driver.Token
			sure bool
		}{
			"all tell the same":                       {[]string{"l5", "l5", "l5"}, 5, driver.Lapsed, 5, true},
			"nobody has seen any":                     {[]string{"-", "-", "-"}, 5, driver.None, 0, true},
			"one has missed the release":              {[]string{"r5", "l5"}, 3, driver.Released, 5, true},
			"two have missed the term that lapsed":    {[]string{"r4", "r4", "l5"}, 5, driver.Lapsed, 5, false},
			"one has missed all that came since":      {[]string{"l2", "r5", "r5"}, 5, driver.Released, 5, true},
			"a failed attempt is left at one":         {[]string{"l7", "r5", "r5", "r5", "r5"}, 5, driver.Released, 5, true},
			"a failed attempt is left, after a lapse": {[]string{"l7", "l5", "l5", "l5"}, 5, driver.Lapsed, 5, true},
			"it may be one, or a term of three":       {[]string{"l7", "r5", "r5"}, 5, driver.Lapsed, 7, false},
			"one has forgotten":                       {[]string{"-", "l5", "l5"}, 3, driver.Lapsed, 5, true},
			"broken, which two have missed":           {[]string{"b5", "l5", "l5"}, 5, driver.Broken, 5, true},
			"broken at once, and then given back":     {[]string{"b5", "r5", "b5"}, 5, driver.Broken, 5, false},
			"broken, and given back all the same":     {[]string{"r5", "b5", "r5"}, 5, driver.Released, 5, false},
			"no token is told of what was released":   {[]string{"r", "r", "l5"}, 3, driver.Released, 0, true},
			"no token is told, and one has missed":    {[]string{"r", "l5", "l5"}, 3, driver.Lapsed, 5, true},
			"it has a token of its own at each":       {[]string{"l5a", "l6a", "l7a"}, 3, driver.Lapsed, 5, true},
			"and at two of five":                      {[]string{"l5a", "l7a", "l5a"}, 5, driver.Lapsed, 5, true},
			"and was given back at one":               {[]string{"r7", "l5a", "l7a"}, 3, driver.Released, 7, true},
			"one lapsed after one that has several":   {[]string{"l4a", "l5a", "l8b", "l8b"}, 5, driver.Lapsed, 8, false},
			"two attempts are left, after a release":  {[]string{"l7a", "l8b", "r5", "r5", "r5"}, 5, driver.Released, 5, true},
			"nothing is told of what lapsed":          {[]string{"l", "l", "-"}, 3, driver.Lapsed, 0, true},
		} {
			g, sure := decide(telling(c.told...), c.of-len(c.told), c.of/2+1)
			if g.Previous != c.how || lastToken(g) != c.last || sure != c.sure {
				bad = append(bad, what)
				t.Logf("%s: %v of token %d, sure %v; want %v of %d, sure %v", what, g.Previous, lastToken(g), sure, c.how, c.last, c.sure)
			}
		}
		return bad
	}
	if bad := wrong(lastEnding); len(bad) > 0 {
		t.Errorf("wrong: %q", bad)
	}
	for name, twin := range map[string]decides{
		"what most say": func(told []driver.Grant, _, _ int) (best driver.Grant, sure bool) {
			votes, most := map[driver.Ending]int{}, 0
			for _, g := range told {
				if votes[g.Previous]++; votes[g.Previous] > most {
					best, most = g, votes[g.Previous]
				}
			}
			return best, true
		},
		"by tokens alone": func(told []driver.Grant, silent, need int) (driver.Grant, bool) {
			var bare []driver.Grant
			for _, g := range told {
				if g.Prior != nil {
					g.Prior = &driver.Term{Token: g.Prior.Token}
				}
				bare = append(bare, g)
			}
			return lastEnding(bare, silent, need)
		},
		"the highest token": func(told []driver.Grant, silent, need int) (best driver.Grant, sure bool) {
			for _, g := range told {
				if lastToken(g) >= lastToken(best) {
					best = g
				}
			}
			return lastEnding([]driver.Grant{best, best, best}, 0, 3)
		},
	} {
		if len(wrong(twin)) == 0 {
			t.Errorf("the control %q is not found out", name)
		}
	}
}

// latencies lets the connections of one client be slow to some servers.
func (l *lab) latencies(t *testing.T, slow map[int]time.Duration) *Driver {
	t.Helper()
	nodes := l.nodes(nil)
	for i, n := range nodes {
		n.(*conn).latency = func() time.Duration { return rtt/2 + slow[i] }
	}
	d, err := NewDriver(nodes, nil)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// next lets a term run out and says how its successor is told that it ended, by the servers that are not slow.
func (l *lab) next(t *testing.T, slow map[int]time.Duration) driver.Grant {
	t.Helper()
	time.Sleep(2 * time.Second)
	d := l.latencies(t, slow)
	defer d.Close()
	req := request("k", time.Second)
	g, err := d.Acquire(t.Context(), req)
	if err == nil {
		err = d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref})
	}
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// A server that is away while a term is given back, by a process that ends then, does not make it a lapse.
func TestAMissedReleaseIsNoLapse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(3, 0)
		d := l.client(t, broken{})
		req := request("k", time.Second)
		if _, err := d.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * rtt)
		l.servers[2].down(true)
		if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
			t.Fatal(err)
		}
		d.Close() // and with the process what is still to be sent
		l.servers[2].down(false)
		if g := l.next(t, map[int]time.Duration{1: 10 * rtt}); g.Previous != driver.Released {
			t.Errorf("told: %v, want released", g.Previous)
		}
	})
}

// Servers that are away while a term stands elsewhere do not make its lapse a release.
func TestALapseThatNodesMissed(t *testing.T) {
	for slow := range 5 { // whoever is heard last
		synctest.Test(t, func(t *testing.T) {
			l := newLab(5, 0)
			l.next(t, nil) // a term that is released on all
			for _, s := range l.servers[:2] {
				s.down(true)
			}
			d := l.client(t, broken{})
			g, err := d.Acquire(t.Context(), request("k", time.Second))
			if err != nil {
				t.Fatal(err)
			}
			d.Close()
			for _, s := range l.servers[:2] {
				s.down(false)
			}
			told := l.next(t, map[int]time.Duration{slow: 3 * rtt, (slow + 1) % 5: 3 * rtt})
			if told.Previous != driver.Lapsed || told.Prior == nil || told.Prior.Token != g.Token {
				t.Errorf("told: %v, %+v, want the lapse of token %d", told.Previous, told.Prior, g.Token)
			}
		})
	}
}

// Of many who wait for a term to run out, one is told that it did.
func TestALapseIsToldOnce(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(5, 0)
			dice := rand.New(rand.NewPCG(seed, 1))
			dead := l.client(t, broken{})
			g, err := dead.Acquire(t.Context(), request("k", 300*time.Millisecond))
			if err != nil {
				t.Fatal(err)
			}
			dead.Close()
			var mu sync.Mutex
			var all sync.WaitGroup
			lapses := 0
			for range 8 {
				d := l.open(t, nil, steady(rand.New(rand.NewPCG(seed, dice.Uint64())), rtt/2))
				all.Go(func() {
					defer d.Close()
					for {
						req := request("k", 5*time.Second)
						got, err := d.Acquire(context.Background(), req)
						if err != nil {
							time.Sleep(5 * time.Millisecond)
							continue
						}
						mu.Lock()
						if got.Previous == driver.Lapsed {
							lapses++
							if got.Prior == nil || got.Prior.Token != g.Token {
								t.Errorf("seed %d: told of %+v, want token %d", seed, got.Prior, g.Token)
							}
						}
						mu.Unlock()
						time.Sleep(20 * time.Millisecond)
						if err := d.Release(context.Background(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
							t.Error(err)
						}
						return
					}
				})
			}
			all.Wait()
			if lapses != 1 {
				t.Errorf("seed %d: %d were told of the one lapse", seed, lapses)
			}
		})
	}
}
