package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/redis/go-redis/v9"

	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/memhold"
	"github.com/holdlock/holdlock/pghold"
	"github.com/holdlock/holdlock/redishold"
	"github.com/holdlock/holdlock/sqlitehold"
)

// A store is one row of the table: a store, or one way to set it up, as a user would call it.
type store struct {
	name   string
	traits driver.Traits
}

// open opens every store, which is how its traits are learned. A new store is added here.
func open() (stores []store, err error) {
	dir, err := os.MkdirTemp("", "holdlock-promises")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	for _, s := range []struct {
		name string
		open func() (driver.Driver, error)
	}{
		{"`memhold`", func() (driver.Driver, error) { return memhold.NewDriver(nil), nil }},
		{"`sqlitehold`", func() (driver.Driver, error) { return sqlitehold.NewDriver(filepath.Join(dir, "a.db"), nil) }},
		{"`sqlitehold`, `Durable`", func() (driver.Driver, error) {
			return sqlitehold.NewDriver(filepath.Join(dir, "b.db"), &sqlitehold.Options{Durable: true})
		}},
		{"`redishold`, one server", redisStore(redis.NewClient(&redis.Options{}), nil)},
		{"`redishold`, `PlainKeys`", redisStore(redis.NewClient(&redis.Options{}), &redishold.Options{PlainKeys: true})},
		{"`redishold`, Sentinel", redisStore(redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m"}), nil)},
		{"`redishold`, Cluster", redisStore(redis.NewClusterClient(&redis.ClusterOptions{}), nil)},
		{"`redishold`, a quorum of servers", quorumStore},
	} {
		drv, err := s.open()
		if err != nil {
			return nil, err
		}
		stores = append(stores, store{s.name, drv.Traits()})
		if err := drv.Close(); err != nil {
			return nil, err
		}
	}
	tx, err := pghold.OpenTransactions(nil)
	if err != nil {
		return nil, err
	}
	stores = append(stores, store{"`pghold`, in your transaction", tx.Traits()})
	if err := tx.Shutdown(context.Background()); err != nil {
		return nil, err
	}
	// These need a server, which documents are written without. A test of the package holds the drivers to it.
	return append(
		stores,
		store{"`pghold`, lease rows", pghold.LeaseTraits(true)},
		store{"`pghold`, sessions", pghold.SessionTraits(true, pghold.Block)},
		store{"`pghold`, sessions, `Expire`", pghold.SessionTraits(true, pghold.Expire)},
	), nil
}

func quorumStore() (driver.Driver, error) {
	var nodes []redis.UniversalClient
	for _, addr := range []string{"a:6379", "b:6379", "c:6379"} {
		nodes = append(nodes, redis.NewClient(&redis.Options{Addr: addr}))
	}
	return redishold.NewQuorumDriver(nodes, nil)
}

// redisStore needs no server: the traits follow from the kind of client.
func redisStore(c redis.UniversalClient, opts *redishold.Options) func() (driver.Driver, error) {
	return func() (driver.Driver, error) { return redishold.NewDriver(c, opts) }
}
