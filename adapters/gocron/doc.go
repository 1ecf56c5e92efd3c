// Package gocronlock makes jobs of github.com/go-co-op/gocron run on one of several replicas.
//
// MinHold has to be set, longer than the clocks of the replicas can differ and a replica can be late, and shorter than the time between two ticks:
// with a longer one, ticks are dropped. A Locker has one for all of its jobs, and gocron does not tell it how often they run; so jobs that run more often than that need
// one of their own (gocron.WithDistributedJobLocker). A tick that is dropped for this is told to listeners of gocron.AfterLockError, as
// ErrTooOften. Wait must not be set: each replica that waits would run the tick again.
//
// gocron cannot stop a job whose lease is lost: its jobs are not told of the lock. So a run that outlives its lease, because
// the process was paused or the store could not be reached, goes on beside the next one. Where that does damage, let the job
// take the lock itself (holdlock.Lock.Do) and use the context that it gets; give such jobs no Locker.
//
//	locker, err := gocronlock.New(locks, &gocronlock.Options{Lock: holdlock.LockOptions{MinHold: 5 * time.Second}})
//	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//	_, err = s.NewJob(gocron.CronJob("0 3 * * *", false), gocron.NewTask(report), gocron.WithName("report"))
//
// Every replica tries to run every tick. The first one gets the lock; the others skip. As clocks differ, another replica may
// try when the first one's job is already over; so the lock stays taken for MinHold. So may one that is late: a replica that was stopped or
// suspended over a tick fires it when it wakes, and runs it again if that is later than MinHold after the run elsewhere. Where replicas stand
// still for so long, make each tick a job of its own, with its scheduled time as the key: package once, docs/once.md. Schedule by cron expressions, or by durations with a common start
// time: replicas that count from when they were started have no ticks in common.
//
// A tick is skipped, and listeners of gocron.AfterLockError are told, also if the store does not answer, or if what stands at the lock's key is
// damaged: then every tick is, until somebody has looked at the key, which the error names.
//
// A tick whose replica dies is not run again, since another replica cannot know how far it came: the next tick runs, at the
// latest when the lock's TTL is over. What must not be missed is not a matter of cron: put it into a queue, and see package once.
//
// The lock's key is the name of the job, so name each (gocron.WithName): by default gocron names a job after its function,
// and two jobs of one function would exclude each other.
package gocronlock
