//go:build unix

package sqlitehold

import (
	"os"
	"syscall"
)

// linksOf returns how many names a file has on its file system.
func linksOf(info os.FileInfo) int {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(st.Nlink)
	}
	return 1
}
