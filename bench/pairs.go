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
	defer l.close()
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
					failed = err
					mu.Unlock()
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
	return pairsResult{
		perSecond: float64(all.TotalCount()) / took.Seconds(),
		p50:       quantile(all, 50), p99: quantile(all, 99),
		serverCPU: (cpuEnd - cpu).Seconds() / took.Seconds(),
	}, nil
}

// newHistogram is for µs, up to a minute, to two digits.
func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, 60_000_000, 2) }

func quantile(h *hdrhistogram.Histogram, q float64) time.Duration {
	return time.Duration(h.ValueAtQuantile(q)) * time.Microsecond
}
