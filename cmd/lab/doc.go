// Package lab shows where each way of keeping a job from running twice falls short, on real servers and real processes.
//
// An experiment is one mechanism under one fault. It starts private servers and workers, which are processes of their own
// (package worker), lets one fault happen, and counts at the resource that the workers write to (package resource), whose log a
// separate verifier counts anew (package verifier).
//
// # Schedules
//
// Nothing is left to luck. Each experiment has one to three cases, and each case is a schedule: who asks for the lock, begins,
// checks, writes, ends and releases, in which order, and where the fault comes in. A step begins when the one before was answered. A
// worker is stopped with SIGSTOP, and the schedule goes on when the kernel shows all of its threads as stopped. "Past its expiry" is
// when the store has granted the lock to somebody else, not when some time has passed. So the counts are the same on a
// fast machine and on a busy one; only the times differ.
//
// One thing can still go wrong on a machine that is far too slow: a worker that is to hold its lock loses it because it was
// not run for long enough. Its own check finds that, and then the case is void: it is repeated with twice the expiry.
// After a few repetitions the experiment is told as not run.
//
// # What is compared
//
// The locks of holdlock are used as its documentation says; the naive lock is written for the lab, and so is the absence of
// one. Where a lock tells a worker that it is lost, there are two cases: one whose worker asks before it writes, and one whose worker
// had already asked. The first shows what the lock does. The second shows what no lock can do.
package lab
