//go:build unix

package redishold

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/drivertest"
	"github.com/holdlock/holdlock/driver/faultdriver"
)

var stores atomic.Int64

// harness tests the stores of a server that all cases share: each has a namespace. With plain keys it has a database
// number's worth of keys to itself instead, so those cases bring a server each.
func harness(dial func() redis.UniversalClient, opts Options) drivertest.Harness {
	return drivertest.Harness{
		Overtaken: true,
		NewStore: func(tb testing.TB) drivertest.Store {
			o := opts
			o.Namespace = fmt.Sprintf("suite%d", stores.Add(1))
			return drivertest.Store{
				Open:      func() (driver.Driver, error) { return openOwn(dial(), &o) },
				Leftovers: func() ([]string, error) { return leftovers(dial, o.Namespace) },
			}
		},
	}
}

// owner is a driver that closes its Redis client with itself.
type owner struct {
	*Driver
	client redis.UniversalClient
}

func openOwn(c redis.UniversalClient, o *Options) (driver.Driver, error) {
	d, err := NewDriver(c, o)
	if err != nil {
		return nil, err
	}
	return &owner{d, c}, nil
}

func (o *owner) Close() error {
	err := o.Driver.Close()
	_ = o.client.Close() // a second time it says that it is closed
	return err
}

// leftovers names all keys of a namespace but the slots of terms that are over; and every key that never expires.
func leftovers(dial func() redis.UniversalClient, ns string) ([]string, error) {
	c := dial()
	defer c.Close()
	d, err := NewDriver(c, &Options{Namespace: ns})
	if err != nil {
		return nil, err
	}
	defer d.Close()
	ctx := context.Background()
	var mu sync.Mutex // the nodes of a cluster are asked at once
	var left []string
	each := func(ctx context.Context, node redis.Cmdable) error {
		it := node.Scan(ctx, 0, ns+":*", 1000).Iterator()
		for it.Next(ctx) {
			key := it.Val()
			ttl, err := node.PTTL(ctx, key).Result()
			if err != nil {
				return err
			}
			note := strings.Contains(key, "}:b:") && ttl <= 2*time.Hour // of a term that was broken: until it would have ended
			slot := len(key) > len(d.prefix) && key[len(key)-1] == '}'
			mu.Lock()
			switch {
			case ttl == -2: // it has just expired
			case ttl < 0:
				left = append(left, key+" (without TTL)")
			case !slot && !note:
				left = append(left, key)
			case ttl > driver.CounterTTL+time.Hour:
				left = append(left, fmt.Sprintf("%s (for %v)", key, ttl))
			}
			mu.Unlock()
		}
		return it.Err()
	}
	if d.cluster != nil {
		err = d.cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return each(ctx, c) })
	} else {
		err = each(ctx, c)
	}
	return left, err
}

// TestContract runs the suite: as it is, with requests and replies that come late, as a history under faults of every kind,
// and on the mutants.
func TestContract(t *testing.T) {
	t.Parallel()
	var mutants sync.Mutex
	part := func(t *testing.T, name string, run func(t *testing.T)) {
		t.Run(name, func(t *testing.T) { t.Parallel(); run(t) })
	}
	on := func(name string, start func(t *testing.T) drivertest.Harness) {
		part(t, name, func(t *testing.T) {
			h := start(t)
			part(t, "rules", func(t *testing.T) { drivertest.Run(t, h) })
			part(t, "late", func(t *testing.T) { drivertest.Run(t, late(h)) })
			part(t, "mutants", func(t *testing.T) {
				mutants.Lock() // some are given away by milliseconds, which are lost if too much happens at once
				defer mutants.Unlock()
				drivertest.RunMutants(t, h)
			})
			for seed := uint64(2); seed < 6; seed++ {
				part(t, fmt.Sprint("history ", seed), func(t *testing.T) { drivertest.RunHistory(t, h, seed) })
			}
		})
	}
	for _, kind := range kinds {
		on(kind, func(t *testing.T) drivertest.Harness { return harness(startSite(t, kind).dial, Options{}) })
	}
	on("plain keys", plainHarness)
	on("replicas", func(t *testing.T) drivertest.Harness {
		primary, _ := startPair(t)
		return harness(func() redis.UniversalClient { return client(primary.Addr) }, Options{Replicas: 1})
	})
}

// late is the same stores with calls that take their time, on the way there and back.
func late(h drivertest.Harness) drivertest.Harness {
	var seed atomic.Uint64
	under := h.NewStore
	h.NewStore = func(tb testing.TB) drivertest.Store {
		s := under(tb)
		open := s.Open
		s.Open = func() (driver.Driver, error) {
			d, err := open()
			if err != nil {
				return nil, err
			}
			return faultdriver.New(d, faultdriver.Seeded(seed.Add(1), faultdriver.Odds{
				Before: 0.3, After: 0.3, MaxDelay: 60 * time.Millisecond,
			})), nil
		}
		return s
	}
	return h
}

func BenchmarkStore(b *testing.B) {
	drivertest.RunBenchmarks(b, harness(startSite(b, "standalone").dial, Options{}))
}
