//go:build unix && !linux

package child

import (
	"os/exec"
	"strconv"
	"strings"
	"syscall"
)

// dieWithParent does nothing: no other system has a signal for the death of the parent. Workers end when their standard
// input does; servers that a killed parent leaves behind do not.
func dieWithParent(*syscall.SysProcAttr) {}

// stopped says whether a process is stopped.
func stopped(pid int) bool {
	out, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(pid)).Output()
	return err == nil && strings.HasPrefix(strings.TrimSpace(string(out)), "T")
}
