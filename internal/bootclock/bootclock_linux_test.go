package bootclock

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestNowIsBoottime(t *testing.T) {
	read := func() time.Duration {
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
			t.Fatal(err)
		}
		return time.Duration(ts.Nano()) - namespaceOffset()
	}
	before := read()
	now := Now()
	after := read()
	if now < before || now > after {
		t.Errorf("Now() = %v, want between %v and %v", now, before, after)
	}
}

func TestID(t *testing.T) {
	if len(ID()) != 36 {
		t.Errorf("ID() = %q, want a UUID", ID())
	}
}

func TestParseOffset(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want time.Duration
	}{
		{"monotonic           0         0\nboottime            0         0\n", 0},
		{"monotonic           5         0\nboottime      1000000         7\n", 1000000*time.Second + 7},
		{"boottime      -3   0\n", -3 * time.Second},
		{"", 0},
		{"boottime x y\n", 0},
	} {
		if got := parseOffset(tt.in); got != tt.want {
			t.Errorf("parseOffset(%q) = %v, want %v", tt.in, got, tt.want)
		}
	}
}

func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		Now()
	}
}
