//go:build unix

package testenv

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A Process is a server that a test started.
type Process struct {
	cmd  *exec.Cmd
	out  Output
	done chan struct{} // closed when it has ended
	err  error         // how; readable when done is closed
}

// start runs a program until the test ends.
func start(tb testing.TB, cmd *exec.Cmd) *Process {
	tb.Helper()
	p := startUntilEnd(tb, cmd)
	tb.Cleanup(p.Kill)
	return p
}

// startUntilEnd runs a program until the caller ends it, or the test binary ends.
func startUntilEnd(tb testing.TB, cmd *exec.Cmd) *Process {
	tb.Helper()
	p := &Process{cmd: cmd, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.out, &p.out
	dieWithTest(cmd)
	started := make(chan error)
	go func() {
		// The signal for the death of the parent is tied to the thread that forked, so that one must live as long.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		tb.Fatalf("starting %s: %v", cmd.Path, err)
	}
	return p
}

// Kill ends the process at once, also if it is frozen, and waits until it has ended. It may be called again.
func (p *Process) Kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL)
	<-p.done
}

// Terminate asks the process to end and waits until it has.
func (p *Process) Terminate() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(10 * time.Second):
		p.Kill()
	}
}

// Freeze stops the process where it is. Its sockets stay open and take what is sent to them.
func (p *Process) Freeze(tb testing.TB) {
	tb.Helper()
	p.signal(tb, syscall.SIGSTOP)
}

// Thaw lets it go on.
func (p *Process) Thaw(tb testing.TB) {
	tb.Helper()
	p.signal(tb, syscall.SIGCONT)
}

func (p *Process) signal(tb testing.TB, s os.Signal) {
	tb.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		tb.Fatalf("%v to process %d: %v", s, p.cmd.Process.Pid, err)
	}
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// ended says how the process ended, or nil if it runs.
func (p *Process) ended() error {
	select {
	case <-p.done:
		return fmt.Errorf("%s has ended (%w): %s", p.cmd.Path, errors.Join(p.err, errors.New("no error")), p.out.String())
	default:
		return nil
	}
}

// Output is what is written to it, such as a log, and can be read meanwhile.
type Output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (o *Output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

// String is all that was written so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// Eventually polls until cond holds, for at most half a minute.
func Eventually(tb testing.TB, what string, cond func() bool) {
	tb.Helper()
	for give := time.Now().Add(30 * time.Second); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(give) {
			tb.Fatalf("%s: not so after 30 s", what)
		}
	}
}
