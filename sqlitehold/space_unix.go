//go:build linux || darwin || freebsd

package sqlitehold

import "golang.org/x/sys/unix"

// freeSpace returns how many bytes this user can still write where path is.
func freeSpace(path string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, err
	}
	return uint64(st.Bavail) * uint64(st.Bsize), nil
}
