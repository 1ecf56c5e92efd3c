package holdlock_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/memhold"
)

// BenchmarkDo is what the client adds to a store: compare with BenchmarkDriverPair.
func BenchmarkDo(b *testing.B) {
	c, err := memhold.Open(nil)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Shutdown(b.Context())
	l, err := c.NewLock("job", nil)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := l.Do(b.Context(), func(context.Context, *holdlock.Lease) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkDriverPair is the floor of BenchmarkDo.
func BenchmarkDriverPair(b *testing.B) {
	d := memhold.NewDriver(nil)
	ref := driver.Ref{Key: "job", Nonce: "0123456789abcdef0123456789abcdef"}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := d.Acquire(b.Context(), &driver.AcquireRequest{Ref: ref, TTL: time.Minute}); err != nil {
			b.Fatal(err)
		}
		if err := d.Release(b.Context(), &driver.ReleaseRequest{Ref: ref}); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCheck is the cost of asking right before an effect.
func BenchmarkCheck(b *testing.B) {
	c, err := memhold.Open(nil)
	if err != nil {
		b.Fatal(err)
	}
	defer c.Shutdown(b.Context())
	l, err := c.NewLock("job", nil)
	if err != nil {
		b.Fatal(err)
	}
	lease, err := l.TryAcquire(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer lease.Release(b.Context())
	for b.Loop() {
		if err := lease.Check(time.Second); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkManyLeases reports what 10,000 leases that one client renews cost it: bytes a lease, without the store's own
// records, and goroutines in all.
func BenchmarkManyLeases(b *testing.B) {
	const n = 10_000
	for b.Loop() {
		store := memhold.NewStore()
		c, err := memhold.Open(&memhold.Options{Store: store})
		if err != nil {
			b.Fatal(err)
		}
		l, err := c.NewLock("job", &holdlock.LockOptions{TTL: 300 * time.Millisecond})
		if err != nil {
			b.Fatal(err)
		}
		keys := make([]*holdlock.Lock, n)
		for i := range keys {
			keys[i] = l.For(fmt.Sprint(i))
			lease, err := keys[i].TryAcquire(b.Context()) // the store's records are made here, before the first reading
			if err != nil {
				b.Fatal(err)
			}
			if err := lease.Release(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		goroutines, before := runtime.NumGoroutine(), heap()
		leases := make([]*holdlock.Lease, n)
		for i, k := range keys {
			if leases[i], err = k.TryAcquire(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
		after := heap()
		most := 0
		for deadline := time.Now().Add(time.Second); time.Now().Before(deadline); runtime.Gosched() {
			most = max(most, runtime.NumGoroutine())
		}
		lost := 0
		for _, lease := range leases {
			if lease.Check(0) != nil {
				lost++
			}
			_ = lease.Release(b.Context())
		}
		b.ReportMetric(float64(after-before)/n, "B/lease")
		b.ReportMetric(float64(most-goroutines), "goroutines")
		b.ReportMetric(float64(lost), "lost")
		if err := c.Shutdown(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
