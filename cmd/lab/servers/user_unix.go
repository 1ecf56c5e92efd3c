//go:build unix

package servers

import (
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// postgresUser returns whom to run the server as, which refuses to run as root, or nil if this process will do.
func postgresUser() *syscall.Credential {
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

// asPostgres has a command run as that user.
func asPostgres(cmd *exec.Cmd) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: postgresUser()}
	cmd.Dir = "/" // it may not be allowed to be where we are
	return cmd
}

func ownedByPostgres(path string) error {
	if id := postgresUser(); id != nil {
		return os.Chown(path, int(id.Uid), int(id.Gid))
	}
	return nil
}
