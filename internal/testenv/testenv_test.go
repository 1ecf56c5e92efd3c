//go:build unix

package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func TestRestartForgets(t *testing.T) {
	r := StartRedis(t)
	r.Do(t, "SET", "k", "v")
	if got := r.Do(t, "GET", "k"); got != "v" {
		t.Fatalf("GET = %q", got)
	}
	r.Restart(t)
	if got := r.Do(t, "EXISTS", "k"); got != "0" {
		t.Errorf("after a restart EXISTS = %s", got)
	}
}

// A test that is killed cannot clean up; its servers must end all the same.
func TestServersDieWithTheTest(t *testing.T) {
	if os.Getenv("TESTENV_HELPER") != "" {
		fmt.Println("pid", StartRedis(t).PID())
		_ = os.Stdout.Sync()
		syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	need(t, "redis-server", installRedis)
	if runtime.GOOS != "linux" {
		t.Skip("NOT TESTED: only Linux ties the life of a process to that of its parent")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestServersDieWithTheTest$", "-test.v")
	cmd.Env = append(os.Environ(), "TESTENV_HELPER=1")
	out, _ := cmd.Output()
	_, rest, ok := strings.Cut(string(out), "pid ")
	line, _, _ := strings.Cut(rest, "\n")
	pid, err := strconv.Atoi(line)
	if !ok || err != nil {
		t.Fatalf("the helper printed %q", out)
	}
	Eventually(t, "the server of a killed test is gone", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(stat), ") Z ") // a zombie waits for whoever has adopted it
	})
}

func TestNeedFailsWhereNothingMayBeSkipped(t *testing.T) {
	for _, env := range []string{"CI=true", "HOLDLOCK_TEST_REQUIRE=1", "NONE=1"} {
		name, value, _ := strings.Cut(env, "=")
		t.Setenv("CI", "")
		t.Setenv("HOLDLOCK_TEST_REQUIRE", "")
		t.Setenv(name, value)
		rec := &recorder{TB: t}
		done := make(chan struct{})
		go func() { defer close(done); need(rec, "no-such-server", "nowhere") }()
		<-done
		if rec.failed != (name != "NONE") || rec.skipped != (name == "NONE") {
			t.Errorf("with %s: failed = %v, skipped = %v", env, rec.failed, rec.skipped)
		}
	}
}

// recorder is a TB that notes how it was ended.
type recorder struct {
	testing.TB
	failed, skipped bool
}

func (r *recorder) Helper()               {}
func (r *recorder) Fatalf(string, ...any) { r.failed = true; runtime.Goexit() }
func (r *recorder) Skipf(string, ...any)  { r.skipped = true; runtime.Goexit() }
