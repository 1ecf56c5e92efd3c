//go:build !linux

package sqlitehold

import "context"

// Elsewhere nobody can be woken: a Driver is no driver.Waiter, and those who wait poll.
type watches struct{}

func (d *Driver) closeWatches() {}

func (d *Driver) wake(ctx context.Context, key, first string) {}

func (d *Driver) wakeAll(ctx context.Context, key string) {}

func isListening(address string) bool { return true }
