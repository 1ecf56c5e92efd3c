package review

import (
	"testing"
	"time"

	"github.com/holdlock/holdlock"
)

func TestSpan(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 ms", 1500 * time.Nanosecond: "0.0015 ms", time.Millisecond: "1 ms", 999600 * time.Microsecond: "1000 ms", time.Second: "1 s",
		1357 * time.Millisecond: "1.36 s", 1999600 * time.Microsecond: "2 s", 2 * time.Second: "2 s", 90 * time.Second: "90 s", 119999 * time.Millisecond: "120 s",
		10 * time.Minute: "10 min", time.Hour: "1 h", 24 * time.Hour: "1 d", 36 * time.Hour: "36 h", 1825 * 24 * time.Hour: "1825 d",
		holdlock.Forever: "for ever",
	} {
		if got := span(d); got != want {
			t.Errorf("span(%d) is %q, want %q", d, got, want)
		}
	}
	for x, want := range map[float64]string{0.01: "1%", 3.0 / 720: "0.417%", 3e-8: "0.000003%", 1: "100%"} {
		if got := percent(x); got != want {
			t.Errorf("percent(%v) is %q, want %q", x, got, want)
		}
	}
}
