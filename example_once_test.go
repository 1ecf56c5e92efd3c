package holdlock_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/memhold"
)

// Package once does this for you.
func ExampleLock_Claim() {
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(context.Background())
	charges, _ := locks.NewLock("charge", nil)
	ctx := context.Background()

	claim := driver.Claim{OnLapse: driver.Hold, Keep: 24 * time.Hour}
	run, err := charges.For("17").Claim(ctx, claim, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	err = run.Finish(ctx, driver.Record{State: driver.JobDone, Result: []byte("receipt 17"), Keep: 24 * time.Hour})
	fmt.Println("recorded:", err == nil)

	_, err = charges.For("17").Claim(ctx, claim, 0)
	var about *holdlock.JobError
	if errors.As(err, &about) && errors.Is(err, driver.ErrDone) {
		fmt.Printf("the duplicate is skipped: %s\n", about.Job.Result)
	}
	// Output:
	// recorded: true
	// the duplicate is skipped: receipt 17
}

func ExampleLease_Finish() {
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(context.Background())
	imports, _ := locks.NewLock("import", nil)
	ctx := context.Background()

	for range 2 {
		run, err := imports.Claim(ctx, driver.Claim{Keep: time.Hour}, 0)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("run %d, last error %q\n", run.Job().Runs, run.Job().Error)
		_ = run.Finish(ctx, driver.Record{State: driver.JobOpen, Error: "the file is not there yet", Keep: time.Hour})
	}
	// Output:
	// run 1, last error ""
	// run 2, last error "the file is not there yet"
}

func ExampleLease_Job() {
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(context.Background())
	imports, _ := locks.NewLock("import", nil)
	ctx := context.Background()

	plain, _ := imports.TryAcquire(ctx)
	fmt.Println("a plain lease is a run of a job:", plain.Job() != nil)
	_ = plain.Release(ctx)

	run, _ := imports.Claim(ctx, driver.Claim{Keep: time.Hour}, 0)
	fmt.Println("runs:", run.Job().Runs, "lapses:", run.Job().Lapses)
	_ = run.Finish(ctx, driver.Record{State: driver.JobDone, Keep: time.Hour})
	// Output:
	// a plain lease is a run of a job: false
	// runs: 1 lapses: 0
}

// suspended leaves a job whose worker gave its lease back without a word.
func suspended(locks *holdlock.Client) {
	ctx, hold := context.Background(), driver.Claim{OnLapse: driver.Hold, Keep: time.Hour}
	payroll, _ := locks.NewLock("payroll", nil)
	run, _ := payroll.For("2026-11").Claim(ctx, hold, 0)
	_ = run.Release(ctx)
	_, err := payroll.For("2026-11").Claim(ctx, hold, 0)
	fmt.Println("suspended:", errors.Is(err, driver.ErrSuspended))
}

func ExampleClient_Jobs() {
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(context.Background())
	suspended(locks)
	for info, err := range locks.Jobs(context.Background(), "payroll", true) {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%s/%s is %v, because %v\n", info.Name, info.Key, info.Job.State, info.Job.Why)
	}
	// Output:
	// suspended: true
	// payroll/2026-11 is suspended, because a run never said whether it had finished
}

func ExampleClient_Job() {
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(context.Background())
	suspended(locks)
	info, known, err := locks.Job(context.Background(), "payroll", "2026-11")
	fmt.Println(info.Job.State, known, err)
	_, known, err = locks.Job(context.Background(), "payroll", "2026-12")
	fmt.Println(known, err)
	// Output:
	// suspended: true
	// suspended true <nil>
	// false <nil>
}

func ExampleClient_Settle() {
	locks, _ := memhold.Open(nil)
	defer locks.Shutdown(context.Background())
	suspended(locks)
	ctx := context.Background()
	info, _, _ := locks.Job(ctx, "payroll", "2026-11")
	err := locks.Settle(ctx, "payroll", "2026-11", info.Job.Token, holdlock.SettleOptions{
		By: "ann: the bank has the file", Done: true, Keep: 365 * 24 * time.Hour,
	})
	fmt.Println("settled:", err == nil)
	info, _, _ = locks.Job(ctx, "payroll", "2026-11")
	fmt.Println(info.Job.State, "by", info.Job.Settled)
	// Output:
	// suspended: true
	// settled: true
	// done by ann: the bank has the file
}
