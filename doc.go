// Package holdlock keeps a job from running twice at the same time, and says plainly when it cannot.
//
// No lock that can expire makes two runs impossible: a holder that is paused between its last check and its write wakes
// up after its term has passed to someone else. What this package does promise is that the holder is told before that
// happens, as far as its process runs at all; that a resource which checks Lease.Token can refuse the one that was not;
// and that "taken", "lost", "unreachable" and "unknown" are never mistaken for one another.
//
// Open a store (memhold, sqlitehold) to get a Client, declare each lock once with NewLock, and run work with Lock.Do:
//
//	locks, err := sqlitehold.Open("", nil)
//	report, err := locks.NewLock("nightly-report", &holdlock.LockOptions{TTL: 30 * time.Second})
//	err = report.Do(ctx, func(ctx context.Context, lease *holdlock.Lease) error { … })
//
// A lock stops two runs at the same time, and nothing else. What must run once although it is delivered twice is for
// package once, which keeps a record of each job beside its lock.
//
// # Trust
//
// A term is granted by the store for TTL and kept alive by renewals. The holder may believe in it for less:
//
//	trust ends at  time of sending the last confirmed request + TTL − margin,   margin = max(TTL/10, 10 ms)
//
// The time of sending is earlier than the moment at which the store starts to count, so trust ends at least a margin
// before the store can give the key to anyone else, provided the two clocks run at rates that differ by less than the
// margin (10%). It is measured on two clocks, Go's monotonic one and one that also counts the time the machine was
// suspended, and the worse one decides. Trust ends on its own alarm, whatever a renewal call is doing, and is never
// revived: a renewal that succeeds late belongs to a lease that has ended. The source of the rule is Gray and Cheriton,
// "Leases" (SOSP 1989), section 3: the holder's term is shorter than the granted one by the delay of the message and by
// the uncertainty of the clocks.
//
// When trust ends, the context that Do gave to the work is cancelled with a *LostError as its cause. After a pause of the
// whole process a context can look alive for some milliseconds more, until the runtime has run its timers. So right
// before an effect that must not happen twice the work calls Lease.Check, which compares clocks and nothing else.
//
// A Client and everything it returns are safe for concurrent use.
package holdlock
