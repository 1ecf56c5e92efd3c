// Package cronlock makes jobs of github.com/robfig/cron run on one of several replicas.
//
//	report, err := locks.NewLock("report", &holdlock.LockOptions{MinHold: 5 * time.Second})
//	job, err := cronlock.Job(report, func(ctx context.Context, lease *holdlock.Lease) error { … }, nil)
//	c := cron.New()
//	_, err = c.AddJob("0 3 * * *", job)
//
// Job is for work that heeds a context: it ends when the lease is lost. Wrapper is for jobs as cron knows them, which cannot be
// told: one that outlives its lease, because the process was paused or the store could not be reached, goes on beside the next.
//
// Two settings of the lock decide whether each tick runs once. MinHold has to be set, longer than the clocks of the replicas can differ
// and a replica can be late, and shorter than the time between two ticks: with a longer one, ticks are dropped. Wait must not be set: each replica that waits would
// run the tick again when the one before it is done. Job and Wrapper refuse a lock that is declared otherwise.
//
// Every replica tries to run every tick. The first one gets the lock; the others skip. As clocks differ, another replica may
// try when the first one's job is already over: that is what MinHold is for. So may one that is late: a replica that was stopped or suspended
// over a tick fires it when it wakes, and runs it again if that is later than MinHold after the run elsewhere. Where replicas stand still for so
// long, make each tick a job of its own, with its scheduled time as the key: package once, docs/once.md. Schedules of the kind "@every 1h" count from when each replica was started and
// have no ticks in common: use cron expressions.
//
// A tick is skipped, and Options.Error told, also if the store does not answer, or if what stands at the lock's key is damaged: then every
// tick is, until somebody has looked at the key, which the error names.
//
// A tick whose replica dies is not run again, since another replica cannot know how far it came: the next tick runs, at the
// latest when the lock's TTL is over. What must not be missed is not a matter of cron: put it into a queue, and see package once.
package cronlock
