package choosing

import (
	"context"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/once"
)

// transfer sends money by a bank that compares nothing. After a run that may have sent it, nothing is sent until somebody has looked:
// the error is once.ErrSuspended, and holdlock jobs settle decides.
func transfer(ctx context.Context, transfers *holdlock.Lock, order string, send func(ctx context.Context, reference string) error) error {
	_, err := once.Do(ctx, transfers.For(order), &once.Options{OnLapse: once.Hold, OnError: once.Hold},
		func(ctx context.Context, run *once.Run) ([]byte, error) { return nil, send(ctx, run.Key) })
	return err // nil if and only if it is sent, now or before
}

// harmful are the settings of such a lock. Its store must keep records durably.
var harmful = holdlock.LockOptions{Purpose: "sends money", DoubleRun: holdlock.Harmful}
