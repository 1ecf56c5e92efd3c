//go:build unix

package redishold

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// durable are the settings of a server that is in order.
var durable = []string{"--appendonly", "yes", "--appendfsync", "always"}

func diagnose(t *testing.T, rdb redis.UniversalClient, opts *Options) []driver.Diagnosis {
	t.Helper()
	d, err := NewDriver(rdb, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = d.Close(), rdb.Close() })
	return d.Diagnose(t.Context(), driver.DoctorOptions{})
}

// login is a client of a user of its own with some rights.
func login(t *testing.T, r *testenv.Redis, rights string) redis.UniversalClient {
	t.Helper()
	r.Do(t, append([]string{"ACL", "SETUSER", "locks", "on", ">secret"}, strings.Fields(rights)...)...)
	return redis.NewClient(&redis.Options{Addr: r.Addr, Username: "locks", Password: "secret", MaxRetries: -1, DisableIdentity: true, MaintNotificationsConfig: noMaintenance})
}

// Each set-up is bad in one way, which the doctor names.
func TestDoctorOnBadServers(t *testing.T) {
	start := func(t *testing.T, more ...string) *testenv.Redis {
		return testenv.StartRedis(t, append(durable[:len(durable):len(durable)], more...)...)
	}
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		found func(t *testing.T) []driver.Diagnosis
		check string
		want  driver.Verdict
		word  string // in what it says
	}{
		"no server": {func(t *testing.T) []driver.Diagnosis { return diagnose(t, client("127.0.0.1:1"), nil) }, "connection", driver.Refuse, "network"},
		"wrong password": {func(t *testing.T) []driver.Diagnosis {
			r := start(t, "--requirepass", "x")
			return diagnose(t, client(r.Addr), nil)
		}, "connection", driver.Refuse, "password"},
		"database that does not exist": {func(t *testing.T) []driver.Diagnosis {
			return diagnose(t, redis.NewClient(&redis.Options{Addr: start(t).Addr, DB: 99, MaxRetries: -1, MaintNotificationsConfig: noMaintenance}), nil)
		}, "connection", driver.Refuse, "out of range"},
		"replica": {func(t *testing.T) []driver.Diagnosis {
			primary := start(t)
			return diagnose(t, client(start(t, "--replicaof", fmt.Sprintf("127.0.0.1 %d", primary.Port())).Addr), nil)
		}, "role", driver.Refuse, "redis+sentinel"},
		"eviction": {func(t *testing.T) []driver.Diagnosis {
			return diagnose(t, client(start(t, "--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru").Addr), nil)
		}, "eviction", driver.Refuse, "CONFIG SET maxmemory-policy noeviction"},
		"eviction some day": {func(t *testing.T) []driver.Diagnosis {
			return diagnose(t, client(start(t, "--maxmemory-policy", "allkeys-lru").Addr), nil)
		}, "eviction", driver.Caution, "CONFIG SET maxmemory-policy noeviction"},
		"no right to pass a lock on": {func(t *testing.T) []driver.Diagnosis {
			return diagnose(t, login(t, start(t), strings.Join(documentedACL(t), " ")+" -lpop"), nil)
		}, "use", driver.Refuse, "LPOP"},
		"node of a cluster": {func(t *testing.T) []driver.Diagnosis {
			r := start(t, "--cluster-enabled", "yes")
			r.Do(t, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
			testenv.Eventually(t, "it serves all slots", func() bool { return strings.Contains(r.Do(t, "CLUSTER", "INFO"), "cluster_state:ok") })
			return diagnose(t, client(r.Addr), nil)
		}, "mode", driver.Refuse, "redis+cluster://"},
		"full": {func(t *testing.T) []driver.Diagnosis {
			r := start(t)
			r.Do(t, "CONFIG", "SET", "maxmemory", "1")
			return diagnose(t, client(r.Addr), nil)
		}, "use", driver.Refuse, "OOM"},
		"nearly full": {func(t *testing.T) []driver.Diagnosis {
			r := start(t)
			used := fields(r.Do(t, "INFO", "memory"))["used_memory"]
			var n int64
			_, _ = fmt.Sscan(used, &n)
			r.Do(t, "CONFIG", "SET", "maxmemory", fmt.Sprint(n+n/20))
			return diagnose(t, client(r.Addr), nil)
		}, "eviction", driver.Caution, "bytes are used"},
		"no persistence": {func(t *testing.T) []driver.Diagnosis { return diagnose(t, client(testenv.StartRedis(t).Addr), nil) }, "persistence", driver.Caution, "CONFIG SET appendonly yes"},
		"synced each second": {func(t *testing.T) []driver.Diagnosis {
			return diagnose(t, client(testenv.StartRedis(t, "--appendonly", "yes").Addr), nil)
		}, "persistence", driver.Caution, "CONFIG SET appendfsync always"},
		"disk fails": {func(t *testing.T) []driver.Diagnosis {
			r := testenv.StartRedis(t, "--save", "900 1")
			if err := os.RemoveAll(r.Dir); err != nil {
				t.Fatal(err)
			}
			r.Do(t, "SET", "x", "y")
			_, _ = r.Try("BGSAVE")
			testenv.Eventually(t, "the server notices", func() bool {
				return fields(r.Do(t, "INFO", "persistence"))["rdb_last_bgsave_status"] == "err"
			})
			return diagnose(t, client(r.Addr), nil)
		}, "use", driver.Refuse, "MISCONF"},
		"just restarted, empty": {func(t *testing.T) []driver.Diagnosis { return diagnose(t, client(testenv.StartRedis(t).Addr), nil) }, "uptime", driver.Caution, "wait until 30s have passed"},
		"replicas": {func(t *testing.T) []driver.Diagnosis {
			primary := start(t)
			start(t, "--replicaof", fmt.Sprintf("127.0.0.1 %d", primary.Port()))
			testenv.Eventually(t, "the replica is there", func() bool { return fields(primary.Do(t, "INFO", "replication"))["connected_slaves"] == "1" })
			return diagnose(t, client(primary.Addr), nil)
		}, "replicas", driver.Caution, "CONFIG SET min-replicas-to-write 1"},
		"replicas are missing": {func(t *testing.T) []driver.Diagnosis {
			return diagnose(t, client(start(t).Addr), &Options{Replicas: 1})
		}, "replicas", driver.Refuse, "1 have to confirm"},
		"failover to nobody": {func(t *testing.T) []driver.Diagnosis {
			return diagnose(t, client(start(t).Addr), &Options{Failover: true})
		}, "replicas", driver.Caution, "nobody to take over"},
		"too few replicas to write": {func(t *testing.T) []driver.Diagnosis {
			return diagnose(t, client(start(t, "--min-replicas-to-write", "1").Addr), nil)
		}, "use", driver.Refuse, "NOREPLICAS"},
		"no right to run scripts": {func(t *testing.T) []driver.Diagnosis {
			return diagnose(t, login(t, start(t), "~* &* +@all -evalsha"), nil)
		}, "use", driver.Refuse, "ACL SETUSER"},
		"no right to subscribe": {func(t *testing.T) []driver.Diagnosis {
			return diagnose(t, login(t, start(t), "~* +@all"), nil)
		}, "use", driver.Caution, "waiters poll"},
		"no right to list": {func(t *testing.T) []driver.Diagnosis {
			return diagnose(t, login(t, start(t), "~* &* +@all -scan"), nil)
		}, "use", driver.Caution, "holdlock ls"},
		"no right to count": {func(t *testing.T) []driver.Diagnosis {
			return diagnose(t, login(t, start(t), "~holdlock:{:* ~holdlock:p:* &* +@all"), nil)
		}, "counts", driver.Caution, "reviews know nothing"},
		"far away": {func(t *testing.T) []driver.Diagnosis {
			p := testenv.StartProxy(t, start(t).Addr, func(up bool, _ []byte) testenv.Verdict {
				if up {
					time.Sleep(60 * ms) // the way there
				}
				return testenv.Pass
			})
			d, err := NewDriver(client(p.Addr), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			return d.Diagnose(t.Context(), driver.DoctorOptions{TTL: 500 * ms})
		}, "round trip", driver.Caution, "a TTL of"},
		"many connections": {func(t *testing.T) []driver.Diagnosis {
			r := start(t)
			r.Do(t, "CONFIG", "SET", "maxclients", "20")
			busy := redis.NewClient(&redis.Options{Addr: r.Addr, PoolSize: 20, MaintNotificationsConfig: noMaintenance})
			defer busy.Close()
			var held []*redis.Conn
			for range 16 {
				c := busy.Conn()
				if err := c.Ping(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
				held = append(held, c)
			}
			defer func() {
				for _, c := range held {
					_ = c.Close()
				}
			}()
			return diagnose(t, redis.NewClient(&redis.Options{Addr: r.Addr, PoolSize: 3, MaintNotificationsConfig: noMaintenance}), nil)
		}, "connections", driver.Caution, "maxclients"},
		"cluster without all slots": {func(t *testing.T) []driver.Diagnosis {
			nodes := testenv.StartCluster(t)
			for _, node := range nodes {
				_, _ = node.Try("CLUSTER", "DELSLOTS", "0")
			}
			c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].Addr}, MaintNotificationsConfig: noMaintenance})
			testenv.Eventually(t, "the nodes notice", func() bool {
				for _, node := range nodes {
					if !strings.Contains(node.Do(t, "CLUSTER", "INFO"), "cluster_state:fail") {
						return false
					}
				}
				return true
			})
			return diagnose(t, c, nil)
		}, "cluster", driver.Refuse, "redis-cli --cluster"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := c.found(t)
			for _, f := range all {
				if f.Check == c.check && f.Verdict == c.want && strings.Contains(f.Found+f.Harm+f.Setting, c.word) {
					if f.Harm == "" || f.Setting == "" {
						t.Errorf("%+v says no harm, or not what to change", f)
					}
					return
				}
			}
			t.Errorf("no %s of %q with %q in %+v", c.want, c.check, c.word, all)
		})
	}
}

// What is in order is not complained of, and a user who may only lock is told what was not seen.
func TestDoctorOnGoodServers(t *testing.T) {
	for name, c := range map[string]struct {
		open   func(t *testing.T) redis.UniversalClient
		unseen bool
	}{
		"one server": {func(t *testing.T) redis.UniversalClient { return client(testenv.StartRedis(t, durable...).Addr) }, false},
		"least rights": {func(t *testing.T) redis.UniversalClient {
			return login(t, testenv.StartRedis(t, durable...), strings.Join(documentedACL(t), " "))
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			unseen := false
			for _, f := range diagnose(t, c.open(t), nil) {
				unseen = unseen || f.Verdict == driver.Unseen
				if f.Verdict >= driver.Caution && f.Check != "round trip" { // that is for a busy machine to say
					t.Errorf("%+v", f)
				}
			}
			if unseen != c.unseen {
				t.Errorf("something was not seen: %v, want %v", unseen, c.unseen)
			}
		})
	}
}
