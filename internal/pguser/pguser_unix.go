//go:build unix

// Package pguser runs the programs of a PostgreSQL server as a user other than root, as which they refuse to run.
package pguser

import (
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// credential is of whom to run the server as, or nil if this process will do.
func credential() *syscall.Credential {
	if os.Getuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err1 == nil && err2 == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	return nil
}

// As has a command run as that user, and returns it.
func As(cmd *exec.Cmd) *exec.Cmd {
	if id := credential(); id != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: id}
		cmd.Dir = "/" // it may not be allowed to be where we are
	}
	return cmd
}

// Own gives that user a file or directory.
func Own(path string) error {
	if id := credential(); id != nil {
		return os.Chown(path, int(id.Uid), int(id.Gid))
	}
	return nil
}
