//go:build unix

package testenv

import (
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"testing"
)

// Need makes sure that programs are installed, as need does.
func Need(tb testing.TB, programs ...string) {
	tb.Helper()
	for _, p := range programs {
		need(tb, p, "make setup")
	}
}

// need returns the path of a program, or ends the test.
func need(tb testing.TB, program, install string) string {
	tb.Helper()
	path, err := exec.LookPath(program)
	if err == nil {
		return path
	}
	if os.Getenv("CI") == "true" || os.Getenv("HOLDLOCK_TEST_REQUIRE") != "" {
		tb.Fatalf("%s is not installed, and nothing may be skipped here; install it: %s", program, install)
	}
	tb.Skipf("NOT TESTED: %s is not installed (%s). With CI=true or HOLDLOCK_TEST_REQUIRE=1 this is a failure", program, install)
	return ""
}

// FreePort returns a loopback port for a server that listens on several; see freePort.
func FreePort(tb testing.TB) int { tb.Helper(); return freePort(tb) }

// Ports are handed out in turn, from those that the kernel gives to nobody by itself. So that of a server which was killed does not
// become that of another one in the same test, which would answer for it.
const firstPort, ports = 10_000, 22_000

var lastPort = func() *atomic.Int64 { // somewhere, since other packages are tested at the same time
	var last atomic.Int64
	last.Store(rand.Int64N(ports))
	return &last
}()

// freePort returns a loopback port that nobody listens on. Another process can take it before the server does; start then
// tries again with another one.
func freePort(tb testing.TB) int {
	tb.Helper()
	var err error
	for range ports {
		port := firstPort + int(lastPort.Add(1)%ports)
		var l net.Listener
		if l, err = net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(port)); err == nil {
			_ = l.Close()
			return port
		}
	}
	tb.Fatalf("no free port: %v", err)
	return 0
}
