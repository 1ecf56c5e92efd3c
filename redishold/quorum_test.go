//go:build unix

package redishold

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/driver/drivertest"
	"github.com/holdlock/holdlock/internal/testenv"
	"github.com/holdlock/holdlock/quorumhold"
)

// startServers starts n servers that have nothing to do with each other.
func startServers(tb testing.TB, n int) []*testenv.Redis {
	tb.Helper()
	var all []*testenv.Redis
	for range n {
		all = append(all, testenv.StartRedis(tb))
	}
	return all
}

// dialAll returns clients, and what closes them.
func dialAll(addrs []string) ([]redis.UniversalClient, func()) {
	var all []redis.UniversalClient
	for _, a := range addrs {
		all = append(all, client(a))
	}
	return all, func() {
		for _, c := range all {
			_ = c.Close()
		}
	}
}

// quorumOwner is a driver that closes its Redis clients with itself.
type quorumOwner struct {
	*quorumhold.Driver
	closeAll func()
}

func (o *quorumOwner) Close() error {
	err := o.Driver.Close()
	o.closeAll()
	return err
}

func openQuorum(tb testing.TB, addrs []string, opts *QuorumOptions) *quorumOwner {
	tb.Helper()
	clients, closeAll := dialAll(addrs)
	d, err := NewQuorumDriver(clients, opts)
	if err != nil {
		closeAll()
		tb.Fatal(err)
	}
	o := &quorumOwner{d, closeAll}
	tb.Cleanup(func() { _ = o.Close() })
	return o
}

// initQuorum declares the servers a new quorum.
func initQuorum(tb testing.TB, addrs []string, opts *QuorumOptions) {
	tb.Helper()
	clients, closeAll := dialAll(addrs)
	defer closeAll()
	if err := InitQuorum(context.Background(), clients, opts); err != nil {
		tb.Fatal(err)
	}
}

// quorumHarness tests quorums of servers that all cases share: each has a namespace.
func quorumHarness(addrs []string) drivertest.Harness {
	return drivertest.Harness{
		Straggle: time.Second,
		NewStore: func(tb testing.TB) drivertest.Store {
			opts := &QuorumOptions{Namespace: fmt.Sprintf("suite%d", stores.Add(1)), NodeTimeout: 15 * time.Second}
			initQuorum(tb, addrs, opts)
			return drivertest.Store{
				Open: func() (driver.Driver, error) {
					clients, closeAll := dialAll(addrs)
					d, err := NewQuorumDriver(clients, opts)
					if err != nil {
						return nil, err
					}
					return &quorumOwner{d, closeAll}, nil
				},
				Leftovers: func() (left []string, err error) {
					for _, a := range addrs {
						some, err := leftovers(func() redis.UniversalClient { return client(a) }, opts.Namespace+":q")
						if err != nil {
							return nil, err
						}
						left = append(left, slices.DeleteFunc(some, func(s string) bool { return s == opts.Namespace+":q:quorum" })...)
					}
					return left, nil
				},
			}
		},
	}
}

func TestQuorumConformance(t *testing.T) {
	addrs := testenv.Addrs(startServers(t, 5))
	h := quorumHarness(addrs)
	t.Run("cases", func(t *testing.T) { drivertest.Run(t, h) })
	for seed := uint64(2); seed < 4; seed++ {
		t.Run(fmt.Sprintf("history/%d", seed), func(t *testing.T) { drivertest.RunHistory(t, h, seed) })
	}
}

// A quorum that nobody has declared new begins to grant when its nodes have abstained for MaxTTL.
func TestQuorumBeginsByItself(t *testing.T) {
	t.Parallel()
	servers := startServers(t, 3)
	d := openQuorum(t, testenv.Addrs(servers), &QuorumOptions{MaxTTL: time.Second})
	start := time.Now()
	_, err := d.Acquire(t.Context(), request("k", time.Second))
	if !errors.Is(err, driver.ErrAbstains) || !strings.Contains(err.Error(), servers[0].Addr) {
		t.Fatalf("the first acquire: %v", err)
	}
	testenv.Eventually(t, "it grants", func() bool {
		_, err := d.Acquire(t.Context(), request("k", time.Second))
		return err == nil
	})
	if took := time.Since(start); took < time.Second {
		t.Errorf("it granted after %v, before MaxTTL was over", took)
	}
	// Declared new, another one grants at once.
	opts := &QuorumOptions{Namespace: "fresh"}
	initQuorum(t, testenv.Addrs(servers), opts)
	if _, err := openQuorum(t, testenv.Addrs(servers), opts).Acquire(t.Context(), request("k", time.Second)); err != nil {
		t.Errorf("after InitQuorum: %v", err)
	}
	clients, closeAll := dialAll(testenv.Addrs(servers))
	defer closeAll()
	if err := InitQuorum(t.Context(), clients, opts); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second InitQuorum: %v", err)
	}
}
