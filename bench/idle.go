package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// idleResult is one reading of waiters for a key that stays held.
type idleResult struct {
	commands  float64 // a second, sent by all processes
	serverCPU float64 // cores
}

// waitIdle is the worker's part: waiters who wait until they are told to stop.
func waitIdle(ctx context.Context, l locker, t task, ready func() bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var waiters sync.WaitGroup
	for range t.N {
		waiters.Go(func() {
			if unlock, err := l.lock(ctx, contendedKey); err == nil {
				_ = unlock()
			}
		})
	}
	ready()
	<-ctx.Done()
	waiters.Wait()
	return nil
}

// measureIdle counts what waiters cost who have nothing to do.
func measureIdle(ctx context.Context, s *server, c contestant, waiters int, window time.Duration) (r idleResult, err error) {
	if err := s.prepare(ctx, c); err != nil {
		return r, err
	}
	o := setup{ttl: 30 * time.Second, waiters: waiters}
	holder, err := c.open(s.addr, o)
	if err != nil {
		return r, err
	}
	defer holder.close()
	unlock, err := holder.lock(ctx, contendedKey)
	if err != nil {
		return r, fmt.Errorf("%s: %w", c.name, err)
	}
	tasks := make([]task, min(processes, waiters))
	for i := range tasks {
		tasks[i] = task{Kind: "idle", Contestant: c.name, Addr: s.addr, TTL: o.ttl, N: waiters / len(tasks)}
	}
	w, err := startWorkers(tasks)
	if err != nil {
		return r, err
	}
	defer func() {
		w.end()
		_ = unlock() // some wait until they have got it, whatever they are told
		w.stop()
	}()
	time.Sleep(window / 2) // all of them stand in line
	before, err1 := s.sent(ctx, c.sends)
	cpu, err2 := s.cpu(ctx)
	time.Sleep(window)
	after, err3 := s.sent(ctx, c.sends)
	cpuEnd, err4 := s.cpu(ctx)
	for _, err := range []error{err1, err2, err3, err4} {
		if err != nil {
			return r, err
		}
	}
	return idleResult{float64(after-before) / window.Seconds(), (cpuEnd - cpu).Seconds() / window.Seconds()}, nil
}
