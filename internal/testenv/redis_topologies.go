//go:build unix

package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A Sentinel is a primary and a replica of it, watched by three sentinels under the name Primary.
type Sentinel struct {
	Primary   string
	Servers   [2]*Redis // at first the primary and the replica
	Sentinels []*Redis
}

// StartSentinel starts one, and waits until all know of each other. The sentinels act half a second after the primary
// has gone.
func StartSentinel(tb testing.TB) *Sentinel {
	tb.Helper()
	primary := StartRedis(tb, "--repl-diskless-sync-delay", "0")
	replica := StartRedis(tb, "--replicaof", "127.0.0.1 "+fmt.Sprint(primary.Port()), "--repl-diskless-sync-delay", "0")
	s := &Sentinel{Primary: "main", Servers: [2]*Redis{primary, replica}}
	Eventually(tb, "the replica has caught up", func() bool {
		return strings.Contains(replica.Do(tb, "INFO", "replication"), "master_link_status:up")
	})
	for range 3 {
		s.Sentinels = append(s.Sentinels, startSentinel(tb, primary))
	}
	for _, one := range s.Sentinels {
		Eventually(tb, "a sentinel knows the replica and the others", func() bool {
			state := one.Do(tb, "SENTINEL", "MASTER", s.Primary)
			return strings.Contains(state, "num-slaves\n1\n") && strings.Contains(state, "num-other-sentinels\n2\n")
		})
	}
	return s
}

func startSentinel(tb testing.TB, primary *Redis) *Redis {
	tb.Helper()
	var err error
	for range 5 { // the port may have been taken meanwhile
		r := &Redis{Addr: fmt.Sprintf("127.0.0.1:%d", freePort(tb)), Dir: tb.TempDir()}
		file := filepath.Join(r.Dir, "sentinel.conf")
		conf := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nsentinel monitor main 127.0.0.1 %d 2\n"+
			"sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 3000\n", r.Port(), r.Dir, primary.Port())
		if err := os.WriteFile(file, []byte(conf), 0o600); err != nil {
			tb.Fatal(err)
		}
		r.Process = start(tb, exec.Command(need(tb, "redis-server", installRedis), file, "--sentinel"))
		Eventually(tb, "a sentinel answers", func() bool {
			if err = r.ended(); err != nil {
				return true
			}
			_, err := r.Try("PING")
			return err == nil && strings.Contains(r.out.String(), "Sentinel ID is") // it is this one that answers
		})
		if err == nil {
			return r
		}
	}
	tb.Fatalf("a sentinel does not start: %v", err)
	return nil
}

// Addrs returns the addresses of the sentinels.
func (s *Sentinel) Addrs() []string { return addrs(s.Sentinels) }

// Isolate stops replication: from here on the replica gets nothing more.
func (s *Sentinel) Isolate(tb testing.TB) {
	tb.Helper()
	s.Servers[0].Do(tb, "ACL", "SETUSER", "default", "-psync", "-sync")
	s.Servers[0].Do(tb, "CLIENT", "KILL", "TYPE", "replica")
}

// Failover kills the primary and waits until the replica has taken over.
func (s *Sentinel) Failover(tb testing.TB) {
	tb.Helper()
	s.Servers[0].Kill()
	Eventually(tb, "the replica is the primary", func() bool {
		role, err := s.Servers[1].Try("ROLE") // it drops its connections when it changes
		return err == nil && strings.HasPrefix(role, "master")
	})
}

// StartCluster starts a Cluster of three nodes without replicas and waits until all agree that it works.
func StartCluster(tb testing.TB) []*Redis {
	tb.Helper()
	var nodes []*Redis
	for i := range 3 {
		r := StartRedis(tb, "--cluster-port", anyPort, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
			"--cluster-node-timeout", "1000")
		first, last := 16384*i/3, 16384*(i+1)/3-1
		r.Do(tb, "CLUSTER", "SET-CONFIG-EPOCH", fmt.Sprint(i+1))
		r.Do(tb, "CLUSTER", "ADDSLOTSRANGE", fmt.Sprint(first), fmt.Sprint(last))
		nodes = append(nodes, r)
	}
	for _, r := range nodes[1:] {
		nodes[0].Do(tb, "CLUSTER", "MEET", "127.0.0.1", fmt.Sprint(r.Port()), r.args[1])
	}
	for _, r := range nodes {
		Eventually(tb, "the cluster works", func() bool {
			return strings.Contains(r.Do(tb, "CLUSTER", "INFO"), "cluster_state:ok") &&
				strings.Count(r.Do(tb, "CLUSTER", "NODES"), "connected") == 3
		})
	}
	return nodes
}

// StartClusterReplica starts a replica of one of the nodes of a Cluster, which takes over when that one dies.
func StartClusterReplica(tb testing.TB, nodes []*Redis, of *Redis) *Redis {
	tb.Helper()
	r := StartRedis(tb, "--cluster-port", anyPort, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf",
		"--cluster-node-timeout", "1000", "--repl-diskless-sync-delay", "0")
	nodes[0].Do(tb, "CLUSTER", "MEET", "127.0.0.1", fmt.Sprint(r.Port()), r.args[1])
	id := of.Do(tb, "CLUSTER", "MYID")
	Eventually(tb, "it knows the node", func() bool {
		_, err := r.Try("CLUSTER", "REPLICATE", id)
		return err == nil
	})
	Eventually(tb, "it has caught up", func() bool { return strings.Contains(r.Do(tb, "INFO", "replication"), "master_link_status:up") })
	for _, n := range nodes {
		Eventually(tb, "all know it", func() bool {
			return slices.ContainsFunc(strings.Split(n.Do(tb, "CLUSTER", "NODES"), "\n"), func(line string) bool {
				return strings.Contains(line, r.Addr) && strings.Contains(line, "slave "+id)
			})
		})
	}
	return r
}

// Addrs returns the addresses of servers.
func Addrs(servers []*Redis) []string { return addrs(servers) }

func addrs(servers []*Redis) []string {
	var all []string
	for _, r := range servers {
		all = append(all, r.Addr)
	}
	return all
}
