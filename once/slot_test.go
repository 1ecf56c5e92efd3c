package once_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/memhold"
	"github.com/holdlock/holdlock/once"
)

// ticks lets five replicas with clocks up to two seconds apart fire at each of 200 ticks, and returns how often the job ran
// at each. run runs it.
func ticks(t *testing.T, run func(lock *holdlock.Lock, slot string, job func())) (ran [200]int) {
	synctest.Test(t, func(t *testing.T) {
		store := memhold.NewStore()
		start := time.Now().Add(time.Minute)
		var mu sync.Mutex
		var all sync.WaitGroup
		for i := range 5 {
			c, err := memhold.Open(&memhold.Options{Store: store})
			if err != nil {
				t.Fatal(err)
			}
			lock, err := c.NewLock("report", nil)
			if err != nil {
				t.Fatal(err)
			}
			dice := rand.New(rand.NewPCG(1, uint64(i)))
			all.Go(func() {
				defer c.Shutdown(context.Background())
				for n := range ran {
					slot := start.Add(time.Duration(n) * time.Minute)
					skew := time.Duration(dice.Int64N(int64(4*time.Second))) - 2*time.Second
					time.Sleep(time.Until(slot.Add(skew)))
					run(lock, slot.UTC().Format(time.RFC3339), func() {
						time.Sleep(time.Millisecond)
						mu.Lock()
						defer mu.Unlock()
						ran[n]++
					})
				}
			})
		}
		all.Wait()
	})
	return ran
}

// A tick runs once on many replicas, however short its job is and however far their clocks are apart, if its key is the
// time for which it was scheduled. With a lock alone it runs on each replica in turn.
func TestSlots(t *testing.T) {
	ran := ticks(t, func(lock *holdlock.Lock, slot string, job func()) {
		_, err := once.Do(ctx, lock.For(slot), &once.Options{OnRunning: once.Skip, Keep: time.Hour},
			func(context.Context, *once.Run) ([]byte, error) { job(); return nil, nil })
		if err != nil {
			t.Error(err)
		}
	})
	for n, times := range ran {
		if times != 1 {
			t.Errorf("tick %d ran %d times", n, times)
		}
	}
	control := ticks(t, func(lock *holdlock.Lock, slot string, job func()) {
		_ = lock.For(slot).Do(ctx, func(context.Context, *holdlock.Lease) error { job(); return nil })
	})
	often := 0
	for _, times := range control {
		if times > 1 {
			often++
		}
	}
	if often < 190 {
		t.Errorf("with a lock alone only %d of 200 ticks ran more than once: %s", often, fmt.Sprint(control))
	}
}
