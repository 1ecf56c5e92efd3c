package sqlitehold

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
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
	check(c.tb, c.cmd.Process.Signal(syscall.SIGSTOP))
	eventually(c.tb, "the process is stopped", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
		check(c.tb, err)
		_, fields, _ := strings.Cut(string(stat), ") ")
		return strings.HasPrefix(fields, "T")
	})
}

func (c *child) resume() {
	c.tb.Helper()
	check(c.tb, c.cmd.Process.Signal(syscall.SIGCONT))
}
