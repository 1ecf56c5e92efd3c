package main

import (
	"context"
	"testing"
)

// A program that is told to stop ends without an error, and with nothing held.
func TestRunEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := run(ctx, "localhost:0"); err != nil {
		t.Error(err)
	}
}
