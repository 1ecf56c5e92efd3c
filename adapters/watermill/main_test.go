package watermillonce_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if settings := os.Getenv(workerEnv); settings != "" {
		os.Exit(work(settings)) // a process that a test has started
	}
	goleak.VerifyTestMain(m)
}
