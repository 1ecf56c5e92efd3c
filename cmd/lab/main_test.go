package lab

import (
	"os"
	"os/exec"
	"testing"

	"go.uber.org/goleak"

	"github.com/holdlock/holdlock/cmd/lab/worker"
)

// The test binary is also its own workers.
func TestMain(m *testing.M) {
	worker.Main()
	goleak.VerifyTestMain(m)
}

// need ends the test where a server is missing.
func need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if _, err := exec.LookPath(p); err == nil {
			continue
		}
		if os.Getenv("CI") == "true" || os.Getenv("HOLDLOCK_TEST_REQUIRE") != "" {
			t.Fatalf("%s is not installed, and nothing may be skipped here", p)
		}
		t.Skipf("NOT TESTED: %s is not installed", p)
	}
}
