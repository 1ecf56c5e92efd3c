//go:build unix

package redishold

import (
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock/internal/testenv"
)

// When a node of a Cluster dies its replica takes over within seconds, and so do the locks: go-redis by itself asks where the slots are once a
// minute.
func TestATakeoverOfAClusterIsFound(t *testing.T) {
	t.Parallel()
	nodes := testenv.StartCluster(t)
	replica := testenv.StartClusterReplica(t, nodes, nodes[0])
	d := onCluster(t, nodes, nil)
	key := keysOn(t, d, nodes[0], 1)[0]
	grant(t, d, request(key, time.Hour))
	testenv.Eventually(t, "the replica has it", func() bool { return strings.Contains(replica.Do(t, "KEYS", "*"), key) })
	nodes[0].Kill()
	testenv.Eventually(t, "it is found at the replica", func() bool { // 30 s
		_, held, err := d.Inspect(t.Context(), key)
		return held && err == nil
	})
}
