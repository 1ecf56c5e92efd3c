package drivertest

import (
	"fmt"
	"runtime"
	"sync"
)

// A reporter takes the failures of a case. It is the test itself, or a recorder when the case is expected to fail: a
// failure reported to a testing.T cannot be taken back.
type reporter interface {
	Helper()
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any) // only in the goroutine of the case
	Logf(format string, args ...any)
}

type recorder struct {
	mu       sync.Mutex
	failures []string
}

func (r *recorder) Helper()             {}
func (r *recorder) Logf(string, ...any) {}

func (r *recorder) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

// watch runs f to its end, by return, Fatalf or panic, and counts a panic as a failure.
func (r *recorder) watch(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				r.Errorf("panic: %v", p)
			}
		}()
		f()
	}()
	<-done
}
