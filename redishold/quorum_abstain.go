package redishold

import (
	"context"
	"errors"
	"time"

	"github.com/holdlock/holdlock/quorumhold"
)

// Abstains implements quorumhold.Abstainer. It judges the mark as gate.lua does, and leaves it alone.
func (n *quorumNode) Abstains(ctx context.Context) (time.Duration, error) {
	const verb = "look at the mark of"
	if err := n.usable(ctx, verb, n.name); err != nil {
		return 0, err
	}
	m, err := n.readMark(ctx)
	switch {
	case errors.Is(err, quorumhold.ErrMismatch), err == nil && !m.missing && m.print != n.quorum.print:
		return 0, nil // it takes no part, which whoever asks it for a grant is told
	case err != nil:
		return 0, failure(verb, n.name, err)
	}
	return n.quorum.abstains(m), nil
}
