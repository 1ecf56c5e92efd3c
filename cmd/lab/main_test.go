package lab

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/holdlock/holdlock/cmd/lab/worker"
)

// The test binary is also its own workers.
func TestMain(m *testing.M) {
	worker.Main()
	goleak.VerifyTestMain(m)
}
