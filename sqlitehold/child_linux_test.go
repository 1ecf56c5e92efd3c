package sqlitehold

import (
	"os"
	"os/signal"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/holdlock/holdlock/internal/testenv"
)

// becomeUser gives up root.
func becomeUser(uid string) error {
	id, err := strconv.Atoi(uid)
	if err != nil || os.Getuid() != 0 {
		return err
	}
	if err := syscall.Setgroups(nil); err != nil {
		return err
	}
	if err := syscall.Setgid(id); err != nil {
		return err
	}
	return syscall.Setuid(id)
}

func limitFiles(bytes int) error {
	signal.Ignore(syscall.SIGXFSZ)
	return unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: uint64(bytes), Max: uint64(bytes)})
}

// stop freezes the process, and returns when it is frozen.
func (c *child) stop() {
	c.tb.Helper()
	testenv.Stop(c.tb, c.cmd.Process.Pid)
}

func (c *child) resume() {
	c.tb.Helper()
	check(c.tb, c.cmd.Process.Signal(syscall.SIGCONT))
}
