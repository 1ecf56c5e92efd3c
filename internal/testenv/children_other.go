//go:build unix && !linux

package testenv

import (
	"os/exec"
	"strconv"
	"strings"
)

// childrenOf returns the processes whose parent is pid.
func childrenOf(pid int) (children []int) {
	out, _ := exec.Command("ps", "-A", "-o", "pid=,ppid=").Output()
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) == 2 && f[1] == strconv.Itoa(pid) {
			if child, err := strconv.Atoi(f[0]); err == nil {
				children = append(children, child)
			}
		}
	}
	return children
}
