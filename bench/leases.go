package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"
)

// leasesResult is one reading of a process that holds many locks, which are renewed. Its fields are exported for the way
// from the worker.
type leasesResult struct {
	Goroutines int     // in all, beyond those of the empty client, at most
	Bytes      float64 // of heap and stacks for each lock
	CPU        float64 // cores
	Commands   float64 // a second
}

// holdMany is the worker's part.
func holdMany(ctx context.Context, l locker, t task, ready func() bool) (r leasesResult, err error) {
	warm, err := l.lock(ctx, "warm")
	if err != nil {
		return r, err
	}
	if err := warm(); err != nil {
		return r, err
	}
	goroutines, bytes := runtime.NumGoroutine(), memory()
	unlocks := make([]func() error, t.N)
	if err := inParallel(64, t.N, func(i int) (err error) {
		unlocks[i], err = l.lock(ctx, fmt.Sprintf("lease-%d", i))
		return err
	}); err != nil {
		return r, err
	}
	r.Bytes = float64(memory()-bytes) / float64(t.N)
	if !ready() {
		return r, ctx.Err()
	}
	began, cpu := time.Now(), processorTime()
	for time.Since(began) < t.Window {
		r.Goroutines = max(r.Goroutines, runtime.NumGoroutine()-goroutines)
		time.Sleep(time.Millisecond)
	}
	r.CPU = (processorTime() - cpu).Seconds() / time.Since(began).Seconds()
	for i, unlock := range unlocks {
		if err := unlock(); err != nil {
			return r, fmt.Errorf("lease %d: %w", i, err)
		}
	}
	return r, nil
}

// measureLeases lets one process hold n locks for a window, which is to be several renewals long.
func measureLeases(ctx context.Context, s *server, c contestant, n int, ttl, window time.Duration) (r leasesResult, err error) {
	if err := s.empty(ctx); err != nil {
		return r, err
	}
	w, err := startWorkers([]task{{Kind: "leases", Contestant: c.name, Addr: s.addr, TTL: ttl, N: n, Window: window}})
	if err != nil {
		return r, fmt.Errorf("%s: %w", c.name, err)
	}
	defer w.stop()
	before, err := s.sent(ctx, c.sends)
	if err != nil {
		return r, err
	}
	w.begin()
	time.Sleep(window - window/50) // before they are given back
	after, err := s.sent(ctx, c.sends)
	if err != nil {
		return r, err
	}
	reports, err := w.reports(window)
	if err != nil {
		return r, fmt.Errorf("%s: %w", c.name, err)
	}
	r = reports[0].Leases
	r.Commands = float64(after-before) / window.Seconds()
	return r, nil
}

// inParallel calls f for 0 to n-1 from some goroutines and returns an error of one of them.
func inParallel(goroutines, n int, f func(i int) error) error {
	next := make(chan int, n)
	for i := range n {
		next <- i
	}
	close(next)
	errs := make(chan error, goroutines)
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := range next {
				if err := f(i); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wg.Wait()
	close(errs)
	return <-errs
}

// memory is what the heap and the stacks hold after a collection.
func memory() int64 {
	runtime.GC()
	runtime.GC() // what the first has finalized
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}
