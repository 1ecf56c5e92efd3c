//go:build unix

package pghold

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
)

// observed collects what an Observer is told.
type observed struct {
	mu  sync.Mutex
	all []holdlock.Event
}

func (o *observed) Observe(e holdlock.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.all = append(o.all, e)
}

func (o *observed) count(kind holdlock.EventKind) (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.all {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

func (o *observed) of(kind holdlock.EventKind) (events []holdlock.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range o.all {
		if e.Kind == kind {
			events = append(events, e)
		}
	}
	return events
}

func (o *observed) last() holdlock.Event {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.all[len(o.all)-1]
}

// TestHelper is not a test: what is to be killed and paused runs in processes of its own, which are this program with a
// role.
func TestHelper(t *testing.T) {
	role := os.Getenv("PGHOLD_ROLE")
	if role == "" {
		return
	}
	helpers[role]()
	os.Exit(0)
}

var helpers = map[string]func(){"settle": helperSettle, "hold-session": helperHoldSession}

type helper struct {
	cmd   *exec.Cmd
	in    io.Writer
	lines chan string // closed when the helper has ended
}

func startHelper(tb testing.TB, role string, env ...string) *helper {
	tb.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestHelper$")
	cmd.Env = append(append(os.Environ(), "PGHOLD_ROLE="+role), env...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(tb, err)
	out, err := cmd.StdoutPipe()
	must(tb, err)
	must(tb, cmd.Start())
	h := &helper{cmd, in, make(chan string, 1000)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer close(h.lines)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			h.lines <- scan.Text()
		}
		_ = cmd.Wait()
	}()
	tb.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	return h
}

// line returns the next line that the helper prints.
func (h *helper) line(tb testing.TB) string {
	tb.Helper()
	select {
	case s, ok := <-h.lines:
		if !ok {
			tb.Fatal("the helper has ended")
		}
		return s
	case <-time.After(patience / 4):
		_ = h.cmd.Process.Signal(syscall.SIGQUIT) // its goroutines say why
		time.Sleep(time.Second)
		tb.Fatal("the helper says nothing")
	}
	return ""
}

func (h *helper) signal(tb testing.TB, s os.Signal) {
	tb.Helper()
	must(tb, h.cmd.Process.Signal(s))
}
