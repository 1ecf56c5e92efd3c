// Package watermillonce makes handlers of github.com/ThreeDotsLabs/watermill run once although messages are delivered twice. The first example
// below is all that it takes.
//
// A message is acknowledged when its job is done, by this delivery or an earlier one, and not before. What happens otherwise:
//
//	a twin is at work                  it may yet die: the message comes back after Delay, as often as needed
//	the store failed, the record is    the same
//	of a newer release, or the lease
//	was lost before the record
//	the handler failed                 its error is returned: Retry, PoisonQueue, or the broker's redelivery; also if it tells of another
//	                                   job. Only one that says that a lock is held, or lost, or that a store failed, makes the message
//	                                   come back later
//	the job is suspended, its record   after Delay an error for which PutAside is true
//	or lock is damaged, its key was
//	used with another input, it has
//	no key that a lock can have, or
//	what looks at it panics, …
//	anything else                      after Delay an error, so that no message spins
//
// Middleware refuses at once what it can know: options that are not allowed, a Harmful lock that nothing protects, a store without records.
//
// # How a message comes back
//
// With Later the message is published there and then acknowledged: a topic whose messages reach the handler's own topic after a
// while. The broker counts that as a new message, so no limit of redeliveries is used up, and no consumer is blocked meanwhile. Nobody sees
// the error of a message that is acknowledged, so Redelivery.Logger is told now and then why, unless it is a twin at work.
// Package amqplater is that for RabbitMQ. A running twin costs its broker two messages a second. Without Later the handler waits for
// Delay and returns the error, so that the broker delivers again: a consumer is blocked for that long, and a broker that counts
// redeliveries counts these.
//
// # Middleware around it
//
// The first that is added is the outermost: PoisonQueueWithFilter(…, PutAside), then this, then Retry, whose attempts are then one run
// under one lease. A Retry outside of it would use its attempts up on running twins, if there is no Later. Do not use Timeout outside: it
// acknowledges nothing either, but it cuts the run short before its record. InstantAck gives up all that this is for.
//
// # Messages that the handler returns
//
// The router publishes them when the job is recorded as done already, so a process that dies in between would lose them. So they
// are kept with the record, and each duplicate returns them again, with the same UUIDs: at least once, and what consumes them can
// tell. A record holds 64 KiB, and payloads are in it as base64, with UUIDs and metadata: it has room for somewhat less than 48 KiB of them. With
// more than that the job is done and its messages are published, but a duplicate that comes later
// is an error (once.ErrNoResult) and not acknowledged, as nobody knows whether they were. Publish such messages in the handler.
//
// # What is not promised
//
// What package once does not promise: a worker that is killed after its effect and before its record runs it again, and its successor
// says so. Package intx is for effects that are in PostgreSQL, where nothing can come between the two.
package watermillonce
