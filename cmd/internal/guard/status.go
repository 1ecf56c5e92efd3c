package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
)

// A Status is how a process ended.
type Status struct {
	Known  bool           `json:"known"`
	Code   int            `json:"code"`   // its exit code, if Signal is 0
	Signal syscall.Signal `json:"signal"` // the signal that ended it, or 0
}

// ExitCode returns the exit code as shells give it: the process's own, or 128 + the signal that ended it.
func (s Status) ExitCode() int {
	if s.Signal != 0 {
		return 128 + int(s.Signal)
	}
	return s.Code
}

// A StartFailure is the kind of a StartError.
type StartFailure string

// The kinds of failure.
const (
	NotFound      StartFailure = "not found"
	NotExecutable StartFailure = "not executable"
	NotStarted    StartFailure = "not started" // any other reason: no memory, too many processes, no working directory
)

// A StartError says why a command could not be started. It ran nothing.
type StartError struct {
	Kind    StartFailure
	Command string
	Err     error
}

// Error names the command and the reason.
func (e *StartError) Error() string {
	return fmt.Sprintf("cannot start %q (%s): %v", e.Command, e.Kind, e.Err)
}

// Unwrap returns the reason, a syscall.Errno wherever the system gave one.
func (e *StartError) Unwrap() error { return e.Err }

// ExitCode returns the exit code of shells: 127 if the command was not found, otherwise 126.
func (e *StartError) ExitCode() int {
	if e.Kind == NotFound {
		return 127
	}
	return 126
}

// startError sorts the error of an attempt to execute command.
func startError(command string, err error) *StartError {
	kind := NotStarted
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		kind = NotFound
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.ENOEXEC), errors.Is(err, syscall.EISDIR):
		kind = NotExecutable
	}
	return &StartError{Kind: kind, Command: command, Err: err}
}
