//go:build unix

package guard

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Signals returns the signals that holdlock should receive with signal.Notify and give to Forward. It leaves out those that
// the process was started with as ignored (nohup, background jobs of scripts): asking for them would make the command no
// longer ignore them. So call it before any signal.Notify, and Notify nothing else. SIGTSTP is not among them: ^Z stops
// holdlock, as it stops the command.
func Signals() []os.Signal {
	ignored, err := ignoredSignals()
	if err != nil {
		ignored = nil // better to forward too much
	}
	var list []os.Signal
	for _, s := range []syscall.Signal{
		syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT,
		syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGCONT,
	} {
		if !ignored[s] {
			list = append(list, s)
		}
	}
	return list
}

// Forward passes on a signal that holdlock has received, unless the command has got it already: ^C and ^\ in a terminal
// go to the whole foreground process group, and a command that gets ^C twice may take the second for "at once, without
// cleaning up". The result says whether it was passed on.
func (g *Guard) Forward(sig os.Signal) (bool, error) {
	s, ok := sig.(syscall.Signal)
	if !ok || !shouldForward(s, sharesGroup && inForeground()) {
		return false, nil
	}
	return true, g.Signal(s)
}

// shouldForward tells whether a signal that holdlock got must be passed on. together says that holdlock and the command
// are the foreground process group of their terminal. Where it came from cannot be seen, so `kill -INT` is taken for ^C
// then.
func shouldForward(sig syscall.Signal, together bool) bool {
	switch sig {
	case syscall.SIGINT, syscall.SIGQUIT:
		return !together
	}
	return true
}

// inForeground reports whether this process is in the foreground process group of its terminal, if it has one. Standard
// input need not be that terminal.
func inForeground() bool {
	fd, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
