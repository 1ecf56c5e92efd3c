package holdlock_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/faultdriver"
)

// kept is a store that a replica can take over, or whose terms live on a connection.
type kept struct {
	driver.Driver
	forgets driver.Forgetting
}

func (k *kept) Traits() driver.Traits {
	t := k.Driver.Traits()
	t.Forgets = k.forgets
	return t
}

type connected struct{ *kept }

func (*connected) NotifyLoss(driver.Ref, func(error)) {}

// A term whose release does not come through explains its lapse if its work was over before anybody else can have had the lock, and
// only then: also where the lease was lost, if the work has stopped in the half of the margin that is for that.
func TestWorkOfALostLeaseIsOver(t *testing.T) {
	const ttl = 10 * time.Second // renewed 3⅓ s after it began, trusted for 9 s; half the margin ends after 9.5 s
	for _, c := range []struct {
		name    string
		opts    holdlock.LockOptions
		at      time.Duration // when the store goes away
		after   time.Duration // how long the work goes on from the loss on
		reason  holdlock.LossReason
		forgets driver.Forgetting
		session bool
		suspend time.Duration // that comes with the loss
		breaks  bool          // an operator ends the term
		told    bool          // that the work was over
		marked  bool          // and of which term
	}{
		{name: "it stops at once", at: time.Second, reason: holdlock.LossUnreachable, told: true, marked: true},
		{name: "it stops in time, after renewals", at: 5 * time.Minute, after: 400 * time.Millisecond, reason: holdlock.LossUnreachable, told: true, marked: true},
		{name: "it needs more than half the margin", at: time.Second, after: 600 * time.Millisecond, reason: holdlock.LossUnreachable},
		{name: "it runs on", at: time.Second, after: time.Minute, reason: holdlock.LossUnreachable},
		{name: "plain expiry", opts: holdlock.LockOptions{Renew: holdlock.RenewOff}, at: time.Second, reason: holdlock.LossExpired, told: true, marked: true},
		{name: "plain expiry, and it runs on", opts: holdlock.LockOptions{Renew: holdlock.RenewOff}, at: time.Second, after: time.Second, reason: holdlock.LossExpired},
		{name: "MaxHold", opts: holdlock.LockOptions{MaxHold: 15 * time.Second}, at: 14 * time.Second, reason: holdlock.LossMaxHold, told: true, marked: true},
		{name: "MaxHold, and it runs on", opts: holdlock.LockOptions{MaxHold: 15 * time.Second}, at: 14 * time.Second, after: 10 * time.Second, reason: holdlock.LossMaxHold},
		{name: "suspended", at: 1200 * time.Millisecond, reason: holdlock.LossPaused, suspend: 7900 * time.Millisecond, told: true, marked: true},
		{name: "suspended for too long", at: 1200 * time.Millisecond, reason: holdlock.LossPaused, suspend: 8400 * time.Millisecond},
		{name: "broken", at: time.Hour, reason: holdlock.LossBroken, breaks: true},
		{name: "a replica may have taken over", at: time.Second, reason: holdlock.LossUnreachable, forgets: driver.OnFailover, told: true},
		{name: "its connection may have ended before", at: time.Second, reason: holdlock.LossUnreachable, session: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			virtual(t, func(t *testing.T, r *rig) {
				start := time.Now()
				var away atomic.Bool
				faults := faultdriver.New(r.drv.Driver, func(call faultdriver.Call) faultdriver.Fault {
					return faultdriver.Fault{Drop: away.Load() || c.breaks && call.Op == faultdriver.Release}
				})
				var drv driver.Driver = &kept{faults, c.forgets}
				if c.session {
					drv = &connected{&kept{faults, c.forgets}}
				}
				seen := &events{}
				client, err := holdlock.NewClient(drv, &holdlock.ClientOptions{Observer: seen})
				if err != nil {
					t.Fatal(err)
				}
				var suspended atomic.Int64
				holdlock.SetBootClock(client, func() time.Duration { return time.Since(start) + time.Duration(suspended.Load()) })
				c.opts.TTL = ttl
				l, err := client.NewLock("job", &c.opts)
				if err != nil {
					t.Fatal(err)
				}
				lease, err := l.TryAcquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if c.breaks {
					if err := r.rival.Break(t.Context(), "job", "", lease.Token(), holdlock.BreakOptions{By: "operator"}); err != nil {
						t.Fatal(err)
					}
				} else {
					time.Sleep(c.at)
					away.Store(true)
				}
				suspended.Store(int64(c.suspend))
				<-lease.Done()
				wantReason(t, lease.Err(), c.reason)
				time.Sleep(c.after)
				if err := lease.Release(t.Context()); !errors.Is(err, holdlock.ErrLost) {
					t.Errorf("Release: %v, want the loss", err)
				}
				time.Sleep(time.Minute) // it is not tried any longer
				told, marked := false, false
				for _, e := range seen.of(holdlock.Unreleased) {
					if e.Abandoned {
						told = true
						marked = marked || e.Left != nil && e.Left.Nonce == lease.Ref().Nonce
					}
				}
				if told != c.told || marked != c.marked {
					t.Errorf("told %v, marked %v, want %v and %v", told, marked, c.told, c.marked)
				}
				away.Store(false)
				if err := client.Shutdown(context.Background()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A release that does not come through leaves a term behind whose work was over. Where the store can forget a renewal, in a restart or a
// failover, that is known only of work that did not depend on one.
func TestAReleaseThatDoesNotComeThrough(t *testing.T) {
	const ttl = 10 * time.Second // a grant alone is trusted for 9 s
	for forgets, sure := range map[driver.Forgetting]bool{
		driver.NeverAlone: true, driver.AbstainsAfterLoss: true, driver.OnRestart: false, driver.OnFailover: false,
	} {
		for _, held := range []time.Duration{8 * time.Second, 30 * time.Second} {
			t.Run(fmt.Sprint(forgets, " ", held), func(t *testing.T) {
				marked(t, forgets, func(t *testing.T, l *holdlock.Lock, away *atomic.Bool) string {
					lease := mustTry(t, l)
					time.Sleep(held)
					away.Store(true)
					if err := lease.Release(t.Context()); !errors.Is(err, holdlock.ErrUnknown) {
						t.Errorf("Release: %v", err)
					}
					return lease.Ref().Nonce
				}, sure || held < ttl-ttl/10)
			})
		}
	}
}

// What an acquire without an answer may have won was never worked under, whatever the store forgets.
func TestAnAcquireThatIsNotUndone(t *testing.T) {
	for _, forgets := range []driver.Forgetting{driver.NeverAlone, driver.OnRestart, driver.OnFailover} {
		t.Run(fmt.Sprint(forgets), func(t *testing.T) {
			marked(t, forgets, func(t *testing.T, l *holdlock.Lock, away *atomic.Bool) string {
				away.Store(true)
				if _, err := l.TryAcquire(t.Context()); !errors.Is(err, holdlock.ErrUnknown) {
					t.Errorf("TryAcquire: %v", err)
				}
				return ""
			}, true)
		})
	}
}

// marked does something with a lock and a store that goes away at some time, and looks whether the term that is left behind is marked. While the store is
// away an acquire arrives, and its answer does not.
func marked(t *testing.T, forgets driver.Forgetting, leave func(*testing.T, *holdlock.Lock, *atomic.Bool) (nonce string), want bool) {
	virtual(t, func(t *testing.T, r *rig) {
		var away atomic.Bool
		faults := faultdriver.New(r.drv.Driver, func(call faultdriver.Call) faultdriver.Fault {
			return faultdriver.Fault{Drop: away.Load() && call.Op != faultdriver.Acquire, Lose: away.Load() && call.Op == faultdriver.Acquire}
		})
		seen := &events{}
		client, err := holdlock.NewClient(&kept{faults, forgets}, &holdlock.ClientOptions{Observer: seen})
		if err != nil {
			t.Fatal(err)
		}
		l, err := client.NewLock("job", &holdlock.LockOptions{TTL: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		nonce := leave(t, l, &away)
		if nonce == "" {
			if term, ok, err := r.drv.Inspect(t.Context(), "job"); err == nil && ok {
				nonce = term.Nonce
			}
		}
		time.Sleep(time.Minute) // it is not tried any longer
		told := seen.of(holdlock.Unreleased)
		if n := len(told); n == 0 || !told[n-1].Abandoned {
			t.Fatalf("it was told %d times that the lock could not be given back, in the end as %+v", n, told)
		}
		if left := told[len(told)-1].Left; (left != nil) != want || want && left.Nonce != nonce {
			t.Errorf("marked is %+v; want a mark of %s: %v", left, nonce, want)
		}
		away.Store(false)
		if err := client.Shutdown(context.Background()); err != nil {
			t.Error(err)
		}
	})
}
