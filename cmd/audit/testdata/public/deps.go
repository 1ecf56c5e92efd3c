// Package public depends on programs and libraries that take locks, so that the go command lists their packages.
package public

import (
	_ "github.com/bsm/redislock"
	_ "github.com/dapr/components-contrib/lock/redis"
	_ "github.com/go-redsync/redsync/v4"
	_ "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	_ "github.com/go-redsync/redsync/v4/redis/redigo"
	_ "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	_ "github.com/golang-migrate/migrate/v4/database/postgres"
	_ "github.com/hibiken/asynq"
	_ "github.com/jackc/tern/v2/migrate"
	_ "github.com/livekit/livekit-server/pkg/service"
	_ "github.com/pressly/goose/v3/lock"
	_ "github.com/zeromicro/go-zero/core/stores/redis"
	_ "go.etcd.io/etcd/etcdctl/v3/ctlv3"
	_ "go.etcd.io/etcd/server/v3/etcdserver/api/v3election"
	_ "go.etcd.io/etcd/server/v3/etcdserver/api/v3lock"
)
