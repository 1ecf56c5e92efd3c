// Package ledger counts what locks do, and keeps the counts in the store of the locks: one record per lock and day, which all
// programs add to, and one that says what the lock is declared as. Package review judges them.
//
//	locks, err := redishold.Open(rdb, &redishold.Options{
//		Client: holdlock.ClientOptions{Recorder: ledger.New(nil)},
//	})
//
// Counting costs a mutex and a few additions, no allocation and no request. The sums go to the store every few seconds and when
// the client shuts down, one request a day's records; see Recorder for what can be lost or counted twice.
//
// Holds and waits are histograms of github.com/HdrHistogram/hdrhistogram-go: it is maintained, has no dependencies, merges
// without loss, and records without allocation. One significant digit is enough for every threshold of a review, and keeps a
// record under 200 bytes.
package ledger
