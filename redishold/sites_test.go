//go:build unix

package redishold

import (
	"fmt"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/holdlock/holdlock/internal/testenv"
)

// The ways to run Redis that holdlock knows.
var kinds = []string{"standalone", "sentinel", "cluster"}

// A site is one of them, running.
type site struct {
	kind    string
	addrs   []string         // for a client; those of the sentinels, if there are any
	servers []*testenv.Redis // those that hold keys
}

func startSite(tb testing.TB, kind string) site {
	tb.Helper()
	switch kind {
	case "sentinel":
		s := testenv.StartSentinel(tb)
		return site{kind, s.Addrs(), s.Servers[:1]}
	case "cluster":
		nodes := testenv.StartCluster(tb)
		return site{kind, testenv.Addrs(nodes), nodes}
	default:
		r := testenv.StartRedis(tb)
		return site{"standalone", []string{r.Addr}, []*testenv.Redis{r}}
	}
}

// String and siteOf carry a site to another process.
func (s site) String() string { return s.kind + " " + strings.Join(s.addrs, ",") }

func siteOf(text string) site {
	kind, addrs, _ := strings.Cut(text, " ")
	return site{kind: kind, addrs: strings.Split(addrs, ",")}
}

// dial connects as the documentation recommends.
func (s site) dial() redis.UniversalClient {
	switch s.kind {
	case "sentinel":
		return redis.NewFailoverClient(&redis.FailoverOptions{
			MasterName: "main", SentinelAddrs: s.addrs, ContextTimeoutEnabled: true, MaxRetries: -1, PoolSize: 20,
		})
	case "cluster":
		return redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: s.addrs, ContextTimeoutEnabled: true, PoolSize: 20, MaintNotificationsConfig: noMaintenance,
		})
	default:
		return client(s.addrs[0])
	}
}

// open opens a driver with a client of its own.
func (s site) open(t *testing.T, opts *Options) *Driver {
	t.Helper()
	rdb := s.dial()
	d, err := NewDriver(rdb, opts)
	if err != nil {
		t.Fatalf("NewDriver: %v", err)
	}
	t.Cleanup(func() { _, _ = d.Close(), rdb.Close() })
	return d
}

// eternal returns how many keys have no expiry. The server counts both in one step.
func (s site) eternal() (n int, err error) {
	for _, r := range s.servers {
		info, err := r.Try("INFO", "keyspace")
		if err != nil {
			return 0, err
		}
		_, line, ok := strings.Cut(info, "db0:")
		if !ok {
			continue // no keys at all
		}
		var keys, expires int
		if _, err := fmt.Sscanf(line, "keys=%d,expires=%d", &keys, &expires); err != nil {
			return 0, fmt.Errorf("%q: %w", info, err)
		}
		n += keys - expires
	}
	return n, nil
}

// client connects to one server as the documentation recommends.
func client(addr string) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: addr, ContextTimeoutEnabled: true, MaxRetries: -1, PoolSize: 20, MaintNotificationsConfig: noMaintenance,
	})
}

func clusterClient(nodes []*testenv.Redis) redis.UniversalClient {
	return site{kind: "cluster", addrs: testenv.Addrs(nodes)}.dial()
}

func sentinelClient(s *testenv.Sentinel) redis.UniversalClient {
	return site{kind: "sentinel", addrs: s.Addrs()}.dial()
}

// noMaintenance switches off what only Redis Enterprise has, and what leaves goroutines behind when a node goes away.
var noMaintenance = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
