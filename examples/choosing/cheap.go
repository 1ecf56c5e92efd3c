package choosing

import (
	"context"
	"errors"

	"github.com/holdlock/holdlock"
)

// rebuildIndex takes minutes, and once at a time is enough. That two overlap after a pause costs minutes, and nothing else.
func rebuildIndex(ctx context.Context, index *holdlock.Lock, rebuild func(context.Context) error) error {
	err := index.Do(ctx, func(ctx context.Context, _ *holdlock.Lease) error { return rebuild(ctx) })
	if errors.Is(err, holdlock.ErrHeld) {
		return nil // somebody else is at it
	}
	return err
}

// cheap are the settings of such a lock.
var cheap = holdlock.LockOptions{Purpose: "rebuilds the search index", DoubleRun: holdlock.Costly}
