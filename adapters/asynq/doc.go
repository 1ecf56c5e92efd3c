// Package asynqonce makes tasks of github.com/hibiken/asynq run once, although they are delivered twice.
//
//	cfg := asynq.Config{Concurrency: 10}
//	jobs, err := asynqonce.New(locks, &cfg, &asynqonce.Options{Name: "charge", Key: orderOf})
//	mux := asynq.NewServeMux()
//	mux.Use(jobs.Middleware)
//	err = asynq.NewServer(redis, cfg).Run(mux)
//
// asynq delivers at least once: it hands a task out again when a worker has died or its lease has run out, also while the
// first worker is still at work, and its Unique looks at the enqueue only and forgets a task when it is done. Here each
// task is a job of package once, named by Options.Key.
//
// # What becomes of a task
//
//	the job                                          the task
//	is done, by this delivery or an earlier one      is done
//	runs elsewhere, and may yet die                  comes back later, and uses up no retry
//	failed: the handler's error                      as asynq does with that error
//	is suspended, or came with another payload       is archived, for people to look at
//	the store of the locks cannot be reached         comes back later, and uses up no retry
//	ran, but its lease was lost before the record    is retried; Once.OnLapse says whether the job runs again
//
// So a task is acknowledged only when its job is done. The context of the handler ends when the lease is lost, and is
// asynq's in all else.
//
// A task that comes back waits in asynq's retry set for Options.Again, and then until asynq looks there
// (Config.DelayedTaskCheckInterval, 5 s by default). asynq cannot send a task back whose retries are used up, or that has
// none (MaxRetry(0)): it would archive it, and the job would be lost if its twin died. Such a delivery waits in its worker
// until the twin has ended.
//
// # What is asynq's affair
//
// A worker that was killed keeps its task for a minute or two: asynq waits for its own lease to run out, and 30 s more. That
// counts as a retry. If a task's timeout or deadline passes, asynq retries it while the handler may still be running; the
// next delivery then finds its job running. An archived task is not run again by Client.Settle: run it again with asynq's
// inspector, or enqueue it anew.
package asynqonce
