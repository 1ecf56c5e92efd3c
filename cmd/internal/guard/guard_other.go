//go:build !unix

package guard

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/holdlock/holdlock/internal/bootclock"
)

func runGuard(func(context.Context, []byte)) int { return exitUsage }

// A Guard is a started command. There is no guard process on this system: holdlock itself ends the command at the
// deadline. All methods are safe for concurrent use.
type Guard struct {
	cfg     Config
	cmd     *exec.Cmd // nil if it could not be started
	started chan struct{}
	done    chan struct{} // closed after result has been written
	wake    chan struct{}
	result  Result

	mu       sync.Mutex // guards what follows
	deadline time.Duration
	reason   Reason
}

// Start starts the command. If it cannot be started the Result says so.
func Start(cfg Config) (*Guard, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	timer, err := newBootTimer()
	if err != nil {
		return nil, err
	}
	g := &Guard{
		cfg: cfg, deadline: cfg.Deadline,
		started: make(chan struct{}), done: make(chan struct{}), wake: make(chan struct{}, 1),
	}
	close(g.started)
	cmd := exec.Command(cfg.Argv[0], cfg.Argv[1:]...)
	cmd.Env, cmd.Dir = cfg.Env, cfg.Dir
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		g.result.Err = startError(cfg.Argv[0], err)
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
			g.result.Err = &StartError{Kind: NotFound, Command: cfg.Argv[0], Err: err}
		}
		timer.Stop()
		close(g.done)
		return g, nil
	}
	g.cmd = cmd
	g.result.PID = cmd.Process.Pid
	go g.supervise(timer)
	return g, nil
}

func (g *Guard) supervise(timer *bootTimer) {
	defer close(g.done)
	defer timer.Stop()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_ = g.cmd.Wait()
	}()
	for {
		g.mu.Lock()
		deadline := g.deadline
		g.mu.Unlock()
		if bootclock.Now() >= deadline {
			g.kill(Deadline)
		}
		timer.Set(deadline)
		select {
		case <-gone:
			g.mu.Lock()
			g.result.Ended = g.reason
			g.mu.Unlock()
			g.result.Status = Status{Known: true, Code: g.cmd.ProcessState.ExitCode()}
			return
		case <-timer.C:
		case <-g.wake:
		}
	}
}

func (g *Guard) kill(why Reason) {
	if g.cmd == nil {
		return
	}
	g.mu.Lock()
	first := g.reason == ""
	if first {
		g.reason = why
	}
	g.mu.Unlock()
	if first && g.cfg.OnEnding != nil {
		g.cfg.OnEnding(why)
	}
	_ = g.cmd.Process.Kill()
}

// Started is closed.
func (g *Guard) Started() <-chan struct{} { return g.started }

// PID waits for Started and returns the process number of the command, or 0 if it never ran.
func (g *Guard) PID() int {
	<-g.started
	if g.cmd == nil {
		return 0
	}
	return g.cmd.Process.Pid
}

// Done is closed when the command has ended.
func (g *Guard) Done() <-chan struct{} { return g.done }

// Wait returns when the command has ended, and how.
func (g *Guard) Wait() Result {
	<-g.done
	return g.result
}

// SetDeadline moves the deadline to later, after the lease was renewed.
func (g *Guard) SetDeadline(deadline time.Duration) {
	g.mu.Lock()
	g.deadline = max(g.deadline, deadline)
	g.mu.Unlock()
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

// Signal ends the command, whatever the signal: there are no others here.
func (g *Guard) Signal(syscall.Signal) error {
	g.kill(Asked)
	return nil
}

// End ends the command at once.
func (g *Guard) End() { g.kill(Asked) }

// KillAll ends the command at once.
func (g *Guard) KillAll() { g.kill(Asked) }

// Signals returns the signals that holdlock should receive with signal.Notify and give to Forward.
func Signals() []os.Signal { return []os.Signal{os.Interrupt, syscall.SIGTERM} }

// Forward passes on a request to end. An interrupt has reached the command from the console already.
func (g *Guard) Forward(sig os.Signal) (bool, error) {
	if sig == os.Interrupt {
		return false, nil
	}
	return true, g.Signal(syscall.SIGTERM)
}
