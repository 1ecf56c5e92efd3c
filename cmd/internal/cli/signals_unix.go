//go:build unix

package cli

import (
	"os"
	"syscall"
)

// ending are the signals that end a wait for the lock, and a command that does not handle them.
var ending = []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT}

// passedOn are the signals that are passed on to the command.
var passedOn = append([]os.Signal{syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGCONT}, ending...)
