package memhold

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/holdlock/holdlock/driver"
)

// What all stores have in common is tested by drivertest; see conformance_test.go.

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var bg = context.Background()

// acquire starts a term of a minute under a nonce of its own.
func acquire(t *testing.T, d *Driver, key string) (driver.Ref, driver.Grant) {
	t.Helper()
	ref := driver.Ref{Key: key, Nonce: rand.Text()}
	g, err := d.Acquire(bg, &driver.AcquireRequest{Ref: ref, TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return ref, g
}

func release(t *testing.T, d *Driver, ref driver.Ref) {
	t.Helper()
	if err := d.Release(bg, &driver.ReleaseRequest{Ref: ref}); err != nil {
		t.Fatal(err)
	}
}

func TestCountersAreKeptForADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := NewDriver(nil)
		ref, g := acquire(t, d, "k")
		ahead := g.Token + driver.Token((48 * time.Hour).Microseconds()) // so that the clock does not help
		if _, err := d.Renew(bg, &driver.RenewRequest{Ref: ref, TTL: time.Minute, Floor: ahead}); err != nil {
			t.Fatal(err)
		}
		release(t, d, ref)
		time.Sleep(driver.CounterTTL - time.Second)
		for i := range 1000 {
			acquire(t, d, fmt.Sprint(i))
		}
		if _, g := acquire(t, d, "k"); g.Token != ahead+1 || g.Previous != driver.Released {
			t.Errorf("just before a day was over: token %d after %d, previous %v", g.Token, ahead, g.Previous)
		}
	})
}

func TestCountersAreForgottenAfterADay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 1000
		d := NewDriver(nil)
		slots := d.store.slots
		for i := range n {
			ref, _ := acquire(t, d, fmt.Sprint("released ", i))
			release(t, d, ref)
			acquire(t, d, fmt.Sprint("lapsed ", i))
		}
		long := driver.Ref{Key: "long", Nonce: "n"}
		year := 365 * 24 * time.Hour
		if _, err := d.Acquire(bg, &driver.AcquireRequest{Ref: long, TTL: year}); err != nil {
			t.Fatal(err)
		}
		// New keys pay for the old ones, two each.
		for day := range 3 {
			time.Sleep(driver.CounterTTL / 2)
			if day == 0 && len(slots) != 2*n+1 {
				t.Errorf("%d keys after half a day, want %d", len(slots), 2*n+1)
			}
			for i := range 2 * n {
				ref, _ := acquire(t, d, fmt.Sprint("day ", day, " ", i))
				release(t, d, ref)
			}
			if len(d.store.visits) != len(slots) {
				t.Errorf("%d keys, but %d are to be looked at", len(slots), len(d.store.visits))
			}
		}
		for key := range slots {
			if key[0] == 'r' || key[:2] == "la" {
				t.Fatalf("%q is still there a day and a half later", key)
			}
		}
		if slots["long"] == nil {
			t.Fatal("a term that stands was forgotten")
		}
		if _, err := d.Renew(bg, &driver.RenewRequest{Ref: long, TTL: year}); err != nil {
			t.Errorf("a year-long term was lost: %v", err)
		}
	})
}

func TestTokensRunOut(t *testing.T) {
	d := NewDriver(nil)
	ref, _ := acquire(t, d, "k")
	if _, err := d.Renew(bg, &driver.RenewRequest{Ref: ref, TTL: time.Minute, Floor: driver.MaxToken}); err != nil {
		t.Fatal(err)
	}
	release(t, d, ref)
	_, err := d.Acquire(bg, &driver.AcquireRequest{Ref: driver.Ref{Key: "k", Nonce: "n"}, TTL: time.Minute})
	if !errors.Is(err, driver.ErrTokensExhausted) || !errors.Is(err, driver.ErrNotApplied) {
		t.Errorf("got %v, want ErrTokensExhausted and ErrNotApplied", err)
	}
	if _, stands, _ := d.Inspect(bg, "k"); stands {
		t.Error("the key is taken by a term without a token")
	}
}

// Whoever is woken and goes away leaves the key to the next one in line.
func TestAHintIsPassedOn(t *testing.T) {
	for name, took := range map[string]bool{"hint not heard": false, "hint heard": true} {
		t.Run(name, func(t *testing.T) {
			d := NewDriver(nil)
			ref, _ := acquire(t, d, "k")
			first, stopFirst, _ := d.Watch(bg, "k")
			second, stopSecond, _ := d.Watch(bg, "k")
			defer stopSecond()
			release(t, d, ref)
			if len(first) != 1 || len(second) != 0 {
				t.Fatalf("hints after a release: %d, %d", len(first), len(second))
			}
			if took {
				<-first
			}
			stopFirst()
			if len(second) != 1 {
				t.Error("the hint was not passed on")
			}
		})
	}
	t.Run("key taken", func(t *testing.T) {
		d := NewDriver(nil)
		ref, _ := acquire(t, d, "k")
		first, stopFirst, _ := d.Watch(bg, "k")
		second, stopSecond, _ := d.Watch(bg, "k")
		defer stopSecond()
		release(t, d, ref)
		<-first
		acquire(t, d, "k")
		stopFirst()
		if len(second) != 0 {
			t.Error("the next in line was woken for nothing")
		}
	})
}

func TestStopLeavesNothing(t *testing.T) {
	d := NewDriver(nil)
	var stops []func()
	for range 10 {
		_, stop, err := d.Watch(bg, "k")
		if err != nil {
			t.Fatal(err)
		}
		stops = append(stops, stop)
	}
	for _, i := range []int{3, 9, 0, 1, 2, 4, 8, 7, 6, 5, 5, 3} {
		stops[i]()
	}
	if n := len(d.store.watchers); n != 0 {
		t.Errorf("%d keys are still watched", n)
	}
}

func TestListWhileKeysComeAndGo(t *testing.T) {
	d := NewDriver(nil)
	const n = 3000 // several pieces
	var want []string
	for i := range n {
		key := fmt.Sprintf("stands/%05d", i)
		acquire(t, d, key)
		want = append(want, key)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for g := range 2 {
		wg.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				ref := driver.Ref{Key: fmt.Sprintf("passes/%d/%d", g, i%5000), Nonce: "n"}
				if _, err := d.Acquire(bg, &driver.AcquireRequest{Ref: ref, TTL: time.Minute}); err != nil {
					t.Error(err)
				}
				if err := d.Release(bg, &driver.ReleaseRequest{Ref: ref}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for _, page := range []int{n, 1000, 7000} {
		var got []string
		after := ""
		for {
			terms, err := d.List(bg, "stands/", after, page)
			if err != nil {
				t.Fatal(err)
			}
			for _, term := range terms {
				got = append(got, term.Key)
				after = term.Key
			}
			if len(terms) < page {
				break
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("in pages of %d: %d keys, want %d in order", page, len(got), n)
		}
	}
	close(stop)
	wg.Wait()
}

// endsLater is a ctx that ends after it has been asked once.
type endsLater struct {
	context.Context
	asked bool
}

func (c *endsLater) Err() error {
	if c.asked {
		return context.Canceled
	}
	c.asked = true
	return nil
}

func TestListStopsHalfWay(t *testing.T) {
	d := NewDriver(nil)
	for i := range 3000 {
		acquire(t, d, fmt.Sprint(i))
	}
	if _, err := d.List(&endsLater{Context: bg}, "", "", 10); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	acquire(t, d, "the mutex is free")
}

func TestTwoStoresAreTwoPlaces(t *testing.T) {
	one, two := NewDriver(nil), NewDriver(nil)
	acquire(t, one, "k")
	acquire(t, two, "k")
	if one.Traits().Location == two.Traits().Location {
		t.Errorf("both are %q", one.Traits().Location)
	}
}

func TestErrorsNameTheKey(t *testing.T) {
	d := NewDriver(nil)
	_, err := d.Renew(bg, &driver.RenewRequest{Ref: driver.Ref{Key: "job/7", Nonce: "n"}, TTL: time.Minute})
	if want := `memhold: renew "job/7": term is gone`; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}
