//go:build unix

package guard

import (
	"os"

	"golang.org/x/sys/unix"
)

// writeNow writes m to a pipe if it has room, and does not wait. It never does so by a deadline: on a busy machine the
// deadline may pass before the first attempt is made, and the message would be lost although there is room. A full pipe
// means that the other side has been stopped for a long time.
func writeNow(pipe *os.File, m any) error {
	conn, err := pipe.SyscallConn()
	if err != nil {
		return err
	}
	var werr error
	err = conn.Write(func(fd uintptr) bool {
		werr = writeMessage(nonblocking(fd), m)
		return true // also if there is no room
	})
	if err != nil {
		return err
	}
	return werr
}

// nonblocking is a pipe that is in non-blocking mode.
type nonblocking int

func (fd nonblocking) Write(b []byte) (int, error) {
	for {
		n, err := unix.Write(int(fd), b)
		if err != unix.EINTR {
			return n, os.NewSyscallError("write", err)
		}
	}
}
