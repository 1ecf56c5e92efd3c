// Package pghold is a store in a PostgreSQL database. It has three scopes, and each has entry points of its own, because
// they promise different things:
//
//   - In your transaction: Lock, TryLock, LockRow, TryLockRow and Once. The lock lives and dies with the job's own writes.
//     Nothing can come between the two, so this is the strongest kind, and the one for jobs whose double run does damage.
//   - On a session: an advisory lock that lives as long as a connection. No time limit takes it from a holder that is
//     paused; a connection that ends does.
//   - As lease rows: NewLeaseDriver and Open. A row with an expiry, which works behind any pooler and has no limit in number.
//
// All need the tables and functions that Migrate, or `holdlock migrate`, makes in a schema of their own.
//
// # Names
//
// An advisory lock is a number of 64 bits. LockID makes it from a name by a function that never changes, and the name is
// kept beside it, so that operators see names.
package pghold
