// Package once runs a job once although it is delivered twice.
//
// Queues deliver at least once, and schedules fire on every machine. A lock alone stops only the overlap: a delivery that
// comes after the first run would run again. So the store keeps a record of each job beside its lock, under the same key,
// and both change in one step:
//
//	outcome, err := once.Do(ctx, charges.For(order.ID), &once.Options{Keep: 7 * 24 * time.Hour},
//		func(ctx context.Context, run *once.Run) ([]byte, error) {
//			return pay(ctx, run.Key, order)          // run.Key: an idempotency key that stays the same over all runs
//		})
//	// err is nil only if the job is done: acknowledge the message then, and only then
//
// # What is written when
//
//	delivery arrives    one request     is there a record that answers? else: lock the key, and note that a run has begun
//	the work            none but        renewals, as of any lease
//	the work returned   one request     note how it ended, and give the key back
//
// A duplicate that is skipped costs the first request, a run both. The record is written by the holder of the lock only:
// whoever was paused past its term finds its record refused.
//
// # What a crash leaves
//
//	killed before the first request is answered     nothing, or a run that has begun and lapses
//	killed while it works, before the effect        a run that has begun; when its term is over it has lapsed
//	killed after the effect, before its record      the same: nobody can tell the two apart
//	killed after the record                         the job is done
//
// So a run that has lapsed may or may not have done its work. That cannot be avoided where the effect is outside of the store
// that keeps the record; what can be chosen is what follows, by [Options.OnLapse]:
//
//   - Rerun: the next delivery runs the job again: at least once. Each such run is told, by the event Rerun, with the count
//     in Run. Hand Run.Key to the resource so that it can recognise the second request.
//   - Hold: the job is suspended until an operator has looked and settles it: at most once. This is for what must not happen
//     twice, and the store must keep records durably.
//
// A run whose function returns an error is no lapse: the function says that it may be run again. It leaves no record of a
// result, counts as a run, and runs again when it is next delivered, unless OnError is Hold or MaxRuns is reached; then it is
// suspended. Return an error only if that is meant: where it is not known whether the effect took place, a timeout for
// instance, OnError: Hold leaves the decision to an operator.
//
// # Duplicates
//
// A duplicate that comes while its twin runs must not be acknowledged: the twin may yet die. It is told so by an error
// ([holdlock.ErrHeld]), unless OnRunning says otherwise, and its queue delivers it again later. One that comes afterwards is
// AlreadyDone, with the stored result. A key that comes with another [Options.Input] than before is an error, as two
// different jobs must not pass for one.
//
// # What is not promised
//
// That work runs exactly once: see above. That a job is remembered for longer than Keep. That the records outlive what the
// store's Traits.Records says. That a holder which is paused does not act when it wakes: under Hold nobody runs beside it,
// under Rerun its successor may; see Lease.Check and package fence.
package once
