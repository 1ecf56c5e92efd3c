//go:build unix

package guard

import (
	"os"
	"os/signal"
	"syscall"
)

// deafTo are the signals that would end or stop the guard and are sent by people, terminals and systems. Real-time signals
// are not among them, nor those of crashes: a guard that dies is dealt with, and each signal here costs 20 µs at the start.
var deafTo = []syscall.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2,
	syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGPIPE, syscall.SIGALRM, syscall.SIGVTALRM,
	syscall.SIGIO, syscall.SIGXCPU, syscall.SIGXFSZ,
}

// shrugOff takes these signals and does nothing with them, but leaves those alone that this process was started with as
// ignored. signal.Ignore would not do: the command would inherit it.
func shrugOff() error {
	ignored, err := ignoredSignals()
	if err != nil {
		return err
	}
	c := make(chan os.Signal, 1) // nobody receives: a full channel drops
	for _, s := range deafTo {
		if !ignored[s] {
			signal.Notify(c, s)
		}
	}
	return nil
}
