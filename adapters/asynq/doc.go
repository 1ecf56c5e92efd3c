// Package asynqonce makes tasks of github.com/hibiken/asynq run once, although they are delivered twice.
//
//	cfg := asynq.Config{Concurrency: 10}
//	jobs, err := asynqonce.New(locks, &cfg, &asynqonce.Options{Name: "charge", Key: orderOf, Redis: redis})
//	defer jobs.Close()
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
//	failed: the handler's error                      as asynq does with that error, also if it tells of another job
//	has no key, or one that no lock can have         is archived
//	is suspended, or came with another payload       is archived, for people to look at
//	the store of the locks cannot be reached         comes back later, and uses up no retry
//	has a record that is of a newer release          comes back later: another worker may be of that release
//	has a record, or lock, that is damaged           is archived; its error names the key
//	ran, but its lease was lost before the record    is retried; Once.OnLapse says whether the job runs again
//
// So a task is acknowledged only when its job is done. The context of the handler ends when the lease is lost, and is
// asynq's in all else.
//
// A task that comes back waits in asynq's retry set for Options.Again, and then until asynq looks there
// (Config.DelayedTaskCheckInterval, 5 s by default).
//
// asynq cannot send a task back whose retries are used up, or that has none (MaxRetry(0)): it would archive it, and the job would be
// lost if its twin died. Such a task is enqueued anew, to come as late, and the delivery is revoked. The copy has another ID (that of the task,
// "~again-" and more), no retries, and the same queue, payload, headers, Timeout, Deadline and Retention; only Unique is not kept, which asynq
// does not tell. So no worker waits, and the handler has all of its Timeout whenever it begins.
//
// # What is asynq's affair
//
// A worker that was killed keeps its task for a minute or two: asynq waits for its own lease to run out, and 30 s more. That
// counts as a retry; a task that has none left is archived then, so give a retry to what must survive the death of its worker.
// If a task's timeout or deadline passes, asynq retries it while the handler may still be running; the next delivery then finds its
// job running. A Deadline is for all deliveries together: asynq ends with it what is not done by then, also if its job ran elsewhere all
// the time. An archived task is not run again by Client.Settle: run it again with asynq's inspector, or enqueue it anew.
package asynqonce
