// Package cronlock makes jobs of github.com/robfig/cron run on one of several replicas.
//
//	c := cron.New()
//	c.AddJob("0 3 * * *", cronlock.Job(report, func(ctx context.Context, lease *holdlock.Lease) error { … }, nil))
//
// Job is for work that heeds a context: it ends when the lease is lost. Wrapper is for jobs as cron knows them, which cannot be
// told: one that outlives its lease, because the process was paused or the store could not be reached, goes on beside the next.
//
// Every replica tries to run every tick. The first one gets the lock; the others skip. As clocks differ, another replica may
// try when the first one's job is already over; so declare the lock with a MinHold that is longer than the clocks can differ
// and shorter than the time between two ticks. Schedules of the kind "@every 1h" count from when each replica was started and
// have no ticks in common: use cron expressions.
//
// A tick whose replica dies is not run again, since another replica cannot know how far it came: the next tick runs, at the
// latest when the lock's TTL is over. What must not be missed is not a matter of cron: put it into a queue, and see package once.
package cronlock
