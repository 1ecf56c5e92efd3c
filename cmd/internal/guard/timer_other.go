//go:build !linux

package guard

import (
	"time"

	"github.com/holdlock/holdlock/internal/bootclock"
)

// maxNap is how long a suspend can go unnoticed: timers of package time stand still meanwhile.
const maxNap = 250 * time.Millisecond

// A bootTimer fires by bootclock.Now.
type bootTimer struct {
	C <-chan struct{} // receives when the time has come, and every maxNap before that; so look at the clock
	c chan struct{}
	t *time.Timer
}

func newBootTimer() (*bootTimer, error) {
	c := make(chan struct{}, 1)
	return &bootTimer{C: c, c: c}, nil
}

// Set makes the timer fire at the given time of bootclock.Now, instead of any earlier setting.
func (t *bootTimer) Set(at time.Duration) {
	t.Stop()
	t.t = time.AfterFunc(min(at-bootclock.Now(), maxNap), func() {
		select {
		case t.c <- struct{}{}:
		default:
		}
	})
}

// Stop frees the timer.
func (t *bootTimer) Stop() {
	if t.t != nil {
		t.t.Stop()
	}
}
