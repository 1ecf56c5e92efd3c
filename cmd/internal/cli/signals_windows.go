package cli

import (
	"os"
	"syscall"
)

// ending are the signals that end a wait for the lock.
var ending = []os.Signal{syscall.SIGTERM, os.Interrupt}

// passedOn are the signals that are passed on to the command.
var passedOn = ending
