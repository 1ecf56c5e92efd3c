package asynqonce_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/hibiken/asynq"

	"github.com/holdlock/holdlock"
	asynqonce "github.com/holdlock/holdlock/adapters/asynq"
	"github.com/holdlock/holdlock/once"
)

// serve runs each task of type "charge" once, although asynq delivers some twice.
func serve(locks *holdlock.Client, redis asynq.RedisConnOpt) error {
	cfg := asynq.Config{Concurrency: 10}
	jobs, err := asynqonce.New(locks, &cfg, &asynqonce.Options{
		Name:  "charge",
		Key:   asynqonce.PayloadKey, // or the number of the order that is in it
		Redis: redis,
		Once:  once.Options{Keep: 30 * 24 * time.Hour, MaxRuns: 10},
		Lock:  holdlock.LockOptions{Purpose: "calls the payments API", DoubleRun: holdlock.Costly},
	})
	if err != nil {
		return err
	}
	defer jobs.Close()
	mux := asynq.NewServeMux()
	mux.Use(jobs.Middleware)
	mux.HandleFunc("charge", func(ctx context.Context, t *asynq.Task) error { // ctx ends when the lease is lost
		fmt.Println("charging, with an idempotency key of", len(once.KeyFrom(ctx)), "digits")
		return nil
	})
	return asynq.NewServer(redis, cfg).Run(mux)
}

func Example() {
	var locks *holdlock.Client // on a store that keeps records of jobs, such as redishold.Open makes
	if err := serve(locks, asynq.RedisClientOpt{Addr: "localhost:6379"}); err != nil {
		log.Println(err)
	}
}
