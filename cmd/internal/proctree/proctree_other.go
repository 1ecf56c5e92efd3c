//go:build !linux

package proctree

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
)

var errUnsupported = fmt.Errorf("process trees on %s: %w", runtime.GOOS, errors.ErrUnsupported)

// Self fails: see the package comment.
func Self() (Process, error) { return Process{}, errUnsupported }

// Find fails: see the package comment.
func Find(int) (Process, error) { return Process{}, errUnsupported }

// Children fails: see the package comment.
func Children(Process) ([]Process, error) { return nil, errUnsupported }

// Descendants fails: see the package comment.
func Descendants(Process, SkipFunc) ([]Process, error) { return nil, errUnsupported }

// Signal fails: see the package comment.
func Signal(Process, syscall.Signal, SkipFunc) (int, error) { return 0, errUnsupported }

// Kill fails: see the package comment.
func Kill(Process, SkipFunc) (Sweep, error) { return Sweep{}, errUnsupported }
