package guard

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdlock/holdlock/cmd/internal/proctree"
)

// needRoot skips a test that only root can run. CI runs as root, and the check there is that nothing was skipped.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

// As process 1 of a container, and as an ordinary process. Each of 200 runs gives the command's own exit code, and no
// zombie is left.
func TestNoZombies(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name    string
		unshare []string
		runs    int
	}{
		{name: "ordinary", runs: 200},
		{name: "process 1", runs: 200, unshare: []string{"--mount-proc"}},
		{name: "process 1 with a foreign proc", runs: 20, unshare: []string{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if tt.unshare != nil {
				needRoot(t)
			}
			var out bytes.Buffer
			m := startMini(t, "holdlock", part{
				Argv: []string{"sh", "-c", `(sleep 1000 &) ; exit 5`}, TTL: long, Grace: 40 * time.Millisecond, Repeat: tt.runs,
			}, func(c *exec.Cmd) {
				c.Stdout = &out
				inNamespace(c, tt.unshare)
			})
			r, code := m.wait()
			if code != 5 || r.Leftovers != 1 || len(r.Unkillable) > 0 {
				t.Errorf("exit code %d, last result %+v", code, r)
			}
			if out.String() != "zombies 0\n" {
				t.Errorf("it says %q", out.String())
			}
		})
	}
}

// inNamespace makes c process 1 of a pid namespace.
func inNamespace(c *exec.Cmd, unshare []string) {
	if unshare == nil {
		return
	}
	args := append([]string{"unshare", "--pid", "--fork", "--kill-child"}, unshare...)
	c.Args = append(args, append([]string{c.Path}, c.Args[1:]...)...)
	c.Path = "/usr/bin/unshare"
}

// Whatever else ends in the container becomes a child of process 1 and must be reaped by it, while the command runs.
func TestForeignOrphansAreReaped(t *testing.T) {
	t.Parallel()
	needRoot(t)
	for _, noReap := range []bool{false, true} { // the second is the control: they would pile up
		t.Run(map[bool]string{false: "reaped", true: "control"}[noReap], func(t *testing.T) {
			t.Parallel()
			m := startMini(t, "holdlock", part{Argv: []string{"sleep", "1000"}, TTL: long, NoReap: noReap},
				func(c *exec.Cmd) { inNamespace(c, []string{"--mount-proc"}) })
			m.number("started")
			unshare, err := proctree.Find(m.cmd.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			inside, err := proctree.Children(unshare)
			if err != nil || len(inside) != 1 {
				t.Fatalf("children of unshare: %v, %v", inside, err)
			}
			zombies := func() int {
				n := 0
				list, _ := proctree.Children(inside[0])
				for _, p := range list {
					if p.Zombie {
						n++
					}
				}
				return n
			}
			// As `docker exec` does: a process from outside, whose own child is orphaned, ends, and says so by closing the pipe.
			for range 5 {
				cmd := exec.Command("nsenter", "--pid=/proc/"+strconv.Itoa(inside[0].PID)+"/ns/pid", "sh", "-c", "(sleep 0.01 &)")
				if out, err := cmd.CombinedOutput(); err != nil { // which waits for the pipe
					t.Fatalf("nsenter: %v: %s", err, out)
				}
			}
			want := map[bool]int{false: 0, true: 5}[noReap]
			eventually(t, strconv.Itoa(want)+" zombies are left", func() bool { return zombies() == want })
		})
	}
}

// The process group of holdlock may have no number in its pid namespace. Guard and command still work as ever.
func TestForeignProcessGroup(t *testing.T) {
	t.Parallel()
	needRoot(t)
	for _, unshare := range [][]string{{}, {"--mount-proc"}} {
		dir := t.TempDir()
		file := filepath.Join(dir, "stamps")
		m := startMini(t, "holdlock", part{
			Argv: []string{testExe(t), "role:tree", file}, TTL: 4 * time.Second, Renew: 100 * time.Millisecond, Grace: 200 * time.Millisecond,
		}, func(c *exec.Cmd) { inNamespace(c, unshare) })
		eventually(t, "all four write", func() bool { return len(stamps(file)) == 4 })
		unshareProc, err := proctree.Find(m.cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		inside, err := proctree.Children(unshareProc)
		if err != nil || len(inside) != 1 {
			t.Fatalf("children of unshare: %v, %v", inside, err)
		}
		// From outside: holdlock and the command share a group, the guard has its own.
		var guards []proctree.Process
		list, err := proctree.Children(inside[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list {
			if p.Name == guardName {
				guards = append(guards, p)
			}
		}
		if len(guards) != 1 {
			t.Fatalf("guards: %v among %v", guards, list)
		}
		group := func(pid int) int { g, _ := syscall.Getpgid(pid); return g }
		if group(guards[0].PID) == group(inside[0].PID) {
			t.Error("the guard is in holdlock's process group")
		}
		below, err := proctree.Children(guards[0])
		together := 0
		for _, p := range below {
			if group(p.PID) == group(inside[0].PID) {
				together++
			}
		}
		if together != 1 { // the others have been adopted, and have sessions of their own
			t.Errorf("the command is not in holdlock's process group: %v, %v", below, err)
		}
		if err := syscall.Kill(inside[0].PID, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		below, err = proctree.Descendants(guards[0], nil)
		if err != nil || len(below) < 4 {
			t.Fatalf("work: %v, %v", below, err)
		}
		var work []process
		for _, p := range below {
			work = append(work, watch(t, p.PID))
		}
		eventually(t, "the work is dead at the deadline", func() bool { return !anyAlive(work) })
		_ = syscall.Kill(inside[0].PID, syscall.SIGCONT)
		if r, _ := m.wait(); r.Ended != Deadline {
			t.Errorf("result %+v", r)
		}
	}
}

// A process of another user refuses KILL. The guard says so, waits for it as long as the lease is renewed, and gives
// up at the deadline; then holdlock knows that it must not give the lease back.
func TestUnkillable(t *testing.T) {
	t.Parallel()
	needRoot(t)
	for _, tt := range []struct {
		name       string
		ttl, renew time.Duration
		orphan     bool
	}{
		{name: "lease renewed", ttl: long, renew: time.Second},
		{name: "lease lost", ttl: 5 * time.Second},
		{name: "holdlock killed", ttl: 5 * time.Second, orphan: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir, exe := nobodysDir(t)
			gate, released := filepath.Join(dir, "gate"), filepath.Join(dir, "released")
			m := startMini(t, "holdlock", part{
				Argv: []string{filepath.Join(dir, "root.exe"), "role:root", gate},
				TTL:  tt.ttl, Renew: tt.renew, Grace: 100 * time.Millisecond, Payload: released,
				Log: filepath.Join(dir, "log"), Result: filepath.Join(dir, "result"), Control: filepath.Join(dir, "control"),
			}, func(c *exec.Cmd) {
				c.Path = exe
				c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, Setsid: true}
			})
			eventually(t, "the command is root", func() bool { return hasLine(gate+".ready", "ready") })
			command := m.number("started")
			stuck := watch(t, command)
			t.Cleanup(func() {
				appendLine(gate, "open")
				eventually(t, "the command has ended", func() bool { return !stuck.alive() })
			})
			switch {
			case tt.orphan:
				guard := watch(t, m.number("guard"))
				m.signal(syscall.SIGKILL)
				eventually(t, "the guard gives up", func() bool { return !guard.alive() })
				if readFile(released) != "" {
					t.Error("the lease was given back while work was alive")
				}
			case tt.renew > 0:
				m.number("deadline")
				m.tell("end")
				m.logged("stuck " + strconv.Itoa(command))
				appendLine(gate, "open") // it ends by itself after all
				if r, code := m.wait(); code != 0 || r.Ended != Asked || len(r.Unkillable) > 0 {
					t.Errorf("result %+v, exit code %d", r, code)
				}
			default:
				r, _ := m.wait()
				if r.Ended != Deadline || len(r.Unkillable) != 1 || r.Unkillable[0].PID != command || !strings.Contains(r.Unkillable[0].Why, "not permitted") {
					t.Errorf("result %+v, want process %d unkillable", r, command)
				}
			}
		})
	}
}

// nobodysDir returns a directory in which the user nobody may do all, with this executable and one that is setuid root.
func nobodysDir(t *testing.T) (dir, exe string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "guard")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	exe = filepath.Join(dir, "exe")
	root := filepath.Join(dir, "root.exe")
	for _, f := range []string{exe, root} {
		// Not by this process: a child of another test would hold the file open for writing, and it could not be executed.
		if out, err := exec.Command("cp", testExe(t), f).CombinedOutput(); err != nil {
			t.Fatalf("cp: %v: %s", err, out)
		}
		if err := os.Chmod(f, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(root, 0o755|os.ModeSetuid); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir, exe
}
