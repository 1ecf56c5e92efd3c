package drivertest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// RunBenchmarks measures what every store does, at the level of the driver: no waiting, no keeping, no retries above it.
//
//   - Pair: acquire and release, each time another key, as for job ids.
//   - PairOneKey: the same key each time.
//   - PairContended: two drivers, several goroutines and one key; an attempt that is refused counts as well.
//   - Refused: an attempt on a key that is held.
//   - Renew: one term.
//   - RenewBatch512: 512 terms together; ns/op is for all of them, ns/term for one.
func RunBenchmarks(b *testing.B, h Harness) {
	b.Run("Pair", func(b *testing.B) {
		d, n := h.open(b, 1)[0], 0
		for b.Loop() {
			n++
			pair(b, d, fmt.Sprintf("job/%d", n))
		}
	})
	b.Run("PairOneKey", func(b *testing.B) {
		d := h.open(b, 1)[0]
		for b.Loop() {
			pair(b, d, "k")
		}
	})
	b.Run("PairContended", func(b *testing.B) {
		drivers := h.open(b, 2)
		b.RunParallel(func(pb *testing.PB) {
			for i := 0; pb.Next(); i++ {
				d, req := drivers[i%2], benchRequest("k")
				_, err := d.Acquire(context.Background(), req)
				var held *driver.HeldError
				switch {
				case err == nil:
					benchCheck(b, d.Release(context.Background(), &driver.ReleaseRequest{Ref: req.Ref}))
				case !errors.As(err, &held):
					benchCheck(b, err)
				}
			}
		})
	})
	b.Run("Refused", func(b *testing.B) {
		d := h.open(b, 1)[0]
		_, err := d.Acquire(context.Background(), benchRequest("k"))
		benchCheck(b, err)
		for b.Loop() {
			if _, err := d.Acquire(context.Background(), benchRequest("k")); err == nil {
				b.Fatal("a held key was granted")
			}
		}
	})
	b.Run("Renew", func(b *testing.B) {
		d, req := h.open(b, 1)[0], benchRequest("k")
		_, err := d.Acquire(context.Background(), req)
		benchCheck(b, err)
		renew := &driver.RenewRequest{Ref: req.Ref, TTL: req.TTL}
		for b.Loop() {
			_, err := d.Renew(context.Background(), renew)
			benchCheck(b, err)
		}
	})
	b.Run("RenewBatch512", func(b *testing.B) {
		d := h.open(b, 1)[0]
		batch, ok := driver.As[driver.BatchRenewer](d)
		if !ok {
			b.Skip("the store does not renew in batches")
		}
		reqs := make([]*driver.RenewRequest, 512)
		for i := range reqs {
			req := benchRequest(fmt.Sprintf("k%d", i))
			_, err := d.Acquire(context.Background(), req)
			benchCheck(b, err)
			reqs[i] = &driver.RenewRequest{Ref: req.Ref, TTL: req.TTL}
		}
		for b.Loop() {
			for _, res := range batch.RenewBatch(context.Background(), reqs) {
				benchCheck(b, res.Err)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(reqs)), "ns/term")
	})
}

// open opens n drivers on one fresh store.
func (h Harness) open(b *testing.B, n int) []driver.Driver {
	b.Helper()
	store := h.NewStore(b)
	drivers := make([]driver.Driver, n)
	for i := range drivers {
		d, err := store.Open()
		benchCheck(b, err)
		b.Cleanup(func() { d.Close() })
		drivers[i] = d
	}
	return drivers
}

func benchRequest(key string) *driver.AcquireRequest {
	return &driver.AcquireRequest{Ref: driver.Ref{Key: key, Nonce: newNonce()}, TTL: 30 * time.Second, Holder: me()}
}

func pair(b *testing.B, d driver.Driver, key string) {
	req := benchRequest(key)
	_, err := d.Acquire(context.Background(), req)
	benchCheck(b, err)
	benchCheck(b, d.Release(context.Background(), &driver.ReleaseRequest{Ref: req.Ref}))
}

func benchCheck(b *testing.B, err error) {
	if err != nil {
		b.Helper()
		b.Fatal(err)
	}
}
