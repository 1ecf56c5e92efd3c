// Package riverlock makes jobs of github.com/riverqueue/river run once although they are inserted, or worked, more than once. It is
// two worker middlewares; which one depends on where the effect of the job is.
//
// # The effect is in the same database
//
// InTx gives the job a transaction, in which stand its writes, the record that it is done (pghold.Once) and the completion of the
// River job. They happen together or not at all, so the effect is there exactly once, whatever is killed when:
//
//	settleOnce, err := riverlock.InTx(pool, settle, byDay, nil)
//	river.AddWorker(workers, &SettleWorker{once: settleOnce})
//
//	func (w *SettleWorker) Middleware(*rivertype.JobRow) []rivertype.WorkerMiddleware {
//		return []rivertype.WorkerMiddleware{w.once}
//	}
//	func (w *SettleWorker) Work(ctx context.Context, job *river.Job[SettleArgs]) error {
//		_, err := riverlock.Tx(ctx).Exec(ctx, "INSERT INTO ledger …")
//		return err
//	}
//
// # The effect is elsewhere
//
// Once holds a lease of the lock, on any store that keeps records of jobs, and notes in that store what was begun and done: package
// once, with its policies. A worker that is killed between its effect and its record leaves a run that lapses; the next one is
// told, or the job waits for an operator (once.Options.OnLapse). The context of the job ends when the lease is lost.
//
// # What River is told
//
//	the job is done, by this delivery or an earlier one       completed
//	a twin is at work, and may yet die                        snoozed for Again: that uses up no attempt
//	it waits for an operator                                  snoozed for Suspended, until it is settled
//	the key came with another input                           cancelled: a bug
//	its record or lock is damaged                             cancelled; the error names the key. Retry it when that is mended
//	its record is of a newer release                          snoozed for Suspended: another worker may be of that release
//	the work failed, or snoozed or cancelled itself           as without the middleware, also if its error tells of another job
//	it has no key, or one that no lock can have               an error: River's retry policy
//	the store does not answer                                 an error: River's retry policy
//
// So a duplicate that comes while its twin runs is never taken for done, and the job runs if the twin dies. River itself delivers the
// job of a killed worker again after RescueStuckJobsAfter, an hour unless set.
//
// # What is not promised
//
// With Once: that the effect is there once if a worker dies between it and the record; hand once.KeyFrom(ctx) to the resource. With InTx:
// anything about effects that are not writes of the transaction. Unique jobs of River are another thing: they keep a second
// job out of the queue while the first is in certain states, and do not keep one from running twice.
package riverlock
