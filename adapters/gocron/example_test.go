package gocronlock_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/google/uuid"

	"github.com/holdlock/holdlock"
	gocronlock "github.com/holdlock/holdlock/adapters/gocron"
	"github.com/holdlock/holdlock/memhold"
)

// One of the replicas runs a tick. Here the replicas are two schedulers.
func ExampleNew() {
	locks, _ := memhold.Open(nil) // of all replicas: a client on Redis, for example
	defer locks.Shutdown(context.Background())
	locker, err := gocronlock.New(locks, &gocronlock.Options{Lock: holdlock.LockOptions{MinHold: time.Minute}})
	if err != nil {
		log.Fatal(err)
	}
	over := make(chan bool, 2)
	report := func() { fmt.Println("it runs") }
	for range 2 {
		s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
		if err != nil {
			log.Fatal(err)
		}
		defer func() { _ = s.Shutdown() }()
		job, err := s.NewJob(gocron.CronJob("0 3 * * *", false), gocron.NewTask(report), gocron.WithName("report"), gocron.WithEventListeners(
			gocron.AfterJobRuns(func(uuid.UUID, string) { over <- true }),
			gocron.AfterLockError(func(uuid.UUID, string, error) { over <- false }),
		))
		if err != nil {
			log.Fatal(err)
		}
		s.Start()
		if err := job.RunNow(); err != nil { // instead of three o'clock
			log.Fatal(err)
		}
		fmt.Println("here:", <-over)
	}
	// Output:
	// it runs
	// here: true
	// here: false
}
