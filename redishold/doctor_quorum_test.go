//go:build unix

package redishold

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/testenv"
)

// found wants a finding, with what can happen and what to change.
func found(t *testing.T, all []driver.Diagnosis, check string, want driver.Verdict, word string) {
	t.Helper()
	for _, f := range all {
		if strings.HasPrefix(f.Check, check) && f.Verdict == want && strings.Contains(f.Found+f.Harm+f.Setting, word) {
			if f.Harm == "" || f.Setting == "" {
				t.Errorf("%+v says no harm, or not what to change", f)
			}
			return
		}
	}
	t.Errorf("no %s of %q with %q in %+v", want, check, word, all)
}

// Each quorum is bad in one way, which the doctor names; one that is in order it does not complain of.
func TestDoctorOnQuorums(t *testing.T) {
	for name, c := range map[string]struct {
		nodes  int
		apart  bool // each on an address of its own
		fresh  bool // not declared new
		opts   QuorumOptions
		spoil  func(t *testing.T, servers []*testenv.Redis)
		ttl    time.Duration
		check  string // "": good
		want   driver.Verdict
		word   string
		delays bool
	}{
		"good":             {nodes: 3, apart: true},
		"on one machine":   {nodes: 3, check: "independence", want: driver.Caution, word: "no majority"},
		"two on a machine": {nodes: 5, apart: true, check: "independence", want: driver.Caution, word: "survives less"},
		"an even number":   {nodes: 4, apart: true, opts: QuorumOptions{AllowWeak: true}, check: "number of nodes", want: driver.Caution, word: "3 or 5"},
		"a single node":    {nodes: 1, opts: QuorumOptions{AllowWeak: true}, check: "number of nodes", want: driver.Caution, word: "3 or 5"},
		"a TTL too long":   {nodes: 3, apart: true, ttl: time.Minute, check: "TTL", want: driver.Refuse, word: "--quorum-max-ttl"},
		"one node down": {
			nodes: 3, apart: true, check: "majority", want: driver.Caution, word: "one failure more",
			spoil: func(_ *testing.T, s []*testenv.Redis) { s[1].Kill() },
		},
		"two nodes down": {
			nodes: 3, apart: true, check: "majority", want: driver.Refuse, word: "1 of 3 nodes are well",
			spoil: func(_ *testing.T, s []*testenv.Redis) { s[1].Kill(); s[2].Kill() },
		},
		"not declared new": {nodes: 3, apart: true, fresh: true, check: "mark of ", want: driver.Caution, word: "holdlock quorum init"},
		"a node that forgot": {
			nodes: 3, apart: true, check: "mark of ", want: driver.Caution, word: "has lost its data",
			spoil: func(t *testing.T, s []*testenv.Redis) { s[2].Restart(t) },
		},
		"all have forgotten": {
			nodes: 3, apart: true, check: "majority", want: driver.Refuse, word: "abstain, so 0 can grant",
			spoil: func(t *testing.T, s []*testenv.Redis) {
				for _, one := range s {
					one.Do(t, "FLUSHALL")
				}
			},
		},
		"most have forgotten": {
			nodes: 3, apart: true, check: "majority", want: driver.Refuse, word: "no lock can be taken for 3",
			spoil: func(t *testing.T, s []*testenv.Redis) { s[0].Do(t, "FLUSHALL"); s[2].Restart(t) },
		},
		"one down, one has forgotten": {
			nodes: 5, apart: true, check: "majority", want: driver.Caution, word: "until nodes no longer abstain",
			spoil: func(t *testing.T, s []*testenv.Redis) { s[0].Do(t, "FLUSHALL"); s[2].Kill() },
		},
		"one down, what is said of it": {
			nodes: 3, apart: true, check: "connection of ", want: driver.Caution, word: "here: no lock can be taken",
			spoil: func(_ *testing.T, s []*testenv.Redis) { s[1].Kill() },
		},
		"another quorum's": {nodes: 3, apart: true, opts: QuorumOptions{MaxTTL: 20 * time.Second}, check: "majority", want: driver.Refuse, word: "0 of 3"},
		"a mark of another quorum": {
			nodes: 3, apart: true, opts: QuorumOptions{MaxTTL: 20 * time.Second}, check: "mark of ", want: driver.Refuse,
			word: "the same MaxTTL in all programs",
		},
		"eviction at one": {
			nodes: 3, apart: true, check: "agreement", want: driver.Caution, word: "volatile-lru",
			spoil: func(t *testing.T, s []*testenv.Redis) {
				s[0].Do(t, "CONFIG", "SET", "maxmemory-policy", "volatile-lru")
			},
		},
		"a replica among them": {
			nodes: 3, apart: true, check: "identity of ", want: driver.Caution, word: "is a replica of",
			spoil: func(t *testing.T, s []*testenv.Redis) {
				s[2].Do(t, "REPLICAOF", "127.0.0.1", fmt.Sprint(testenv.StartRedis(t).Port()))
			},
		},
		"far away": {nodes: 3, delays: true, ttl: 500 * time.Millisecond, check: "round trip", want: driver.Caution, word: "nearer nodes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var servers []*testenv.Redis
			var addrs []string
			for i := range c.nodes {
				r := testenv.StartRedis(t, "--bind", "127.0.0.1 127.0.0.2 127.0.0.3 127.0.0.4")
				addr := r.Addr
				if c.apart {
					addr = fmt.Sprintf("127.0.0.%d:%d", i%4+1, r.Port())
				}
				if c.delays {
					addr = testenv.StartProxy(t, addr, func(up bool, _ []byte) testenv.Verdict {
						if up {
							time.Sleep(60 * time.Millisecond)
						}
						return testenv.Pass
					}).Addr
				}
				servers, addrs = append(servers, r), append(addrs, addr)
			}
			if !c.fresh {
				initQuorum(t, addrs, &QuorumOptions{AllowWeak: true})
			}
			if c.spoil != nil {
				c.spoil(t, servers)
			}
			all := openQuorum(t, addrs, &c.opts).Diagnose(t.Context(), driver.DoctorOptions{TTL: c.ttl})
			if c.check != "" {
				found(t, all, c.check, c.want, c.word)
				return
			}
			for _, f := range all {
				if f.Verdict >= driver.Unseen && !strings.HasPrefix(f.Check, "round trip") { // that is for a busy machine to say
					t.Errorf("%+v", f)
				}
			}
			// A doctor who only looked leaves nothing behind but what locks leave.
			for _, r := range servers {
				if keys := r.Do(t, "KEYS", "*:p:*"); strings.Contains(keys, "doctor") {
					t.Errorf("left behind: %s", keys)
				}
			}
		})
	}
}

// Sentinels that would start no failover, or the wrong one.
func TestDoctorOnSentinels(t *testing.T) {
	s := testenv.StartSentinel(t)
	look := func(t *testing.T, primary string) []driver.Diagnosis {
		rdb := sentinelClient(s)
		defer rdb.Close()
		d, err := NewDriver(rdb, &Options{Sentinel: &SentinelOptions{Primary: primary, Addrs: s.Addrs()}})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		return d.Diagnose(t.Context(), driver.DoctorOptions{})
	}
	set := func(t *testing.T, name, value string, some ...*testenv.Redis) {
		for _, one := range some {
			one.Do(t, "SENTINEL", "SET", s.Primary, name, value)
		}
	}
	for _, f := range look(t, s.Primary) {
		if (strings.HasPrefix(f.Check, "sentinel") || f.Check == "failover time") && f.Verdict != driver.Fine {
			t.Errorf("in order, and yet: %+v", f)
		}
	}
	set(t, "quorum", "9", s.Sentinels...)
	found(t, look(t, s.Primary), "sentinel quorum", driver.Caution, "SENTINEL SET main quorum 2")
	set(t, "quorum", "1", s.Sentinels...)
	found(t, look(t, s.Primary), "sentinel quorum", driver.Caution, "cut off")
	set(t, "quorum", "2", s.Sentinels[:1]...)
	found(t, look(t, s.Primary), "sentinel quorum", driver.Caution, "the sentinels differ")
	set(t, "quorum", "2", s.Sentinels...)
	set(t, "down-after-milliseconds", "25000", s.Sentinels...)
	found(t, look(t, s.Primary), "failover time", driver.Caution, "down-after-milliseconds 10000")
	found(t, look(t, s.Primary), "replicas", driver.Caution, "CONFIG SET min-replicas-to-write 1")
	found(t, look(t, s.Primary), "replicas", driver.Caution, "CONFIG REWRITE")
	found(t, look(t, "other"), "sentinels", driver.Refuse, "SENTINEL MONITOR other")
	s.Sentinels[2].Kill()
	found(t, look(t, s.Primary), "sentinels", driver.Caution, "1 of 3 do not answer")
}
