// Package memhold is a store in the memory of one process.
//
// It excludes the goroutines of that process from one another and nobody else: use it for tests, for examples, and to
// read what a store has to do. The whole meaning of the contract in package driver stands in store.go, as steps on a map
// that run one at a time under a mutex.
//
// Time is the monotonic clock: steps of the wall clock do not end a term early or late. There is no goroutine and no
// timer, so that it runs in virtual time inside testing/synctest.
//
// Not promised: anything after the end of the process. Terms die with it, which does no harm because their holders die
// too; tokens go on rising in the next process unless the wall clock has stepped back.
package memhold
