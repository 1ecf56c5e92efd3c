// Package holdtest is for tests of programs that use holdlock. NewClient gives a client on a store in memory that is shut
// down when the test ends, and a test that leaves a key held fails with its name. The client's further methods make
// happen what the program has to cope with:
//
//	func TestReportStopsWhenTheLockIsLost(t *testing.T) {
//		locks := holdtest.NewClient(t, nil)
//		done := make(chan error)
//		go func() { done <- WriteReport(t.Context(), locks.Client) }() // the code under test
//		locks.Lose("nightly-report", "", holdlock.LossUnreachable)     // as soon as it holds the lock
//		if err := <-done; !errors.Is(err, holdlock.ErrLost) {
//			t.Errorf("error is %v, want a loss", err)
//		}
//	}
//
//	what happens                               how to make it happen     what the program gets
//	someone else has the lock                  Client.HoldByAnother      ErrHeld
//	a lease ends before its work               Client.Lose               its context ends; ErrLost
//	the process pauses, and is overtaken       Client.Expire             the same, and the key is free at once
//	the store is down                          Client.SetStore(Down)     ErrUnreachable
//	the store's answers get lost               Client.SetStore(Mute)     ErrUnknown
//
// Everything here works inside a testing/synctest bubble, where time is virtual, and outside. Make the client inside the
// bubble, with the bubble's *testing.T. Methods that call the test's Fatal belong on the test's own goroutine.
//
// The store claims durable tokens, because within one test nothing is lost: a lock that is declared Harmful with a Guard
// can be used, as it can on a store with durable tokens. That a lock is refused on a weaker store is tested with a client
// of package memhold.
package holdtest
