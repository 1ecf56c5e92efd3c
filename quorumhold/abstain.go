package quorumhold

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/holdlock/holdlock/driver"
)

// Abstainer is what a node can implement that grants nothing for a while after it may have forgotten what it had granted. It is asked
// where nothing is found, so that a key is not called free which nobody can have.
type Abstainer interface {
	// Abstains says for how much longer the node grants nothing, as of now; 0 is not at all. It changes nothing at the node. One that
	// would begin to abstain with the first request for a grant says so.
	Abstains(ctx context.Context) (time.Duration, error)
}

// mayGrant returns an ErrAbstains if so many nodes abstain, or abstain or do not answer, that the others are no majority. A node that
// cannot say whether it abstains counts as one that does not.
func (d *Driver) mayGrant(ctx context.Context, verb, key string) error {
	count := func(answers []*time.Duration) (abstain, grant int) {
		for _, a := range answers {
			switch {
			case a == nil:
			case *a > 0:
				abstain++
			default:
				grant++
			}
		}
		return abstain, grant
	}
	answers, err := gather(ctx, d, verb, key, func(ctx context.Context, n *node) (time.Duration, error) {
		if a, ok := driver.As[Abstainer](n.Driver); ok {
			return a.Abstains(ctx)
		}
		return 0, nil
	}, func(answers []*time.Duration) bool {
		_, grant := count(answers)
		return grant >= d.need
	})
	if err != nil {
		return err
	}
	abstaining, grant := count(answers)
	switch {
	case abstaining == 0 || grant >= d.need:
		return nil
	case abstaining <= len(d.nodes)-d.need: // an acquire would fail as well, for the nodes that are silent
		e := &NoMajorityError{
			Verb: verb, Key: key, Did: grant, Answered: grant + abstaining, Of: len(d.nodes), Need: d.need, Abstaining: abstaining, certain: true,
		}
		for i, a := range answers {
			switch {
			case a == nil:
				e.Nodes = append(e.Nodes, NodeFailure{d.nodes[i].name, d.nodes[i].silence()})
			case *a > 0:
				err := fmt.Errorf("%w for %s more", driver.ErrAbstains, a.Round(time.Millisecond))
				e.Nodes = append(e.Nodes, NodeFailure{d.nodes[i].name, err})
			}
		}
		return e
	}
	left := make([]time.Duration, len(answers))
	for i, a := range answers {
		if a != nil {
			left[i] = *a
		}
	}
	slices.Sort(left)
	return failure(verb, key, fmt.Errorf("%d of %d nodes have restarted, lost their data or are new, so what is held is not known, and nothing is "+
		"granted for %s (%w)", abstaining, len(d.nodes), left[d.need-1].Round(time.Millisecond), driver.ErrAbstains))
}
