package holdtest_test

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// both runs f in virtual time and in real time: a test kit has to work in either.
func both(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Run("virtual", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, f)
	})
	t.Run("real", func(t *testing.T) {
		t.Parallel()
		f(t)
	})
}

// A verdict is a testing.TB that keeps what would have failed a test.
type verdict struct {
	testing.TB
	mu      sync.Mutex
	said    []string
	cleanup []func()
}

func (v *verdict) Helper() {}

func (v *verdict) Cleanup(f func()) { v.cleanup = append(v.cleanup, f) }

func (v *verdict) Errorf(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.said = append(v.said, fmt.Sprintf(format, args...))
}

func (v *verdict) Fatalf(format string, args ...any) {
	v.Errorf(format, args...)
	runtime.Goexit()
}

// verdictOf runs a test that is expected to fail and returns what it said.
func verdictOf(t *testing.T, test func(tb testing.TB)) string {
	t.Helper()
	v := &verdict{TB: t}
	done := make(chan struct{})
	go func() { // Fatalf ends the goroutine
		defer close(done)
		defer func() {
			for _, f := range v.cleanup {
				f()
			}
		}()
		test(v)
	}()
	<-done
	return strings.Join(v.said, "\n")
}
