package child

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// dieWithParent has the kernel kill the child when the thread that started it has died.
func dieWithParent(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }

// stopped says whether all threads of a process are stopped.
func stopped(pid int) bool {
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil || len(stats) == 0 {
		return false
	}
	for _, path := range stats {
		b, err := os.ReadFile(path)
		// pid (name) state …, and a name may hold anything
		rest := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
		if err != nil || len(rest) == 0 || string(rest[0]) != "T" {
			return false
		}
	}
	return true
}
