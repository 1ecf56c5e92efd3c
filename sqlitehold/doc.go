// Package sqlitehold is a store in one SQLite file: many processes of one machine, no server.
//
// It excludes every process of the machine that opens the same file with the same namespace, in containers too. It does
// not reach other machines: a file on a network file system is refused, because its locks cannot be relied on there.
//
// # What it survives
//
// A process that is killed leaves its terms, which lapse. A reboot frees everything, because every holder has died with
// it; where the boot has no name that all processes know, as in containers of systemd-nspawn and LXC, some terms may stand
// for their TTL after it (see someBoot in env.go). Time is the clock that counts since boot, suspend included, so steps of the wall clock end no term early or late;
// outside Linux it is the wall clock. Tokens rise over all of that as long as the file survives; with Options.Durable a
// token is on disk before anyone sees it.
//
// Every step is one statement and one transaction of some microseconds. A process that is stopped in the middle of one
// (SIGSTOP, a debugger, a freezer) keeps the file locked: all others then get an error that says so once their context
// ends, never the answer that a key is held. A file that is removed or replaced while it is in use is noticed and reported,
// because processes that opened it before and after would not exclude each other.
//
// # What it leaves
//
// Beside the file stand its write-ahead log and its index, NAME-wal and NAME-shm; the three belong together. The log is
// kept between runs, at 2 to 8 MB; it grows beyond that only while a process is stopped in the middle of reading or of
// copying the log back. A key's token is kept for a day after its last use. The layout is in schema.go, and
// the statements are in statements.go.
package sqlitehold
