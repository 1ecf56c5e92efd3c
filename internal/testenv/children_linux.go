package testenv

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
)

// childrenOf returns the processes whose parent is pid.
func childrenOf(pid int) (children []int) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		// pid (name) state parent …, and a name may hold anything
		rest := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
		if len(rest) > 1 && string(rest[1]) == strconv.Itoa(pid) {
			if child, err := strconv.Atoi(filepath.Base(filepath.Dir(path))); err == nil {
				children = append(children, child)
			}
		}
	}
	return children
}
