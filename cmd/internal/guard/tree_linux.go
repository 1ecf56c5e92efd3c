package guard

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/holdlock/holdlock/cmd/internal/proctree"
)

// sharesGroup says that the command is in the process group of holdlock.
const sharesGroup = true

// A tree is a set of processes to end: all descendants of root.
type tree struct {
	root proctree.Process
	skip proctree.SkipFunc
}

// ownTree returns everything that will be below this process, which becomes a child subreaper for that, but what is
// there now: the children of a shell that executed holdlock in its own place are not ours to end.
func ownTree() (*tree, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, os.NewSyscallError("prctl(PR_SET_CHILD_SUBREAPER)", err)
	}
	self, err := proctree.Self()
	if err != nil {
		return nil, err
	}
	before, err := proctree.Children(self)
	if err != nil {
		return nil, err
	}
	skip := func(p proctree.Process) bool {
		for _, q := range before {
			if p.Is(q) {
				return true
			}
		}
		return false
	}
	return &tree{root: self, skip: skip}, nil
}

// number returns the number of the root in /proc.
func (t *tree) number() int { return t.root.PID }

// below returns everything below the guard with that number in /proc, a child of t's root.
func (t *tree) below(guard int) (*tree, error) {
	root, err := proctree.Find(guard)
	if err == nil && root.PPID != t.root.PID {
		err = os.ErrProcessDone
	}
	return &tree{root: root}, err
}

// rootStopped reports whether the root has been stopped.
func (t *tree) rootStopped() bool {
	now, err := proctree.Find(t.root.PID)
	return err == nil && now.Is(t.root) && now.Stopped
}

// started tells the tree the PID of the command.
func (t *tree) started(int) {}

// signal sends sig to all processes of the tree.
func (t *tree) signal(sig syscall.Signal) { _, _ = proctree.Signal(t.root, sig, t.skip) }

// alive returns how many processes of the tree live.
func (t *tree) alive() int {
	list, _ := proctree.Descendants(t.root, t.skip)
	return len(list)
}

// kill sends KILL to all processes of the tree. It returns the identity of each process that it hit, and those that refuse.
func (t *tree) kill() (hit []proctree.Identity, failed []Unkillable) {
	s, err := proctree.Kill(t.root, t.skip)
	for _, p := range s.Killed {
		hit = append(hit, p.Identity())
	}
	for _, f := range s.Failed {
		failed = append(failed, Unkillable{PID: f.Process.PID, Name: f.Process.Name, Why: f.Err.Error()})
	}
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		failed = append(failed, Unkillable{Why: err.Error()})
	}
	return hit, failed
}

// survivors describes those that live on long after KILL.
func (t *tree) survivors() []Unkillable {
	_, refused := t.kill()
	list := refused
	known := make(map[int]bool)
	for _, u := range refused {
		known[u.PID] = true
	}
	rest, _ := proctree.Descendants(t.root, t.skip)
	for _, p := range rest {
		if !known[p.PID] {
			list = append(list, Unkillable{PID: p.PID, Name: p.Name, Why: "has been sent KILL and has not died yet"})
		}
	}
	return list
}

// empty reports whether no process of the tree is left. childless says that wait4 has found no child of the root: then
// there is no descendant either.
func (t *tree) empty(childless bool) bool { return childless }

// attributes are those of the command, which stays in the process group of holdlock. The calling thread must live as long
// as the guard: the death signal comes when that thread ends, not the process (go.dev/issue/27505).
func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// nameProcess sets the name that the process list shows, which would otherwise be "exe".
func nameProcess(name string) { _ = os.WriteFile("/proc/self/comm", []byte(name), 0) }

// executablePath returns this executable, even if its file has been replaced since.
func executablePath() (string, error) { return "/proc/self/exe", nil }

// closeOnExec keeps every descriptor but 0, 1 and 2 from the command, also those that holdlock was started with.
func closeOnExec() error {
	if unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC) == nil {
		return nil
	}
	d, err := os.Open("/proc/self/fd") // Linux before 5.11
	if err != nil {
		return err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if fd, err := strconv.Atoi(name); err == nil && fd > 2 {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}

// ignoredSignals returns those that this process was started with as ignored (nohup, background jobs of scripts) and has
// not asked for since. Asking for one with signal.Notify would make the command no longer ignore it.
func ignoredSignals() (map[syscall.Signal]bool, error) {
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return nil, err
	}
	return parseIgnored(string(b))
}

func parseIgnored(status string) (map[syscall.Signal]bool, error) {
	for line := range strings.Lines(status) {
		hex, ok := strings.CutPrefix(line, "SigIgn:")
		if !ok {
			continue
		}
		mask, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		if err != nil {
			return nil, fmt.Errorf("cannot read the ignored signals: %w", err)
		}
		set := make(map[syscall.Signal]bool)
		for n := range 64 {
			if mask&(1<<n) != 0 {
				set[syscall.Signal(n+1)] = true
			}
		}
		return set, nil
	}
	return nil, errors.New("cannot read the ignored signals: /proc/self/status has no SigIgn line")
}
