package asynqonce

import (
	"errors"
	"fmt"
	"io"
	"testing"

	"github.com/hibiken/asynq"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/once"
)

// All that a handler has returned is found, but that its task comes back.
func TestFailure(t *testing.T) {
	t.Parallel()
	held := &holdlock.HeldError{Name: "other"}
	handlers := fmt.Errorf("%w: %w, %w, %w", ErrRunning, ErrStore, held, asynq.SkipRetry)
	var found *holdlock.HeldError
	f := &failure{handlers: handlers}
	if comesBack(f) || !errors.Is(f, asynq.SkipRetry) || !errors.Is(f, holdlock.ErrHeld) || !errors.As(f, &found) || errors.Is(f, io.EOF) || f.Error() != handlers.Error() {
		t.Errorf("%v", f)
	}
	f.ours = fmt.Errorf("%w, after %w", once.ErrSuspended, &words{handlers})
	if comesBack(f) || !errors.Is(f, once.ErrSuspended) || !errors.Is(f, holdlock.ErrHeld) || comesBack(f.ours) || f.Error() != f.ours.Error() {
		t.Errorf("%v", f)
	}
}
