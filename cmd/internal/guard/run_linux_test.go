package guard

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/holdlock/holdlock/internal/bootclock"
)

func TestExitCodes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plain := write("plain", "exit 4\n", 0o644)
	script := write("script", "exit $1\n", 0o755)
	orphan := write("orphan", "#!/no/such/interpreter\n", 0o755)
	binary := write("binary", "\x7fELF\x00\x00\x00", 0o755)
	onPath := append(os.Environ(), "PATH="+dir+"/nothing::"+dir) // an empty element is the current directory
	for _, tt := range []struct {
		name string
		c    Config
		code int
		kind StartFailure
	}{
		{name: "0", c: Config{Argv: []string{"true"}}},
		{name: "7", c: Config{Argv: []string{"sh", "-c", "exit 7"}}, code: 7},
		{name: "255", c: Config{Argv: []string{"sh", "-c", "exit 255"}}, code: 255},
		{name: "TERM", c: Config{Argv: []string{"sh", "-c", "kill -TERM $$"}}, code: 143},
		{name: "KILL", c: Config{Argv: []string{"sh", "-c", "kill -KILL $$"}}, code: 137},
		{name: "SEGV", c: Config{Argv: []string{"sh", "-c", "ulimit -c 0; kill -SEGV $$"}}, code: 139},
		{name: "no such command", c: Config{Argv: []string{"no-such-command-here"}}, code: 127, kind: NotFound},
		{name: "no such file", c: Config{Argv: []string{dir + "/none"}}, code: 127, kind: NotFound},
		{name: "empty name", c: Config{Argv: []string{""}}, code: 127, kind: NotFound},
		{name: "no interpreter", c: Config{Argv: []string{orphan}}, code: 127, kind: NotFound},
		{name: "not executable", c: Config{Argv: []string{plain}}, code: 126, kind: NotExecutable},
		{name: "not executable on PATH", c: Config{Argv: []string{"plain"}, Env: onPath}, code: 126, kind: NotExecutable},
		{name: "directory", c: Config{Argv: []string{dir}}, code: 126, kind: NotExecutable},
		{name: "bad binary", c: Config{Argv: []string{binary}}, code: 126, kind: NotExecutable},
		{name: "no such directory", c: Config{Argv: []string{"true"}, Dir: dir + "/none"}, code: 126, kind: NotStarted},
		{name: "script without #!", c: Config{Argv: []string{script, "11"}}, code: 11},
		{name: "on PATH", c: Config{Argv: []string{"script", "12"}, Env: onPath}, code: 12},
		{name: "in the current directory by PATH", c: Config{Argv: []string{"script", "13"}, Env: []string{"PATH="}, Dir: dir}, code: 13},
		{name: "relative to Dir", c: Config{Argv: []string{"./script", "14"}, Dir: dir}, code: 14},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := run(t, tt.c)
			var s *StartError
			if errors.As(r.Err, &s) != (tt.kind != "") || s != nil && (s.Kind != tt.kind || s.Command != tt.c.Argv[0]) {
				t.Errorf("error %v, want kind %q", r.Err, tt.kind)
			}
			if got := r.ExitCode(); got != tt.code {
				t.Errorf("exit code %d, want %d (%+v)", got, tt.code, r)
			}
			if r.Ended != "" || r.Killed != 0 || len(r.Unkillable) != 0 {
				t.Errorf("it ended by itself, but the result is %+v", r)
			}
		})
	}
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{
		{Deadline: 1},
		{Argv: []string{"true"}},
		{Argv: []string{"true"}, Deadline: 1, Grace: -1},
		{Argv: []string{"true"}, Deadline: 1, Settle: -1},
	} {
		if _, err := Start(c); err == nil {
			t.Errorf("Start(%+v) has started it", c)
		}
	}
}

// Arguments and environment are bytes; the environment is what was asked for and the lease, nothing of the guard's own.
func TestArgumentsAndEnvironment(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	r := run(t, Config{
		Argv: []string{"/bin/sh", "-c", `printf '%s|' "$@" >"$0"; /usr/bin/env >>"$0"`, out, "a\xff", "", "b c"},
		Env:  []string{"X=\xfe", LeaseEnv + "=stale", LeaseEnv + "=staler"},
	})
	if r.ExitCode() != 0 {
		t.Fatalf("result %+v", r)
	}
	args, env, _ := strings.Cut(readFile(out), "b c|")
	if args != "a\xff||" {
		t.Errorf("arguments %q", args)
	}
	for line := range strings.Lines(env) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		switch {
		case name == "X" && value == "\xfe", name == "PWD", name == "OLDPWD", name == "SHLVL", name == "_":
		case name == LeaseEnv && strings.HasPrefix(value, "/proc/"):
		default:
			t.Errorf("environment has %q", line)
		}
	}
	if n := strings.Count(env, LeaseEnv+"="); n != 1 {
		t.Errorf("%d leases in the environment", n)
	}
}

// The command has the descriptors 0, 1 and 2, and not what holdlock and guard have, were it even inherited from a shell.
func TestDescriptors(t *testing.T) {
	t.Parallel()
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	m := startMini(t, "holdlock", part{Argv: []string{"sleep", "1000"}, TTL: long}, func(c *exec.Cmd) {
		c.ExtraFiles = []*os.File{f, f, f, f} // as if started by a shell with 3</dev/null and so on
	})
	fds := func(pid int) string {
		names, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/fd")
		if err != nil {
			t.Fatal(err)
		}
		var list []string
		for _, n := range names {
			list = append(list, n.Name())
		}
		return strings.Join(list, " ")
	}
	command := m.number("started")
	// The dynamic loader has one more for a moment.
	eventually(t, "the command has descriptors 0 1 2", func() bool { return fds(command) == "0 1 2" })
	if got := fds(m.cmd.Process.Pid); strings.Count(got, " ") < 7 {
		t.Errorf("the test is no good: holdlock has descriptors %s only", got)
	}
	if guard := fds(m.number("guard")); strings.Count(guard, " ") < 5 {
		t.Errorf("the test is no good: the guard has descriptors %s only", guard)
	}
}

func TestDeadline(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		opts   []string
		grace  time.Duration
		signal syscall.Signal
	}{
		{name: "obeys TERM", grace: time.Minute, signal: syscall.SIGTERM},
		{name: "ignores TERM", grace: 500 * time.Millisecond, opts: []string{"stubborn"}, signal: syscall.SIGKILL},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "stamps")
			var ending []Reason
			g, deadline := startShort(t, Config{
				Argv: append([]string{testExe(t), "role:stamp", file}, tt.opts...), Grace: tt.grace,
				OnEnding: func(r Reason) { ending = append(ending, r) },
			}, file, 2*time.Second+tt.grace)
			r := finish(t, g)
			if r.Ended != Deadline || r.Status.Signal != tt.signal || len(r.Unkillable) > 0 {
				t.Errorf("result %+v", r)
			}
			if len(ending) != 1 || ending[0] != Deadline {
				t.Errorf("OnEnding was told %q", ending)
			}
			if over := latest(file) - deadline; over > margin {
				t.Errorf("worked on for %v after the deadline", over)
			}
		})
	}
}

// Renewals move the deadline: the command outlives the first one by far, and dies when they stop.
func TestRenewal(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "stamps")
	const ttl = 4 * time.Second
	first := bootclock.Now() + ttl
	g := start(t, Config{Argv: []string{testExe(t), "role:stamp", file}, Deadline: first, Grace: 500 * time.Millisecond})
	var last time.Duration
	eventually(t, "it has worked twice as long", func() bool {
		last = bootclock.Now() + ttl
		g.SetDeadline(last)
		return latest(file) > first+ttl
	})
	g.SetDeadline(first) // never to earlier
	r := finish(t, g)
	if r.Ended != Deadline {
		t.Errorf("result %+v", r)
	}
	if at := latest(file); at > last+margin {
		t.Errorf("worked on for %v after the deadline", at-last)
	}
}

// Once TERM is out the end is settled, however far the deadline is moved; and the command is told so.
func TestRenewalAfterTERM(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "stamps")
	ending := make(chan struct{})
	g, _ := startShort(t, Config{
		Argv: []string{testExe(t), "role:stamp", file, "stubborn"}, Grace: time.Second,
		OnEnding: func(Reason) { close(ending) },
	}, file, 3*time.Second)
	<-ending
	g.SetDeadline(bootclock.Now() + long)
	if r := finish(t, g); r.Ended != Deadline || r.Status.Signal != syscall.SIGKILL {
		t.Errorf("result %+v", r)
	}
}

func TestEnd(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		opts   []string
		grace  time.Duration
		end    func(*Guard)
		signal syscall.Signal
	}{
		{name: "obeys TERM", grace: time.Minute, end: (*Guard).End, signal: syscall.SIGTERM},
		{name: "ignores TERM", grace: 400 * time.Millisecond, end: (*Guard).End, opts: []string{"stubborn"}, signal: syscall.SIGKILL},
		{name: "killed", grace: time.Minute, end: (*Guard).KillAll, signal: syscall.SIGKILL},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "stamps")
			g := start(t, Config{Argv: append([]string{testExe(t), "role:stamp", file}, tt.opts...), Grace: tt.grace})
			writers(t, file, 1)
			tt.end(g)
			tt.end(g) // a second time changes nothing
			if r := finish(t, g); r.Ended != Asked || r.Status.Signal != tt.signal || len(r.Unkillable) > 0 {
				t.Errorf("result %+v", r)
			}
			if err := g.Signal(syscall.SIGTERM); !errors.Is(err, os.ErrProcessDone) {
				t.Errorf("Signal after the end: %v", err)
			}
			g.SetDeadline(bootclock.Now() + 2*long)
		})
	}
}

// A stopped command gets TERM too, and its grace to act on it.
func TestEndOfStoppedCommand(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "signals")
	g := start(t, Config{Argv: []string{testExe(t), "role:signals", file}, Grace: 30 * time.Second})
	eventually(t, "it is ready", func() bool { return hasLine(file, "ready") })
	if err := syscall.Kill(g.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is stopped", func() bool { return state(g.PID()) == "T" })
	g.End()
	if r := finish(t, g); r.ExitCode() != 3 {
		t.Errorf("result %+v, want exit code 3: it was to handle TERM", r)
	}
}

// state returns the letter that ps shows.
func state(pid int) string {
	_, rest, _ := strings.Cut(readFile("/proc/"+strconv.Itoa(pid)+"/status"), "\nState:\t")
	if rest == "" {
		return ""
	}
	return rest[:1]
}

func TestLeftovers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, tt := range []struct {
		name              string
		opts              []string
		grace             time.Duration
		leave             bool
		leftovers, killed int
	}{
		{name: "obey TERM", grace: time.Minute, leftovers: 1},
		{name: "ignore TERM", grace: 400 * time.Millisecond, opts: []string{"stubborn"}, leftovers: 1, killed: 1},
		{name: "are left", grace: time.Minute, opts: []string{"stubborn"}, leave: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(dir, strings.ReplaceAll(tt.name, " ", "-"))
			script := `setsid "$@" & while ! test -s "$3"; do sleep 0.01; done; exit 5`
			g := start(t, Config{
				Argv:  append([]string{"sh", "-c", script, "sh", testExe(t), "role:stamp", file}, tt.opts...),
				Grace: tt.grace, LeaveBackground: tt.leave,
			})
			left := writers(t, file, 1)
			r := finish(t, g)
			if r.ExitCode() != 5 || r.Leftovers != tt.leftovers || r.Killed != tt.killed {
				t.Errorf("result %+v, want exit code 5, %d leftovers, %d killed", r, tt.leftovers, tt.killed)
			}
			if want := map[bool]Reason{true: Leftovers}[!tt.leave]; r.Ended != want {
				t.Errorf("ended by %q, want %q", r.Ended, want)
			}
			if anyAlive(left) != tt.leave {
				t.Errorf("what was left behind is alive: %v, want %v", !tt.leave, tt.leave)
			}
		})
	}
}

// What is about to end by itself is not hurried: here the last lines of a log written through a pipe.
func TestLeftoversThatEndByThemselves(t *testing.T) {
	t.Parallel()
	out := filepath.Join(t.TempDir(), "out")
	r := run(t, Config{
		Argv:   []string{"bash", "-c", `exec > >(while read -r l; do echo "$l"; done >"$0"); seq 1000`, out},
		Settle: time.Minute,
	})
	if r.ExitCode() != 0 || r.Leftovers != 0 || !strings.HasSuffix(readFile(out), "\n1000\n") {
		t.Errorf("result %+v, and the output ends %q", r, readFile(out)[max(0, len(readFile(out))-10):])
	}
}

// What the guard costs: the same command without and with it.
func BenchmarkTrue(b *testing.B) {
	b.Run("direct", func(b *testing.B) {
		for b.Loop() {
			if err := exec.Command("true").Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("guarded", func(b *testing.B) {
		for b.Loop() {
			g, err := Start(Config{Argv: []string{"true"}, Env: os.Environ(), Deadline: bootclock.Now() + long, Grace: time.Second})
			if err != nil {
				b.Fatal(err)
			}
			if r := g.Wait(); r.ExitCode() != 0 {
				b.Fatal(r)
			}
		}
	})
}
