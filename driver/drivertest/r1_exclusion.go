package drivertest

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// R1: by the store's clock there is at most one unexpired term per key.
var exclusionCases = []testCase{
	{"R1/OneHolderWithinOneDriver", func(r *rig) {
		d := r.open()
		r.acquire(d, "k", r.long)
		// The second caller is of the same process and so has the same Holder. That must not count as "mine".
		r.refused(d, "k")
		r.refused(d, "k")
	}},
	{"R1/OneHolderAcrossDrivers", func(r *rig) {
		a, b := r.open(), r.open()
		t := r.acquire(a, "k", r.long)
		r.refused(b, "k")
		r.release(t)
		r.acquire(b, "k", r.long)
		r.refused(a, "k")
	}},
	{"R1/KeysAreIndependent", func(r *rig) {
		d := r.open()
		r.acquire(d, "k1", r.long)
		t := r.acquire(d, "k2", r.long)
		r.release(t)
		r.refused(d, "k1")
		r.acquire(d, "k2", r.long)
	}},
	{"R1/OneWinnerAmongRacers", func(r *rig) {
		drivers := []driver.Driver{r.open(), r.open(), r.open()}
		for round := range 5 {
			won := r.race(drivers, fmt.Sprintf("k%d", round%2), 9)
			if len(won) != 1 {
				r.Fatalf("R1: %d of 9 racers for one free key were granted it", len(won))
			}
			r.release(won[0])
		}
	}},
	{"R1/ATermEndsNeitherEarlyNorLate", func(r *rig) {
		a, b := r.open(), r.open()
		t := r.acquire(a, "k", r.short)
		r.passes(b, "k", t.earliest(), r.latest(t))
	}},
	{"R1/TheShortestTTLIsAccepted", func(r *rig) {
		a, b := r.open(), r.open()
		// So short a time a store on a busy machine may need for the answer alone. One that refuses the TTL always does.
		var t term
		var err error
		for give := time.Now().Add(r.grace()); ; r.pause() {
			if t, err = r.try(a, r.request("k", r.traits.MinTTL)); err == nil || time.Now().After(give) {
				break
			}
		}
		if err != nil {
			r.Fatalf("R1: a TTL of MinTTL, %s, is refused: %v", r.traits.MinTTL, err)
		}
		r.passes(b, "k", t.earliest(), r.latest(t))
	}},
	{"R1/AnOddTTLIsNotRoundedDown", func(r *rig) {
		a, b := r.open(), r.open()
		t := r.acquire(a, "k", r.short+99_999*time.Microsecond)
		r.passes(b, "k", t.earliest(), r.latest(t))
	}},
	{"R1/OnlyOneTakesOverAfterExpiry", func(r *rig) {
		drivers := []driver.Driver{r.open(), r.open(), r.open()}
		r.lapse(r.acquire(drivers[0], "k", r.short))
		if won := r.race(drivers, "k", 9); len(won) != 1 {
			r.Fatalf("R1: %d of 9 racers for one expired key were granted it", len(won))
		}
	}},
}

// race lets n callers try for the key at the same time, and returns the terms of those who got it.
func (r *rig) race(drivers []driver.Driver, key string, n int) []term {
	r.Helper()
	var (
		start = make(chan struct{})
		mu    sync.Mutex
		won   []term
		wg    sync.WaitGroup
	)
	for i := range n {
		wg.Go(func() {
			<-start
			t, err := r.try(drivers[i%len(drivers)], r.request(key, r.long))
			var held *driver.HeldError
			switch {
			case err == nil:
				mu.Lock()
				won = append(won, t)
				mu.Unlock()
			case !errors.As(err, &held):
				r.Errorf("R10: Acquire in a race: want a grant or *HeldError, got %v", err)
			}
		})
	}
	close(start)
	wg.Wait()
	return won
}
