//go:build unix

package child

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// A Process is a child. Its methods are safe for concurrent use.
type Process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
	err  error         // how; readable when done is closed
}

// Run runs a command to its end. If ctx ends first the command is told to (SIGTERM).
func Run(ctx context.Context, cmd *exec.Cmd) error {
	p, err := Start(cmd)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		p.End(syscall.SIGTERM, 10*time.Second)
		return ctx.Err()
	}
}

// Start starts a command, in a process group of its own, so that a ^C of the terminal does not reach it: whoever started it
// decides when it ends.
func Start(cmd *exec.Cmd) (*Process, error) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	dieWithParent(cmd.SysProcAttr)
	p := &Process{cmd: cmd, done: make(chan struct{})}
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
		return nil, fmt.Errorf("starting %s: %w", cmd.Path, err)
	}
	return p, nil
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err says how the process ended; nil while it runs.
func (p *Process) Err() error {
	select {
	case <-p.done:
		return errors.Join(p.err, fmt.Errorf("%s has ended", p.cmd.Path))
	default:
		return nil
	}
}

// Kill ends the process at once, also if it is stopped, and waits until it has ended. It may be called again.
func (p *Process) Kill() {
	_ = p.cmd.Process.Signal(syscall.SIGKILL) // it may have ended
	<-p.done
}

// End sends a signal that asks the process to end, waits, and kills it after some time.
func (p *Process) End(how syscall.Signal, within time.Duration) {
	_ = p.cmd.Process.Signal(how)
	select {
	case <-p.done:
	case <-time.After(within):
		p.Kill()
	}
}

// Stop stops the process (SIGSTOP) and returns when none of its threads runs any more, which is a little later.
func (p *Process) Stop(ctx context.Context) error {
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return fmt.Errorf("stopping process %d: %w", p.PID(), err)
	}
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !stopped(p.PID()) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("process %d does not stop: %w", p.PID(), ctx.Err())
		case <-p.done:
			return fmt.Errorf("process %d ended when it was to stop: %w", p.PID(), p.Err())
		case <-tick.C:
		}
	}
	return nil
}

// Continue lets it go on.
func (p *Process) Continue() error {
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		return fmt.Errorf("continuing process %d: %w", p.PID(), err)
	}
	return nil
}
