package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/sqlitehold"
)

// naiveRole is holdlock's twin without a guard: naive FILE LOCK TTL COMMAND ARG…. It waits for the lock, runs the command
// under it, renews, and kills the command when the lease is lost. That is all that one process can do by itself.
func naiveRole(args []string) int {
	ttl, err := time.ParseDuration(args[2])
	if err != nil {
		return 97
	}
	client, err := sqlitehold.Open(args[0], nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 69
	}
	lock, err := client.NewLock(args[1], &holdlock.LockOptions{TTL: ttl, Wait: holdlock.Forever})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 64
	}
	err = lock.Do(context.Background(), func(ctx context.Context, lease *holdlock.Lease) error {
		cmd := exec.CommandContext(ctx, args[3], args[4:]...)
		cmd.Env = append(os.Environ(), fmt.Sprintf("HOLDLOCK_TOKEN=%d", lease.Token()))
		return cmd.Run()
	})
	if err != nil {
		return 70
	}
	return 0
}
