package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// pairsResult is one reading of callers who take and release a lock each, every one on keys of its own.
type pairsResult struct {
	perSecond float64
	p50, p99  time.Duration
	serverCPU float64 // cores
	stuck     int     // callers who were still without an answer long after the end
}

// measurePairs runs one contestant: a warm-up, then a window in which every pair counts that ends in it.
func measurePairs(ctx context.Context, s *server, c contestant, callers int, window time.Duration) (r pairsResult, err error) {
	if err := s.empty(ctx); err != nil {
		return r, err
	}
	l, err := c.open(s.addr, setup{ttl: 30 * time.Second, waiters: callers})
	if err != nil {
		return r, fmt.Errorf("%s: %w", c.name, err)
	}
	closing := sync.OnceFunc(l.close)
	defer closing()
	var hung atomic.Bool
	defer time.AfterFunc(2*window+stuckAfter, func() { hung.Store(true); closing() }).Stop()
	runtime.GC() // what others have left behind is not this one's to clear
	var (
		counting, stopped atomic.Bool
		running           sync.WaitGroup
		mu                sync.Mutex
		all               = newHistogram()
		failed            error
	)
	for i := range callers {
		running.Go(func() {
			own := newHistogram()
			key := fmt.Sprintf("key-%d", i)
			for !stopped.Load() {
				began := time.Now()
				unlock, err := l.lock(ctx, key)
				if err == nil {
					err = unlock()
				}
				if err != nil {
					mu.Lock()
					defer mu.Unlock()
					if hung.Load() {
						r.stuck++
					} else {
						failed = err
					}
					all.Merge(own)
					return
				}
				if counting.Load() {
					_ = own.RecordValue(time.Since(began).Microseconds())
				}
			}
			mu.Lock()
			all.Merge(own)
			mu.Unlock()
		})
	}
	time.Sleep(window / 4)
	cpu, err1 := s.cpu(ctx)
	counting.Store(true)
	began := time.Now()
	time.Sleep(window)
	counting.Store(false)
	took := time.Since(began)
	cpuEnd, err2 := s.cpu(ctx)
	stopped.Store(true)
	running.Wait()
	for _, err := range []error{failed, err1, err2} {
		if err != nil {
			return r, fmt.Errorf("%s: %w", c.name, err)
		}
	}
	r.perSecond = float64(all.TotalCount()) / took.Seconds()
	r.p50, r.p99 = quantile(all, 50), quantile(all, 99)
	r.serverCPU = (cpuEnd - cpu).Seconds() / took.Seconds()
	return r, nil
}

// stuckAfter is for waiters who have missed the end of what they wait for. They are ended by closing the contestant.
const stuckAfter = 10 * time.Second

// newHistogram is for µs, up to a minute, to two digits.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, 60_000_000, 2) }

func quantile(h *hdrhistogram.Histogram, q float64) time.Duration {
	return time.Duration(h.ValueAtQuantile(q)) * time.Microsecond
}
