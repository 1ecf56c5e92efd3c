package redishold

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
)

// server looks at the settings of one server.
func (x *examination) server(c redis.Cmdable, node string) {
	x.node = node
	defer func() { x.node = "" }()
	text, err := ask(x, func(ctx context.Context) (string, error) { return c.Info(ctx).Result() })
	if err != nil {
		for _, check := range []string{"version", "role", "replicas", "eviction", "persistence", "uptime"} {
			x.unseen(check, err)
		}
		return
	}
	s := &server{x, c, fields(text)}
	if s.d.cluster == nil && (s.info["redis_mode"] == "cluster" || s.info["cluster_enabled"] == "1") {
		s.say("mode", driver.Refuse, "a node of a Cluster (cluster-enabled), and the client is one for a single server",
			"calls for several locks are refused (CROSSSLOT): leases are lost and waits do not end", "redis+cluster:// or redis.NewClusterClient, also with one node")
	}
	s.version()
	primary := s.role()
	if primary && s.quorum == nil { // a node of a quorum has none, or is refused
		s.replicas()
	}
	s.eviction()
	if s.quorum != nil {
		s.quorumPersistence()
	} else {
		s.persistence()
		s.uptime()
	}
	s.connections()
}

type server struct {
	*examination
	c    redis.Cmdable
	info map[string]string
}

// config reads a setting; ok is false if it may not.
func (s *server) config(name string) (value string, ok bool) {
	m, err := ask(s.examination, func(ctx context.Context) (map[string]string, error) { return s.c.ConfigGet(ctx, name).Result() })
	if err != nil {
		return "", false
	}
	value, ok = m[name]
	return value, ok
}

func (s *server) number(name string) int64 {
	n, _ := strconv.ParseInt(s.info[name], 10, 64)
	return n
}

func (s *server) version() {
	v := s.info["redis_version"]
	major, err := strconv.Atoi(strings.SplitN(v, ".", 2)[0])
	switch {
	case err != nil:
		s.unseen("version", errNoInfo)
	case major < 7 && s.info["server_name"] != "valkey":
		s.say("version", driver.Caution, "Redis "+v, "holdlock is tested with Redis 7 and Valkey", "upgrade the server")
	default:
		s.fine("version", v)
	}
}

func (s *server) role() (primary bool) {
	if s.info["role"] != "slave" {
		s.fine("role", "primary")
		return true
	}
	s.say("role", driver.Refuse, fmt.Sprintf("a replica of %s:%s", s.info["master_host"], s.info["master_port"]),
		"no lock can be taken here", "use the address of the primary, or redis+sentinel://")
	return false
}

// replicas is about what a failover would forget.
func (s *server) replicas() {
	n := s.number("connected_slaves")
	least, known := s.config("min-replicas-to-write")
	switch {
	case n == 0 && s.d.acks > 0:
		s.say("replicas", driver.Refuse, fmt.Sprintf("none are connected, and %d have to confirm each grant", s.d.acks), "no lock can be taken",
			"look at the replicas, or ask for none (redis://… without ?replicas=)")
		return
	case int(n) < s.d.acks:
		s.say("replicas", driver.Refuse, fmt.Sprintf("%d are connected, and %d have to confirm each grant", n, s.d.acks), "no lock can be taken",
			"look at the replicas, or ask for fewer")
		return
	case n == 0 && s.d.traits.Forgets == driver.OnFailover:
		s.say("replicas", driver.Caution, "none are connected, though this store has failover", "when the primary dies there is nobody to take over",
			"look at the replicas")
		return
	case n == 0:
		s.fine("replicas", "none; there is no failover that could forget a lock")
		return
	}
	if lag := s.lag(); lag > 10 {
		s.say("replication", driver.Caution, fmt.Sprintf("a replica is %d s behind", lag), "a failover would forget the locks of that time",
			"look at the replica and the network")
	} else {
		s.fine("replication", fmt.Sprintf("%d replicas, the slowest %d s behind", n, lag))
	}
	switch {
	case s.d.acks > 0:
		s.fine("replicas", fmt.Sprintf("%d have to confirm a grant: a failover is unlikely to forget it", s.d.acks))
	case !known:
		s.say("replicas", driver.Caution, fmt.Sprintf("%d are connected; min-replicas-to-write is not seen", n), failoverHarm, failoverSetting)
	case least == "0":
		s.say("replicas", driver.Caution, fmt.Sprintf("%d are connected, and the primary takes writes without any (min-replicas-to-write 0)", n),
			failoverHarm+"; a primary that is cut off goes on granting locks beside its successor", failoverSetting)
	default:
		s.say("replicas", driver.Caution, fmt.Sprintf("%d are connected, and at least %s have to be (min-replicas-to-write)", n, least), failoverHarm,
			"redis://…?replicas=1 waits for confirmation; work that must not run twice belongs into a database transaction")
	}
}

const (
	failoverHarm    = "replication comes after the answer, so a failover can forget a lock that is held"
	failoverSetting = "CONFIG SET min-replicas-to-write 1, CONFIG SET min-replicas-max-lag 10, and redis://…?replicas=1"
)

// lag is how far the slowest replica is behind, in seconds.
func (s *server) lag() (most int64) {
	for name, value := range s.info {
		if !strings.HasPrefix(name, "slave") {
			continue
		}
		for part := range strings.SplitSeq(value, ",") {
			if text, ok := strings.CutPrefix(part, "lag="); ok {
				n, _ := strconv.ParseInt(text, 10, 64)
				most = max(most, n)
			}
		}
	}
	return most
}

func (s *server) eviction() {
	policy, limit := s.info["maxmemory_policy"], s.number("maxmemory")
	used := s.number("used_memory")
	switch {
	case policy == "":
		s.unseen("eviction", errNoInfo)
	case policy != "noeviction" && limit > 0:
		s.say("eviction", driver.Refuse, fmt.Sprintf("maxmemory-policy %s with maxmemory %d", policy, limit),
			"when memory is short the server drops locks that are held, and nobody is told before the next renewal",
			"CONFIG SET maxmemory-policy noeviction, or a server of its own for locks")
	case policy != "noeviction":
		s.say("eviction", driver.Caution, fmt.Sprintf("maxmemory-policy %s; there is no maxmemory yet", policy),
			"once somebody sets maxmemory the server drops locks that are held", "CONFIG SET maxmemory-policy noeviction")
	case limit > 0 && used > limit/10*9:
		s.say("eviction", driver.Caution, fmt.Sprintf("noeviction, and %d of %d bytes are used", used, limit), "when it is full no lock can be taken",
			"CONFIG SET maxmemory to more")
	default:
		s.fine("eviction", "noeviction")
	}
}

func (s *server) persistence() {
	aof := s.info["aof_enabled"] == "1"
	const lost = "a restart forgets locks that are held; their holders are told at the next renewal, and until then two can hold"
	fsync, known := s.config("appendfsync")
	snapshots, _ := s.config("save")
	switch {
	case s.info["aof_last_write_status"] == "err" || s.info["rdb_last_bgsave_status"] == "err":
		s.say("persistence", driver.Caution, "the last attempt to write to disk failed", "the server may stop to take writes (MISCONF), and no lock can be taken",
			"look at its disk and log")
	case !aof && snapshots != "":
		s.say("persistence", driver.Caution, "snapshots and no AOF", lost, "CONFIG SET appendonly yes, CONFIG SET appendfsync always")
	case !aof:
		s.say("persistence", driver.Caution, "none", lost, "CONFIG SET appendonly yes, CONFIG SET appendfsync always")
	case !known:
		s.say("persistence", driver.Unseen, "AOF is on; appendfsync is not seen", "with everysec a crash of the machine forgets the last second", "appendfsync always")
	case fsync != "always":
		s.say("persistence", driver.Caution, "AOF with appendfsync "+fsync, "a crash of the machine forgets the locks of the last second or more",
			"CONFIG SET appendfsync always")
	default:
		s.fine("persistence", "AOF, synced on every write")
	}
}

func (s *server) uptime() {
	up := time.Duration(s.number("uptime_in_seconds")) * time.Second
	if up < s.ttl && s.info["aof_enabled"] != "1" {
		s.say("uptime", driver.Caution, fmt.Sprintf("the server was started %s ago and keeps nothing", up), "a lock that was held before can be held twice now",
			fmt.Sprintf("wait until %s have passed", s.ttl))
		return
	}
	s.fine("uptime", up.String())
}

func (s *server) connections() {
	open, most := s.number("connected_clients"), s.number("maxclients")
	if most > 0 && open*10 >= most*9 {
		s.say("connections", driver.Caution, fmt.Sprintf("%d of %d are open", open, most), "new ones are refused, and then no lock can be taken or renewed",
			"CONFIG SET maxclients to more, or look at who holds them")
		return
	}
	s.fine("connections", fmt.Sprintf("%d of %d are open", open, most))
}
