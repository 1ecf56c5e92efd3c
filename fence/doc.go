// Package fence is the resource's side of a lock: it refuses a holder that has been overtaken.
//
// No lock stops a holder that is paused between its last check and its write; it wakes up after its lease has passed on and
// writes all the same. The resource can refuse it. It keeps, beside its data, the largest token that it has seen for a lock
// (the mark), and in one atomic step with each write
//
//	refuses a token below the mark, or moves the mark up to the token and writes.
//
// Equal tokens pass: one holder writes many times. Tokens rise from lease to lease, so whoever has been overtaken has the
// smaller one.
//
// # Mark before you read
//
// Refusing at the write is not enough for work that reads, computes and writes. Old holder A has token 33, new holder B has
// 34. B reads; A's late write arrives and passes, because the largest token seen is still 33; B writes what it computed
// without A's change. Each write was in order, and A's is lost. So B has to show its token before it reads: Begin marks, then
// read. In one database transaction Check as the first statement does both.
//
// # The fences
//
//	SQL                 a table of marks in the same database as the data, through database/sql (PostgreSQL, SQLite)
//	pghold/pgfence      the same through pgx
//	redishold/redisfence a mark beside each key, checked by the script that writes
//	fencehttp           headers for calls of a service, and the service's middleware
//	Memory              for data in the memory of one process, and for tests
//
// # What a fence does not do
//
// It protects what is written through it, and nothing else: a write elsewhere, a mail, a call of an API that does not look at
// the token go out all the same. It orders holders and does not stop two from being at work; the overtaken one is told when it
// writes. It is worth as much as the tokens: driver.Traits.Fencing says whether they still rise after the store of the locks
// has lost its data. It is not the same as running once: a holder that has finished leaves a mark that lets its successor
// do the same work again.
//
// The idea is the sequencer of Burrows, The Chubby lock service (OSDI 2006), section 2.4; that a resource must be marked before
// it is used is from Junqueira, Note on fencing and distributed locks (2016).
package fence
