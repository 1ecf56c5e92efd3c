package quorumhold

import "sync/atomic"

// Stats counts what a driver has done since it was made. The ratios show contention: an acquire takes one round if nobody
// competes, and raises no token if the clocks of the callers differ by less than the time between two terms.
type Stats struct {
	Acquires uint64 // calls of Acquire
	Rounds   uint64 // votes of all nodes for these
	Raises   uint64 // orders to a node to raise its token: a second round trip
}

type stats struct{ acquires, rounds, raises atomic.Uint64 }

// Stats returns the counts so far.
func (d *Driver) Stats() Stats {
	return Stats{Acquires: d.stats.acquires.Load(), Rounds: d.stats.rounds.Load(), Raises: d.stats.raises.Load()}
}
