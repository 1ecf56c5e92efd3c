//go:build unix && !linux

package testenv

import (
	"syscall"
	"testing"
)

// Stop stops processes. Here nobody says when the last of their threads has stopped.
func Stop(tb testing.TB, pids ...int) {
	tb.Helper()
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			tb.Fatalf("stopping process %d: %v", pid, err)
		}
	}
}
