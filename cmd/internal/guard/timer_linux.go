package guard

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdlock/holdlock/internal/bootclock"
)

// A bootTimer fires by the clock that counts suspend: at once on waking, if its time has passed during suspend. Timers of
// package time stand still meanwhile.
type bootTimer struct {
	C  <-chan struct{} // receives when the time has come; may do so without reason, so look at the clock
	fd int
	f  *os.File
}

func newBootTimer() (*bootTimer, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	c := make(chan struct{}, 1)
	t := &bootTimer{C: c, fd: fd, f: os.NewFile(uintptr(fd), "timerfd")}
	go func() {
		for b := make([]byte, 8); ; {
			if _, err := t.f.Read(b); err != nil {
				return // stopped
			}
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}()
	return t, nil
}

// Set makes the timer fire at the given time of bootclock.Now, instead of any earlier setting.
func (t *bootTimer) Set(at time.Duration) {
	for {
		now := bootclock.Now()
		// Relative, because a time namespace shifts absolute times. Zero would disarm.
		spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(at-now, 1)))}
		_ = unix.TimerfdSettime(t.fd, 0, &spec, nil) // cannot fail with these arguments
		if bootclock.Now()-now < time.Millisecond {
			return
		}
		// We were held up between reading the clock and arming, by a suspend perhaps, and the timer would be as late.
	}
}

// Stop frees the timer. It must not be used afterwards.
func (t *bootTimer) Stop() { _ = t.f.Close() }
