//go:build unix && !linux

package guard

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/holdlock/holdlock/cmd/internal/proctree"
)

// sharesGroup says that the command is not in the process group of holdlock: it leads its own.
const sharesGroup = false

// A tree is a set of processes to end: here the process group of the command, because nothing brings orphans back.
type tree struct{ group int }

func ownTree() (*tree, error) { return &tree{}, nil }

func (t *tree) number() int { return 1 }

func (t *tree) below(int) (*tree, error) { return &tree{}, nil }

// rootStopped reports whether the root has been stopped, which is not known here.
func (t *tree) rootStopped() bool { return false }

// started tells the tree the PID of the command, which leads the group.
func (t *tree) started(pid int) { t.group = pid }

// signal sends sig to all processes of the tree.
func (t *tree) signal(sig syscall.Signal) { _ = t.send(sig) }

func (t *tree) send(sig syscall.Signal) error {
	if t.group <= 1 {
		return syscall.ESRCH // nothing was started, and -1 would mean everybody
	}
	return unix.Kill(-t.group, sig)
}

// alive returns 1 if the group has a process, zombies included.
func (t *tree) alive() int {
	if t.send(0) == syscall.ESRCH {
		return 0
	}
	return 1
}

// kill sends KILL to all processes of the tree. The processes that it hit are not known here.
func (t *tree) kill() (hit []proctree.Identity, failed []Unkillable) {
	if err := t.send(syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		failed = []Unkillable{{PID: t.group, Why: err.Error()}}
	}
	return nil, failed
}

// survivors describes those that live on long after KILL.
func (t *tree) survivors() []Unkillable {
	if t.alive() == 0 {
		return nil
	}
	return []Unkillable{{PID: t.group, Why: "its process group has been sent KILL and is not empty yet"}}
}

// empty reports whether no process of the tree is left.
func (t *tree) empty(childless bool) bool { return childless && t.alive() == 0 }

// attributes are those of the command.
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

func nameProcess(string) {}

func executablePath() (string, error) { return os.Executable() }

// closeOnExec keeps the descriptors that holdlock was started with from the command. Go's own are safe already.
func closeOnExec() error {
	for fd := 3; fd < 256; fd++ {
		unix.CloseOnExec(fd)
	}
	return nil
}

// ignoredSignals returns those that this process was started with as ignored, as far as Go knows.
func ignoredSignals() (map[syscall.Signal]bool, error) {
	set := make(map[syscall.Signal]bool)
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT} {
		set[s] = signal.Ignored(s)
	}
	return set, nil
}
