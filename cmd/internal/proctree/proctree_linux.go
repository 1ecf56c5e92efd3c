package proctree

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// freezeRounds bounds the walks of one Kill. Two are normal: the second confirms the first.
const freezeRounds = 20

// Self returns the calling process. It fails if /proc is not mounted, and then nothing else here works either.
func Self() (Process, error) {
	l, err := os.Readlink("/proc/self")
	if err != nil {
		return Process{}, fmt.Errorf("cannot find this process in /proc (is it mounted?): %w", err)
	}
	pid, err := strconv.Atoi(l)
	if err != nil {
		return Process{}, fmt.Errorf("/proc/self leads to %q, not to a process", l)
	}
	return Find(pid)
}

// Find returns the process with the given number. The error wraps os.ErrProcessDone if there is none.
func Find(pid int) (Process, error) {
	p, dir, err := open(pid)
	if err != nil {
		return Process{}, err
	}
	_ = unix.Close(dir)
	return p, nil
}

// Children returns the direct children of root, zombies included.
func Children(root Process) ([]Process, error) {
	var list []Process
	err := walk(root, func(p Process, _ int) bool {
		list = append(list, p)
		return false
	})
	return list, err
}

// Descendants returns all processes below root but zombies, parents before their children.
func Descendants(root Process, skip SkipFunc) ([]Process, error) {
	var list []Process
	err := walk(root, func(p Process, _ int) bool {
		if skip != nil && skip(p) {
			return false
		}
		if !p.Zombie {
			list = append(list, p)
		}
		return true
	})
	return list, err
}

// Signal sends sig to every process below root once, parents before their children, and returns how many got it. A process
// that is born meanwhile may be missed. The error joins the reasons why some could not be signalled.
func Signal(root Process, sig syscall.Signal, skip SkipFunc) (int, error) {
	// All are found before the first is signalled: one that dies at once leaves its children to the root, and a walk that has
	// been there would not see them.
	list, err := Descendants(root, skip)
	n := 0
	errs := []error{err}
	for _, p := range list {
		switch err := deliver(p, sig); {
		case err == nil:
			n++
		case !errors.Is(err, os.ErrProcessDone):
			errs = append(errs, fmt.Errorf("process %v: %w", p, err))
		}
	}
	return n, errors.Join(errs...)
}

// Kill sends SIGKILL to every process below root, as the package comment describes. Whoever is not in the result was
// already dead, or was born during the call: repeat it until nothing is left. The error says that the tree could not be
// read at all.
func Kill(root Process, skip SkipFunc) (Sweep, error) {
	var found []Process
	seen := make(map[Identity]bool)
	for range freezeRounds {
		fresh := false
		err := walk(root, func(p Process, dir int) bool {
			if skip != nil && skip(p) {
				return false
			}
			if p.Zombie || seen[p.Identity()] {
				return true
			}
			fresh = true
			seen[p.Identity()] = true
			found = append(found, p)
			_ = send(p.PID, dir, unix.SIGSTOP) // a refusal shows below
			return true
		})
		if err != nil && len(found) == 0 {
			return Sweep{}, err
		}
		if !fresh {
			break
		}
	}
	var s Sweep
	for _, p := range found {
		switch err := kill(p); {
		case err == nil:
			s.Killed = append(s.Killed, p)
		case !errors.Is(err, os.ErrProcessDone):
			s.Failed = append(s.Failed, Failure{Process: p, Err: err})
		}
	}
	return s, nil
}

func kill(p Process) error { return deliver(p, unix.SIGKILL) }

// deliver sends sig to the process that p was, not to one that has taken over its number.
func deliver(p Process, sig syscall.Signal) error {
	now, dir, err := open(p.PID)
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	if !now.Is(p) || now.Zombie {
		return os.ErrProcessDone
	}
	return send(p.PID, dir, sig)
}

// walk visits the processes below root, level by level. A process is visited before its children are listed, so that a
// visit which stops it also ends the growth of that list. visit gets the open /proc directory of the process and says
// whether to go on below it.
func walk(root Process, visit func(p Process, dir int) bool) error {
	now, err := Find(root.PID)
	if err != nil {
		return err
	}
	if !now.Is(root) {
		return fmt.Errorf("process %v: %w", root, os.ErrProcessDone)
	}
	list := lister()
	queue := []int{root.PID}
	for len(queue) > 0 {
		parent := queue[0]
		queue = queue[1:]
		pids, err := list(parent)
		if err != nil {
			if parent == root.PID {
				return fmt.Errorf("cannot list the children of process %v: %w", root, err)
			}
			continue // it died, and its children are now the root's
		}
		for _, pid := range pids {
			p, dir, err := open(pid)
			if err != nil {
				continue // it died
			}
			// Another parent means that the number was reused, or that the parent died just now and the process will be
			// found in its new place by the next walk.
			if p.PPID == parent && visit(p, dir) {
				queue = append(queue, pid)
			}
			_ = unix.Close(dir)
		}
	}
	return nil
}

// lister returns the function that names the children of a process.
func lister() func(pid int) ([]int, error) {
	if _, err := os.Stat("/proc/thread-self/children"); err == nil {
		return childrenFiles
	}
	return scan // a kernel without CONFIG_PROC_CHILDREN; 20 to 100 µs for each process of the machine
}

// childrenFiles reads the lists that the kernel keeps for each thread of the process.
func childrenFiles(pid int) ([]int, error) {
	tasks := filepath.Join("/proc", strconv.Itoa(pid), "task")
	threads, err := os.ReadDir(tasks)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, t := range threads {
		b, err := os.ReadFile(filepath.Join(tasks, t.Name(), "children"))
		if err != nil {
			continue // the thread has ended; its children went to another thread
		}
		for f := range strings.FieldsSeq(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				pids = append(pids, n)
			}
		}
	}
	return pids, nil
}

// scan looks at every process of the machine.
func scan(parent int) ([]int, error) {
	d, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if p, err := Find(pid); err == nil && p.PPID == parent {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// open returns the process with the given number and its /proc directory, which stands for this process and no later
// one. The caller closes it.
func open(pid int) (Process, int, error) {
	dir, err := unix.Open("/proc/"+strconv.Itoa(pid), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Process{}, -1, gone(err)
	}
	p, err := readStat(dir)
	if err != nil {
		_ = unix.Close(dir)
		return Process{}, -1, gone(err)
	}
	return p, dir, nil
}

func readStat(dir int) (Process, error) {
	fd, err := unix.Openat(dir, "stat", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return Process{}, err
	}
	defer unix.Close(fd)
	buf := make([]byte, 1024) // longer than any stat line; /proc gives it in one read
	n, err := unix.Read(fd, buf)
	if err != nil {
		return Process{}, err
	}
	return parseStat(buf[:n])
}

// parseStat reads a line of /proc/PID/stat. The name may hold anything, brackets and spaces too, so the fields are
// counted from the last bracket.
func parseStat(b []byte) (Process, error) {
	open, shut := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if open < 1 || shut < open {
		return Process{}, fmt.Errorf("cannot read process status %q", b)
	}
	f := strings.Fields(string(b[shut+1:])) // f[0] is field 3 of proc(5)
	if len(f) < 20 {
		return Process{}, fmt.Errorf("cannot read process status %q", b)
	}
	pid, err1 := strconv.Atoi(strings.TrimSpace(string(b[:open])))
	ppid, err2 := strconv.Atoi(f[1])
	threads, err3 := strconv.Atoi(f[17])
	start, err4 := strconv.ParseUint(f[19], 10, 64)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return Process{}, fmt.Errorf("cannot read process status %q: %w", b, err)
	}
	return Process{
		PID: pid, PPID: ppid, Name: string(b[open+1 : shut]), start: start,
		// A process whose first thread has ended shows Z too, but the others work on.
		Zombie:  (f[0] == "Z" || f[0] == "X") && threads <= 1,
		Stopped: f[0] == "T" || f[0] == "t",
	}, nil
}

// send sends sig to the process whose /proc directory is open as dir.
func send(pid, dir int, sig syscall.Signal) error {
	err := unix.PidfdSendSignal(dir, sig, nil, 0)
	if err == nil || err == unix.ESRCH {
		return gone(err)
	}
	// Linux before 5.1 lacks the call, and some container filters answer EPERM to what they do not know. kill(2) tells,
	// if it means the same process by this number.
	if self, serr := Self(); serr != nil || self.PID != os.Getpid() {
		return err
	}
	return gone(unix.Kill(pid, sig))
}

// gone turns the errors of a process that is no more into os.ErrProcessDone.
func gone(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) {
		return os.ErrProcessDone
	}
	return err
}
