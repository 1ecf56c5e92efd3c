package drivertest

import (
	"errors"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// R6: a release wakes one waiter, where it does not hand over to one in line (see r6_queue.go). The store only gives hints; to try again, and to poll, is the caller's part.
var waitCases = []testCase{
	{"R6/AReleaseHintsTheFirst", func(r *rig) {
		// Watchers of the other processes come in between, the release is by another one again.
		drivers := []driver.Driver{r.open(), r.open(), r.open()}
		if !canWait(drivers[0]) {
			return
		}
		t := r.acquire(drivers[0], "k", r.long)
		var line []*watch
		for i := range 4 {
			line = append(line, r.watch(drivers[(i+1)%3], "k"))
		}
		for len(line) > 0 {
			r.release(t)
			first := r.hinted(line)
			if first != 0 {
				r.Errorf("R6: the hint went to watcher %d of the line", first)
			}
			t = r.acquire(line[first].d, "k", r.long)
			line[first].stop()
			line = append(line[:first], line[first+1:]...)
		}
	}},
	{"R6/AReleaseWakesOneOnly", func(r *rig) {
		const n = 8
		d, other := r.open(), r.open()
		if !canWait(d) {
			return
		}
		t := r.acquire(d, "k", r.long)
		var line []*watch
		for range n {
			line = append(line, r.watch(other, "k"))
		}
		r.release(t)
		woken := map[int]int{r.hinted(line): 1}
		r.acquire(other, "k", r.long)
		// The others would be woken in the same moment. Hints may be spurious, so one more is no fault, but a herd is.
		for quiet := time.Now().Add(150 * time.Millisecond); time.Now().Before(quiet); r.pause() {
			for i, w := range line {
				if w.pending() {
					woken[i]++
				}
			}
		}
		if len(woken) > 2 {
			r.Errorf("R6: one release woke several watchers of %d: how often each, %v", n, woken)
		}
		r.refused(d, "k")
	}},
	{"R6/NoHintIsLostAfterWatch", func(r *rig) {
		// The caller watches, tries once more, and only then sleeps: so whatever is released after Watch has returned is heard.
		a, b := r.open(), r.open()
		if !canWait(a) {
			return
		}
		for range 5 {
			t := r.acquire(a, "k", r.long)
			w := r.watch(b, "k")
			r.release(t)
			r.hinted([]*watch{w})
			w.stop()
		}
	}},
	{"R6/AStoppedWatcherIsSkipped", func(r *rig) {
		a, b := r.open(), r.open()
		if !canWait(a) {
			return
		}
		t := r.acquire(a, "k", r.long)
		first, second := r.watch(b, "k"), r.watch(b, "k")
		first.stop()
		first.stop() // may be called again
		r.release(t)
		r.hinted([]*watch{second})
	}},
	{"R6/ADeadWatcherIsSkippedInTheEnd", func(r *rig) {
		// Its process is gone, and it never said stop. It may cost its successor some time, but not for ever.
		a, b, dead := r.open(), r.open(), r.open()
		if !canWait(a) {
			return
		}
		t := r.acquire(a, "k", r.long)
		r.watch(dead, "k")
		if err := dead.Close(); err != nil {
			r.Fatalf("Close: %v", err)
		}
		second := r.watch(b, "k")
		r.eventually("R6: the watcher behind a dead one is woken by some release", func() bool {
			r.release(t)
			t = r.acquire(a, "k", r.long)
			return second.pending()
		})
	}},
	{"R6/AWatcherThatDoesNotListenIsSkipped", func(r *rig) {
		a, b := r.open(), r.open()
		if !canWait(a) {
			return
		}
		t := r.acquire(a, "k", r.long)
		r.watch(b, "k") // takes its hint and never reads it
		second := r.watch(b, "k")
		r.eventually("R6: the watcher behind a deaf one is woken by some release", func() bool {
			r.release(t)
			t = r.acquire(a, "k", r.long)
			return second.pending()
		})
	}},
	{"R6/HintsAreForOneKey", func(r *rig) {
		a, b := r.open(), r.open()
		if !canWait(a) {
			return
		}
		t1, t2 := r.acquire(a, "k1", r.long), r.acquire(a, "k2", r.long)
		w1, w2 := r.watch(b, "k1"), r.watch(b, "k2")
		r.release(t2)
		r.hinted([]*watch{w2})
		r.release(t1)
		r.hinted([]*watch{w1})
	}},
	{"R6/ABackStopFindsThatTheHolderIsDead", func(r *rig) {
		a, b := r.open(), r.open()
		if !canWait(b) {
			return
		}
		t := r.acquire(a, "k", r.short)
		r.watch(b, "k")
		ask := func() bool {
			req := r.request("k", r.short)
			req.BackStop = true
			_, err := b.Acquire(r.ctx, req)
			if err != nil && !errors.As(err, new(*driver.HeldError)) {
				r.Errorf("R6: a back stop: want a grant or *HeldError, got %v", err)
			}
			return err == nil
		}
		if asked := time.Now(); ask() && asked.Before(t.earliest()) && time.Now().Before(t.earliest()) {
			r.Errorf("R1: a back stop was granted a key that is taken")
		}
		_ = a.Close() // it dies without a word: nothing is released, and there is no hint
		t.d = b
		r.lapse(t)
		r.eventually("R6: a back stop is granted the key of a dead holder", ask)
	}},
	{"R6/BreakNowHints", func(r *rig) {
		a, b := r.open(), r.open()
		op := r.breaker(a)
		if op == nil || !canWait(a) {
			return
		}
		t := r.acquire(a, "k", r.long)
		w := r.watch(b, "k")
		r.mustBreak(op, &driver.BreakRequest{Ref: t.ref, By: "ops", Now: true})
		r.hinted([]*watch{w})
	}},
}

func canWait(d driver.Driver) bool {
	_, ok := driver.As[driver.Waiter](d)
	return ok
}

// A watch is one watcher.
type watch struct {
	d     driver.Driver
	hints <-chan struct{}
	stop  func()
}

func (r *rig) watch(d driver.Driver, key string) *watch {
	r.Helper()
	waiter, _ := driver.As[driver.Waiter](d)
	hints, stop, err := waiter.Watch(r.ctx, key)
	if err != nil {
		r.Fatalf("Watch(%q): %v", key, err)
	}
	r.stops = append(r.stops, stop)
	return &watch{d, hints, stop}
}

// pending takes a hint that has already come.
func (w *watch) pending() bool {
	select {
	case _, open := <-w.hints:
		return open
	default:
		return false
	}
}

// hinted waits for the first hint to any of the watchers and says whose it is.
func (r *rig) hinted(line []*watch) int {
	r.Helper()
	var who int
	r.eventually("R6: a watcher is hinted after a release", func() bool {
		for i, w := range line {
			if w.pending() {
				who = i
				return true
			}
		}
		return false
	})
	return who
}
