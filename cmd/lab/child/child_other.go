//go:build !unix

package child

import (
	"context"
	"os/exec"
	"syscall"
	"time"
)

// A Process cannot be made on this system.
type Process struct{}

// Start returns ErrUnsupported.
func Start(*exec.Cmd) (*Process, error) { return nil, ErrUnsupported }

// Run returns ErrUnsupported.
func Run(context.Context, *exec.Cmd) error { return ErrUnsupported }

// PID returns 0.
func (p *Process) PID() int { return 0 }

// Done returns nil.
func (p *Process) Done() <-chan struct{} { return nil }

// Err returns ErrUnsupported.
func (p *Process) Err() error { return ErrUnsupported }

// Kill does nothing.
func (p *Process) Kill() {}

// End does nothing.
func (p *Process) End(syscall.Signal, time.Duration) {}

// Stop returns ErrUnsupported.
func (p *Process) Stop(context.Context) error { return ErrUnsupported }

// Continue returns ErrUnsupported.
func (p *Process) Continue() error { return ErrUnsupported }
