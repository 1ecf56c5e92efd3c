package bootclock

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

const clockBoottime = 7 // CLOCK_BOOTTIME of linux/time.h; package syscall does not name it

// Now returns the time since boot, suspend included. A process in a time namespace gets the machine's own value, so that
// processes in different containers agree.
func Now() time.Duration {
	var ts syscall.Timespec
	// The call cannot fail with these arguments (Linux 2.6.39 and later).
	_, _, _ = syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Duration(ts.Nano()) - namespaceOffset()
}

// ID names the present run of the machine. It changes with every boot. It is empty if the system does not tell.
var ID = sync.OnceValue(func() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
})

// namespaceOffset is what the time namespace of this process adds to CLOCK_BOOTTIME, normally 0.
var namespaceOffset = sync.OnceValue(func() time.Duration {
	b, err := os.ReadFile("/proc/self/timens_offsets")
	if err != nil {
		return 0 // the kernel has no time namespaces
	}
	return parseOffset(string(b))
})

// parseOffset reads the "boottime SECONDS NANOSECONDS" line of timens_offsets.
func parseOffset(s string) time.Duration {
	for line := range strings.Lines(s) {
		f := strings.Fields(line)
		if len(f) != 3 || f[0] != "boottime" {
			continue
		}
		sec, err1 := strconv.ParseInt(f[1], 10, 64)
		nsec, err2 := strconv.ParseInt(f[2], 10, 64)
		if err1 == nil && err2 == nil {
			return time.Duration(sec)*time.Second + time.Duration(nsec)
		}
	}
	return 0
}
