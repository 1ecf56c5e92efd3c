package quorumhold

import (
	"fmt"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// A node gets maxInFlight calls at a time. The others wait for their turn, the urgent ones before the rest, and each of the two in
// order. Callers go on as soon as a majority has answered, so they run at the pace of the faster nodes, and a slower one would
// collect calls without end. So whoever waits knows whether anybody still needs the call. When its turn comes and nobody does, it is
// answered here, as one that has certainly not been applied, and the turn goes to the next:
//
//   - A request to start a term that has ended. Its release is waiting for the answer, and is not sent either.
//   - A request to start a term that a majority has granted, after patience. It makes the term stronger and is not needed for it; who
//     holds it until the first renewal brings it to that node then, and that seed waits as long as it has to. Where the nodes are
//     equally fast it does not come to that, however many wait.
//   - A look whose caller has returned, and a renewal whose caller has, after patience.
//
// So a node that is slow has at most the votes that are not decided, what ends terms that stand there, a seed for each term that is held
// for longer, and patience of the rest.
const (
	// maxQueued bounds those who wait all the same, for a node that answers nothing until it is suspect.
	maxQueued = 1 << 16
	// patience is how long what is not needed, and good to have, waits for its turn.
	patience = 100 * time.Millisecond
)

// An errand is how a call is to be made.
type errand struct {
	limit  time.Duration // from its start; a NodeTimeout at most
	urgent bool          // it goes before those that are not
	// needed says whether anybody still needs the call, which has waited for a while. It must not call the node. Nil is always.
	needed func(waited time.Duration) bool
}

// A queued call waits until another one of its node has ended.
type queued struct {
	*call
	since time.Time
}

// errNotNeeded is the answer to a call that was not made.
var errNotNeeded = fmt.Errorf("not asked, because nobody needed it any more (%w)", driver.ErrNotApplied)

// queue is the calls of a node that wait for their turn.
type queue struct{ urgent, others []queued }

func (q *queue) len() int { return len(q.urgent) + len(q.others) }

func (q *queue) add(x queued) {
	if x.urgent {
		q.urgent = append(q.urgent, x)
	} else {
		q.others = append(q.others, x)
	}
}

// next takes out the call whose turn it is, or nil, and those before it that nobody needs.
func (q *queue) next(now time.Time, b *broken) (turn *call, left []*call) {
	for _, lane := range []*[]queued{&q.urgent, &q.others} {
		for len(*lane) > 0 {
			one := (*lane)[0]
			(*lane)[0] = queued{} // for the garbage collector
			*lane = (*lane)[1:]
			if one.needed == nil || b.hoard || one.needed(now.Sub(one.since)) {
				return one.call, left
			}
			left = append(left, one.call)
		}
	}
	return nil, left
}

// clear takes out all.
func (q *queue) clear() []queued {
	all := append(q.urgent, q.others...)
	q.urgent, q.others = nil, nil
	return all
}
