package quorumhold

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// renewed renews a term for a while, and so gives it to servers that lack it.
func renewed(t *testing.T, d *Driver, ref driver.Ref, ttl, long time.Duration) {
	t.Helper()
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(ttl / 5) {
		if _, err := d.Renew(t.Context(), &driver.RenewRequest{Ref: ref, TTL: ttl}); err != nil {
			d.Close()
			t.Fatal(err)
		}
	}
}

// oneAfterTheOther lets each server in turn be away for longer than a TTL under one term. If contended, attempts of others fail at each
// that comes back before the term is there again, and use up tokens. It returns the term's token and those that the servers show.
func oneAfterTheOther(t *testing.T, l *lab, d *Driver, req *driver.AcquireRequest, contended bool) (token driver.Token, shown []driver.Token) {
	t.Helper()
	start := time.Now()
	g, err := d.Acquire(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(10 * rtt) // all have answered
	for _, s := range l.servers {
		s.down(true)
		renewed(t, d, req.Ref, req.TTL, 2*req.TTL)
		s.down(false)
		if contended {
			other := l.open(t, nil, func() time.Duration { return 0 })
			if _, err := other.Acquire(t.Context(), request(req.Ref.Key, req.TTL)); err == nil {
				t.Fatal("it was granted twice")
			}
			time.Sleep(10 * rtt)
			other.Close()
		}
		renewed(t, d, req.Ref, req.TTL, 3*time.Second)
	}
	for _, n := range l.nodes(func() time.Duration { return 0 }) {
		term, ok, err := n.(*conn).Inspect(t.Context(), req.Ref.Key)
		if err != nil || !ok {
			t.Fatalf("%v, %v", ok, err)
		}
		if late := term.Acquired.Sub(start); (late > time.Second) != d.broken.own {
			t.Errorf("own tokens %v: it is shown as of %v later", d.broken.own, late)
		}
		shown = append(shown, term.Token)
	}
	return g.Token, shown
}

// A term that all servers were given again, one after the other, has the same token at all, and its lapse is told.
func TestATermThatIsGivenAgainKeepsItsToken(t *testing.T) {
	for _, contended := range []bool{false, true} {
		for _, own := range []bool{false, true} {
			t.Run(fmt.Sprintf("contended %v, own tokens %v", contended, own), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					l := newLab(3, 0)
					d := l.client(t, broken{own: own})
					token, shown := oneAfterTheOther(t, l, d, request("k", time.Second), contended)
					d.Close()
					same := true
					for _, one := range shown {
						same = same && one == token
					}
					if same == own {
						t.Errorf("token %d is shown as %d", token, shown)
					}
					// Whatever their tokens are, the nonce says that it is one term.
					g := l.next(t, nil)
					if g.Previous != driver.Lapsed || g.Prior == nil || !own && g.Prior.Token != token {
						t.Errorf("told: %v, %+v; want the lapse of token %d", g.Previous, g.Prior, token)
					}
				})
			})
		}
	}
}

// afterASeed has a term given to a third server by a seed, and released while that is away, with the end of the program. It returns what
// the next one is told, who does not hear the second.
func afterASeed(t *testing.T, off broken) (told driver.Ending) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(3, 0)
		d := l.client(t, off)
		l.servers[2].down(true)
		req := request("k", time.Second)
		if _, err := d.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * rtt)
		renewed(t, d, req.Ref, req.TTL, req.TTL)
		l.servers[2].down(false)
		renewed(t, d, req.Ref, req.TTL, 3*time.Second)
		l.servers[2].down(true)
		if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref}); err != nil {
			t.Fatal(err)
		}
		d.Close()
		l.servers[2].down(false)
		told = l.next(t, map[int]time.Duration{1: 10 * rtt}).Previous
	})
	return told
}

func TestAReleaseThatMissedASeed(t *testing.T) {
	if how := afterASeed(t, broken{}); how != driver.Released {
		t.Errorf("told: %v, want released", how)
	}
	if how := afterASeed(t, broken{own: true}); how != driver.Lapsed {
		t.Errorf("the control, where a seed has a token of its own: told %v", how)
	}
}

// thin lets three servers be away in turn: one while a term is acquired, one at its release, and one when the next comes. It returns what
// that is told, and at how many servers the key was kept.
func thin(t *testing.T, off broken, keep time.Duration) (told driver.Ending, kept int) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(3, 0)
		d := l.client(t, off)
		l.servers[2].down(true)
		req := request("k", time.Second)
		if _, err := d.Acquire(t.Context(), req); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * rtt)
		l.servers[2].down(false)
		l.servers[1].down(true)
		if err := d.Release(t.Context(), &driver.ReleaseRequest{Ref: req.Ref, KeepFor: keep}); err != nil {
			t.Fatal(err)
		}
		d.Close()
		l.servers[1].down(false)
		time.Sleep(time.Second + 100*time.Millisecond)
		if kept = l.taken("k"); keep == 0 {
			told = l.next(t, map[int]time.Duration{0: 10 * rtt}).Previous
		}
	})
	return told, kept
}

// A release that only one of three could be told is noted at another one.
func TestAThinRelease(t *testing.T) {
	if how, kept := thin(t, broken{}, 0); how != driver.Released || kept != 0 {
		t.Errorf("told: %v, want released; the key is taken at %d servers", how, kept)
	}
	if how, _ := thin(t, broken{thin: true}, 0); how != driver.Lapsed {
		t.Errorf("the control: told %v", how)
	}
	if _, kept := thin(t, broken{}, 10*time.Second); kept != 2 {
		t.Errorf("a MinHold is kept at %d servers, want 2", kept)
	}
	if _, kept := thin(t, broken{thin: true}, 10*time.Second); kept != 1 {
		t.Errorf("the control: a MinHold is kept at %d servers", kept)
	}
}
