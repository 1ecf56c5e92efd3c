package fence

import (
	"context"
	"sync"

	"github.com/holdlock/holdlock"
)

// Marks remembers the largest token seen for each lock. It is what the middleware of fencehttp needs. Methods are safe for
// concurrent use.
type Marks interface {
	// Mark moves the mark of the claim's lock up to its token, in one atomic step, or returns a *StaleError and changes
	// nothing if the mark is higher. Any other error means that it could not tell.
	Mark(ctx context.Context, c Claim) error
}

// Memory keeps marks in the memory of one process: for data that lives there too, and for tests. Marks are never forgotten,
// and gone with the process: data that outlives it needs another fence. The zero value is ready for use.
type Memory struct {
	mu   sync.Mutex
	seen map[string]holdlock.Token
}

// Mark implements Marks.
func (m *Memory) Mark(_ context.Context, c Claim) error {
	return m.Do(c, func() error { return nil })
}

// Do runs write if the claim is not stale. No other Do or Mark of this Memory gets in between, so keep it short. If write
// fails the mark has moved all the same.
func (m *Memory) Do(c Claim, write func() error) error {
	if err := c.Valid(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if seen := m.seen[c.Lock()]; c.Token < seen {
		return &StaleError{Lock: c.Lock(), Token: c.Token, Seen: seen}
	}
	if m.seen == nil {
		m.seen = map[string]holdlock.Token{}
	}
	m.seen[c.Lock()] = c.Token
	return write()
}
