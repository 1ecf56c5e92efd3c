package testenv

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Stop stops processes and returns when every thread of them has stopped. The signal alone says little: it is taken by one
// thread, and until that one has had its turn the others work on, on a busy machine for a while.
func Stop(tb testing.TB, pids ...int) {
	tb.Helper()
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			tb.Fatalf("stopping process %d: %v", pid, err)
		}
	}
	for _, pid := range pids {
		Eventually(tb, fmt.Sprintf("process %d has stopped", pid), func() bool { return stopped(pid) })
	}
}

func stopped(pid int) bool {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // that thread has ended
		}
		// tid (name) state …, and a name may hold anything
		if rest := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:]); len(rest) > 0 && string(rest[0]) != "T" {
			return false
		}
	}
	return len(stats) > 0
}
