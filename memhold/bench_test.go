package memhold

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// A pair of acquire and release is to cost no more than three times what BenchmarkMap costs, which does the least that
// any store in memory has to do: under a mutex, put a record of the same size into a map and take it out again. Compare
// them in one run:
//
//	go test -run - -bench 'Pair|Map' ./memhold
//
// With a new key each time both keep a small record per key, the store for the counter and the map for comparison.
// Then growing the map costs more than the rest.

func BenchmarkPair(b *testing.B) {
	eachKind(b, func(b *testing.B, refs func() driver.Ref) {
		d, ctx := NewDriver(nil), context.Background()
		for b.Loop() {
			ref := refs()
			if _, err := d.Acquire(ctx, &driver.AcquireRequest{Ref: ref, TTL: time.Minute}); err != nil {
				b.Fatal(err)
			}
			if err := d.Release(ctx, &driver.ReleaseRequest{Ref: ref}); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkMap(b *testing.B) {
	type record struct {
		slot
		term
	}
	eachKind(b, func(b *testing.B, refs func() driver.Ref) {
		var mu sync.Mutex
		records, counters := map[string]*record{}, map[string]*slot{}
		keep := b.Name() == "BenchmarkMap/NewKeys"
		for b.Loop() {
			ref := refs()
			mu.Lock()
			records[ref.Key] = &record{slot{token: 1}, term{nonce: ref.Nonce}}
			mu.Unlock()
			mu.Lock()
			delete(records, ref.Key)
			if keep {
				counters[ref.Key] = &slot{}
			}
			mu.Unlock()
		}
	})
}

// eachKind runs a benchmark on keys that come again and on keys that do not. They are made beforehand, as a caller brings
// them along.
func eachKind(b *testing.B, run func(b *testing.B, refs func() driver.Ref)) {
	for _, kind := range []struct {
		name string
		n    int
	}{{"KnownKeys", 1 << 12}, {"NewKeys", 1 << 21}} {
		b.Run(kind.name, func(b *testing.B) {
			refs, i := make([]driver.Ref, kind.n), 0
			for i := range refs {
				refs[i] = driver.Ref{Key: fmt.Sprintf("job/%d", i), Nonce: fmt.Sprintf("%032x", i)}
			}
			b.ReportAllocs()
			run(b, func() driver.Ref {
				i++
				return refs[i%len(refs)]
			})
		})
	}
}
