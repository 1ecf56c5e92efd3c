package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// lineResult is one reading of waiters in several processes who all want the same key, again and again.
type lineResult struct {
	perSecond        float64
	p50, p99         time.Duration // hand-over to another waiter, from the call of the release
	self             float64       // share of turns after which the same waiter got it again
	wait, waitP99    time.Duration // mean and p99
	fewest, most     int           // turns of a waiter
	requests         float64       // commands sent for each acquisition
	serverCPU        float64       // cores
	overlaps, unfair int           // two at once; waiters who got nothing
}

const (
	processes = 8
	holdFor   = time.Millisecond
)

// takeTurns is the worker's part: waiters who ask again at once.
func takeTurns(ctx context.Context, l locker, t task, ready func() bool) ([]turn, error) {
	if !ready() {
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, t.Window)
	defer cancel()
	var (
		waiters sync.WaitGroup
		mu      sync.Mutex
		all     []turn
		failed  error
	)
	for i := range t.N {
		waiters.Go(func() {
			var own []turn
			for ctx.Err() == nil {
				this := turn{Waiter: i, Asked: time.Now().UnixNano()}
				unlock, err := l.lock(ctx, contendedKey)
				if err != nil {
					break // the end; a real failure shows by the turns that are missing
				}
				this.Got = time.Now().UnixNano()
				time.Sleep(holdFor)
				this.Releasing = time.Now().UnixNano()
				if err := unlock(); err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
					break
				}
				own = append(own, this)
			}
			mu.Lock()
			all = append(all, own...)
			mu.Unlock()
		})
	}
	waiters.Wait()
	return all, failed
}

// measureLine spreads the waiters of one contestant over the processes.
func measureLine(ctx context.Context, s *server, c contestant, waiters int, window time.Duration) (r lineResult, err error) {
	if err := s.prepare(ctx, c); err != nil {
		return r, err
	}
	tasks := make([]task, min(processes, waiters))
	for i := range tasks {
		tasks[i] = task{Kind: "line", Contestant: c.name, Addr: s.addr, TTL: 30 * time.Second, N: waiters / len(tasks), Window: window}
	}
	w, err := startWorkers(tasks)
	if err != nil {
		return r, err
	}
	defer w.stop()
	before, err := s.sent(ctx, c.sends)
	if err != nil {
		return r, err
	}
	cpu, err := s.cpu(ctx)
	if err != nil {
		return r, err
	}
	w.begin()
	reports, err := w.reports(window)
	if err != nil {
		return r, fmt.Errorf("%s: %w", c.name, err)
	}
	after, err := s.sent(ctx, c.sends)
	if err != nil {
		return r, err
	}
	cpuEnd, err := s.cpu(ctx)
	if err != nil {
		return r, err
	}
	var turns []turn
	for i, rep := range reports {
		for _, t := range rep.Turns {
			t.Waiter += i * tasks[0].N
			turns = append(turns, t)
		}
	}
	if len(turns) < 2 {
		return r, fmt.Errorf("%s: %d turns", c.name, len(turns))
	}
	r = judgeTurns(turns, waiters)
	r.requests = float64(after-before) / float64(len(turns))
	r.serverCPU = (cpuEnd - cpu).Seconds() / window.Seconds()
	return r, nil
}

// judgeTurns puts the turns of all waiters in order.
func judgeTurns(turns []turn, waiters int) (r lineResult) {
	slices.SortFunc(turns, func(a, b turn) int { return cmp.Compare(a.Got, b.Got) })
	first, last := turns[0], turns[len(turns)-1]
	r.perSecond = float64(len(turns)-1) / time.Duration(last.Got-first.Got).Seconds()
	handOvers, waits := newHistogram(), newHistogram()
	each := make([]int, waiters)
	same := 0
	for i, t := range turns {
		each[t.Waiter]++
		_ = waits.RecordValue((t.Got - t.Asked) / 1000)
		if i == 0 {
			continue
		}
		before := turns[i-1]
		gap := t.Got - before.Releasing
		switch {
		case gap < 0:
			r.overlaps++
		case t.Waiter == before.Waiter:
			same++
		default:
			_ = handOvers.RecordValue(gap / 1000)
		}
	}
	r.p50, r.p99 = quantile(handOvers, 50), quantile(handOvers, 99)
	r.self = float64(same) / float64(len(turns)-1)
	r.wait, r.waitP99 = time.Duration(waits.Mean()*1000), quantile(waits, 99)
	r.fewest, r.most = slices.Min(each), slices.Max(each)
	for _, n := range each {
		if n == 0 {
			r.unfair++
		}
	}
	return r
}
