//go:build unix

package redishold

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/drivertest"
	"github.com/holdlock/holdlock/internal/testenv"
)

var stores atomic.Int64

// harness tests the stores of a server that all cases share: each has a namespace. With plain keys it has a database
// number's worth of keys to itself instead, so those cases bring a server each.
func harness(dial func() redis.UniversalClient, opts Options) drivertest.Harness {
	return drivertest.Harness{
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
	var left []string
	each := func(ctx context.Context, node redis.Cmdable) error {
		it := node.Scan(ctx, 0, ns+":*", 1000).Iterator()
		for it.Next(ctx) {
			key := it.Val()
			ttl, err := node.PTTL(ctx, key).Result()
			if err != nil {
				return err
			}
			slot := len(key) > len(d.prefix) && key[len(key)-1] == '}'
			switch {
			case ttl == -2: // it has just expired
			case ttl < 0:
				left = append(left, key+" (without TTL)")
			case !slot:
				left = append(left, key)
			case ttl > driver.CounterTTL:
				left = append(left, fmt.Sprintf("%s (for %v)", key, ttl))
			}
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

// standalone starts one server and returns a way to it.
func standalone(tb testing.TB, args ...string) (*testenv.Redis, func() redis.UniversalClient) {
	tb.Helper()
	r := testenv.StartRedis(tb, args...)
	return r, func() redis.UniversalClient { return client(r.Addr) }
}

// client connects to one server as the documentation recommends.
func client(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: addr, ContextTimeoutEnabled: true, MaxRetries: -1, PoolSize: 20, MaintNotificationsConfig: noMaintenance,
	})
}

// noMaintenance switches off what only Redis Enterprise has, and what leaves goroutines behind when a node goes away.
var noMaintenance = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}

func TestConformance(t *testing.T) {
	_, dial := standalone(t)
	drivertest.Run(t, harness(dial, Options{}))
}

func TestMutants(t *testing.T) {
	_, dial := standalone(t)
	drivertest.RunMutants(t, harness(dial, Options{}))
}

func TestHistory(t *testing.T) {
	_, dial := standalone(t)
	for seed := uint64(2); seed < 6; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			drivertest.RunHistory(t, harness(dial, Options{}), seed)
		})
	}
}

func BenchmarkStore(b *testing.B) {
	_, dial := standalone(b)
	drivertest.RunBenchmarks(b, harness(dial, Options{}))
}
