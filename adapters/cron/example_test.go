package cronlock_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/robfig/cron/v3"

	"github.com/holdlock/holdlock"
	cronlock "github.com/holdlock/holdlock/adapters/cron"
	"github.com/holdlock/holdlock/memhold"
)

// One of the replicas runs a tick. Here the tick is two calls, as of two replicas whose clocks differ a little.
func ExampleJob() {
	locks, _ := memhold.Open(nil) // of all replicas: a client on Redis, for example
	defer locks.Shutdown(context.Background())
	report, err := locks.NewLock("report", &holdlock.LockOptions{MinHold: time.Minute, Purpose: "mails the report"})
	if err != nil {
		log.Fatal(err)
	}
	job, err := cronlock.Job(report, func(context.Context, *holdlock.Lease) error {
		fmt.Println("it runs")
		return nil
	}, &cronlock.Options{Error: func(err error) { fmt.Println("it runs elsewhere:", errors.Is(err, holdlock.ErrHeld)) }})
	if err != nil {
		log.Fatal(err)
	}
	c := cron.New()
	if _, err := c.AddJob("0 3 * * *", job); err != nil {
		log.Fatal(err)
	}
	for range 2 {
		job.Run() // as c does at three o'clock, when it is started
	}
	// Output:
	// it runs
	// it runs elsewhere: true
}

// Jobs as cron knows them, which cannot be told that their lease is lost.
func ExampleWrapper() {
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(context.Background())
	report, err := locks.NewLock("report", &holdlock.LockOptions{MinHold: time.Minute})
	if err != nil {
		log.Fatal(err)
	}
	alone, err := cronlock.Wrapper(report, nil)
	if err != nil {
		log.Fatal(err)
	}
	logger := cron.DefaultLogger
	c := cron.New(cron.WithChain(cron.Recover(logger), alone))
	if _, err := c.AddFunc("0 3 * * *", func() { fmt.Println("it runs") }); err != nil {
		log.Fatal(err)
	}
	for range 2 {
		c.Entries()[0].WrappedJob.Run() // as c does at three o'clock, when it is started
	}
	// Output: it runs
}
