package audit

// A public is a published module, and the list of the places where it takes locks, made by reading and searching its code
// by hand. The versions are those of testdata/public/go.mod.
type public struct {
	name     string
	patterns []string
	want     []string // package file:line: lock or maybe, kind, name, expiry
	faults   []string // package file:line: fault
}

var publics = []public{
	{
		name:     "redislock: the script that obtains, and a short-cut to itself",
		patterns: []string{"github.com/bsm/redislock"},
		want: []string{
			`github.com/bsm/redislock redislock.go:22: lock redis-lua "KEYS[1]" ARGV[3]`,
			`github.com/bsm/redislock redislock.go:143: lock redislock "key" ttl`,
		},
	},
	{
		name: "redsync: the mutex over an interface of its own, two of its adapters, its examples, and the script that extends",
		patterns: []string{
			"github.com/go-redsync/redsync/v4", "github.com/go-redsync/redsync/v4/redis/goredis/v9", "github.com/go-redsync/redsync/v4/redis/redigo",
			"github.com/go-redsync/redsync/v4/examples/goredis/v9", "github.com/go-redsync/redsync/v4/examples/redigo",
		},
		want: []string{
			`github.com/go-redsync/redsync/v4 mutex.go:227: lock redis-set "m.name" m.expiry`,
			`github.com/go-redsync/redsync/v4 scripts.go:19: maybe redis-lua "KEYS[1]" ARGV[2]`,
			`github.com/go-redsync/redsync/v4/redis/goredis/v9 goredis.go:44: maybe redis-set "name" expiry`,
			`github.com/go-redsync/redsync/v4/redis/redigo redigo.go:52: maybe redis-set "name" int(expiry / time.Millisecond)`,
			`github.com/go-redsync/redsync/v4/examples/goredis/v9 main.go:28: lock redsync "test-redsync" 8s (default)`,
			`github.com/go-redsync/redsync/v4/examples/redigo main.go:33: lock redsync "test-redsync" 8s (default)`,
		},
	},
	{
		name:     "golang-migrate: a session lock in each driver of PostgreSQL",
		patterns: []string{"github.com/golang-migrate/migrate/v4/database/pgx/v5", "github.com/golang-migrate/migrate/v4/database/postgres"},
		want: []string{
			`github.com/golang-migrate/migrate/v4/database/pgx/v5 pgx.go:230: lock pg-advisory "database.GenerateAdvisoryLockId(p.config.DatabaseName, p.co…" end of session`,
			`github.com/golang-migrate/migrate/v4/database/postgres postgres.go:242: lock pg-advisory "database.GenerateAdvisoryLockId(p.config.DatabaseName, p.co…" end of session`,
		},
	},
	{
		name:     "tern: one session lock, whose three releases are deferred with the caller's context",
		patterns: []string{"github.com/jackc/tern/v2/migrate"},
		want:     []string{`github.com/jackc/tern/v2/migrate migrate.go:359: lock pg-advisory "9628173550095224" end of session`},
		faults: []string{
			"github.com/jackc/tern/v2/migrate code.go:111: release-ctx",
			"github.com/jackc/tern/v2/migrate migrate.go:379: release-ctx",
			"github.com/jackc/tern/v2/migrate migrate.go:493: release-ctx",
		},
	},
	{
		name:     "goose: a session lock on a connection that its caller gives it",
		patterns: []string{"github.com/pressly/goose/v3/lock", "github.com/pressly/goose/v3/lock/internal/..."},
		want:     []string{`github.com/pressly/goose/v3/lock postgres.go:105: lock pg-advisory "l.lockID" end of session`},
	},
	{
		name:     "asynq: unique tasks are set by scripts; a paused queue is a key for ever; both may be called something else than locks",
		patterns: []string{"github.com/hibiken/asynq/..."},
		want: []string{
			`github.com/hibiken/asynq/internal/rdb inspect.go:2062: maybe redis-set "base.PausedKey(qname)" never`,
			`github.com/hibiken/asynq/internal/rdb rdb.go:158: maybe redis-lua "KEYS[1]" ARGV[2]`,
			`github.com/hibiken/asynq/internal/rdb rdb.go:583: maybe redis-lua "KEYS[4]" ARGV[5]`,
			`github.com/hibiken/asynq/internal/rdb rdb.go:704: maybe redis-lua "KEYS[1]" ARGV[2]`,
			`github.com/hibiken/asynq/internal/testutil testutil.go:366: maybe redis-set "msg.UniqueKey" 1m0s`,
			`github.com/hibiken/asynq/internal/testutil testutil.go:395: maybe redis-set "msg.UniqueKey" 1m0s`,
			`github.com/hibiken/asynq/internal/testutil testutil.go:565: maybe redis-set "msg.UniqueKey" 1m0s`,
		},
	},
	{
		name:     "go-zero: a lock whose script is a file of its own, and two wrappers of SetNX",
		patterns: []string{"github.com/zeromicro/go-zero/core/stores/redis"},
		want: []string{
			`github.com/zeromicro/go-zero/core/stores/redis redis.go:1537: maybe redis-set "key" never`,
			`github.com/zeromicro/go-zero/core/stores/redis redis.go:1552: maybe redis-set "key" time.Duration(seconds) * time.Second`,
			`github.com/zeromicro/go-zero/core/stores/redis redislock.go:25: lock redis-lua "KEYS[1]" ARGV[2]`,
		},
	},
	{
		name:     "etcd: the lock and election services of its server",
		patterns: []string{"go.etcd.io/etcd/server/v3/etcdserver/api/v3election", "go.etcd.io/etcd/server/v3/etcdserver/api/v3lock"},
		want: []string{
			`go.etcd.io/etcd/server/v3/etcdserver/api/v3election election.go:45: lock etcd "req.Name" set with the session`,
			`go.etcd.io/etcd/server/v3/etcdserver/api/v3election election.go:68: lock etcd "req.Leader.Name" set with the session`,
			`go.etcd.io/etcd/server/v3/etcdserver/api/v3election election.go:80: lock etcd "req.Name" set with the session`,
			`go.etcd.io/etcd/server/v3/etcdserver/api/v3election election.go:103: lock etcd "req.Name" set with the session`,
			`go.etcd.io/etcd/server/v3/etcdserver/api/v3election election.go:118: lock etcd "req.Leader.Name" set with the session`,
			`go.etcd.io/etcd/server/v3/etcdserver/api/v3lock lock.go:45: lock etcd "req.Name" the lease's: clientv3.LeaseID(req.Lease)`,
		},
	},
	{
		name:     "river: its one lock stands in generated code, which is not read by default",
		patterns: []string{"github.com/riverqueue/river/riverdriver/riverpgxv5/..."},
	},
}
