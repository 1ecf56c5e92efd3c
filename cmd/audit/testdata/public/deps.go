// Package public depends on libraries and programs that take locks, so that the go command lists their packages.
package public

import (
	_ "github.com/bsm/redislock"
	_ "github.com/go-redsync/redsync/v4"
	_ "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	_ "github.com/go-redsync/redsync/v4/redis/redigo"
	_ "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	_ "github.com/golang-migrate/migrate/v4/database/postgres"
	_ "github.com/hibiken/asynq"
	_ "github.com/jackc/tern/v2/migrate"
	_ "github.com/pressly/goose/v3/lock"
	_ "github.com/riverqueue/river/riverdriver/riverpgxv5"
	_ "github.com/stvp/tempredis" // the examples of redsync start a server with it
	_ "github.com/zeromicro/go-zero/core/stores/redis"
	_ "go.etcd.io/etcd/server/v3/etcdserver/api/v3election"
	_ "go.etcd.io/etcd/server/v3/etcdserver/api/v3lock"
)
