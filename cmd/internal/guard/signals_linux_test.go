package guard

import (
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TERM, INT, HUP and QUIT reach the command and its children, USR1 and USR2 the command alone.
func TestSignalsAreForwarded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	command, child, detached := filepath.Join(dir, "command"), filepath.Join(dir, "child"), filepath.Join(dir, "detached")
	script := `setsid "$0" role:signals "$1" & shift; exec "$0" role:signals "$@"`
	m := startMini(t, "holdlock", part{
		Argv: []string{"sh", "-c", script, testExe(t), detached, command, child}, TTL: long, Grace: time.Minute,
	}, func(c *exec.Cmd) {
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // no terminal, so INT and QUIT are nobody's ^C
	})
	all := []string{command, child, detached}
	for _, f := range all {
		eventually(t, f+" is ready", func() bool { return hasLine(f, "ready") })
	}
	want := "ready\n"
	for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		m.signal(s)
		want += s.String() + "\n"
		for _, f := range all {
			eventually(t, f+" gets "+s.String(), func() bool { return hasLine(f, s.String()) })
		}
	}
	for _, s := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGUSR2} {
		m.signal(s)
		eventually(t, "the command gets "+s.String(), func() bool { return hasLine(command, s.String()) })
	}
	m.signal(syscall.SIGTERM)
	for _, f := range all {
		eventually(t, f+" gets TERM", func() bool { return hasLine(f, "terminated") })
	}
	// The children may need a moment longer than the command, and then count as left behind.
	if r, code := m.wait(); code != 3 || r.Ended != "" && r.Ended != Leftovers || r.Killed > 0 {
		t.Errorf("result %+v, exit code %d, want the command's 3", r, code)
	}
	usr := "user defined signal 1\nuser defined signal 2\n"
	for f, want := range map[string]string{command: want + usr + "terminated\n", child: want + "terminated\n", detached: want + "terminated\n"} {
		if got := readFile(f); got != want {
			t.Errorf("%s got %q, want %q", filepath.Base(f), got, want)
		}
	}
}

// A command that is stopped acts on what asks for its end all the same.
func TestSignalsReachAStoppedCommand(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			m := startMini(t, "holdlock", part{Argv: []string{"sh", "-c", "ulimit -c 0; kill -STOP $$; exec sleep 1000"}, TTL: long, Grace: time.Minute}, func(c *exec.Cmd) {
				c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
			})
			stat := "/proc/" + strconv.Itoa(m.number("started")) + "/status"
			eventually(t, "the command has stopped", func() bool { return strings.Contains(readFile(stat), "State:\tT") })
			m.signal(s)
			if r, code := m.wait(); code != 128+int(s) || r.Ended != "" {
				t.Errorf("result %+v, exit code %d, want %d", r, code, 128+int(s))
			}
		})
	}
}

func TestShouldForward(t *testing.T) {
	for _, tt := range []struct {
		sig      syscall.Signal
		together bool
		want     bool
	}{
		{syscall.SIGINT, true, false},
		{syscall.SIGQUIT, true, false},
		{syscall.SIGINT, false, true},
		{syscall.SIGQUIT, false, true},
		{syscall.SIGTERM, true, true},
		{syscall.SIGHUP, true, true},
		{syscall.SIGUSR1, true, true},
		{syscall.SIGCONT, true, true},
	} {
		if got := shouldForward(tt.sig, tt.together); got != tt.want {
			t.Errorf("shouldForward(%v, %v) = %v", tt.sig, tt.together, got)
		}
	}
}

// nohup: what holdlock was started with as ignored, the command ignores too, and nothing else; and nothing is blocked.
func TestIgnoredSignals(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, trap string
		ignored    []syscall.Signal
	}{
		{name: "none"},
		{name: "nohup", trap: `trap "" HUP; `, ignored: []syscall.Signal{syscall.SIGHUP}},
		{name: "more", trap: `trap "" HUP INT TSTP TTOU; `, ignored: []syscall.Signal{syscall.SIGHUP, syscall.SIGINT, syscall.SIGTSTP, syscall.SIGTTOU}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			m := startMini(t, "holdlock", part{Argv: []string{"sleep", "1000"}, TTL: long}, func(c *exec.Cmd) {
				c.Args = append([]string{"sh", "-c", tt.trap + `exec "$@"`, "sh"}, append([]string{c.Path}, c.Args[1:]...)...)
				c.Path = "/bin/sh"
			})
			status := readFile("/proc/" + strconv.Itoa(m.number("started")) + "/status")
			got, err := parseIgnored(status)
			if err != nil {
				t.Fatal(err)
			}
			ours, err := ignoredSignals() // make, for one, leaves some ignored
			if err != nil {
				t.Fatal(err)
			}
			for n := syscall.Signal(1); n <= 64; n++ {
				want := ours[n]
				for _, s := range tt.ignored {
					want = want || s == n
				}
				if got[n] != want {
					t.Errorf("signal %v ignored: %v, want %v", n, got[n], want)
				}
			}
			if !strings.Contains(status, "SigBlk:\t0000000000000000\n") {
				t.Errorf("signals are blocked:\n%s", status)
			}
		})
	}
}

func TestParseIgnored(t *testing.T) {
	got, err := parseIgnored("SigBlk:\t00\nSigIgn:\t0000000000001001\nSigCgt:\tffff\n")
	if err != nil || len(got) != 2 || !got[syscall.SIGHUP] || !got[syscall.SIGPIPE] {
		t.Errorf("parseIgnored = %v, %v; want HUP and PIPE", got, err)
	}
	for _, s := range []string{"", "SigIgn:\tx\n"} {
		if got, err := parseIgnored(s); err == nil {
			t.Errorf("parseIgnored(%q) = %v, want an error", s, got)
		}
	}
}
