//go:build unix

package asynqonce

import (
	"context"
	"os"
	"testing"

	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"
)

// The test program is its own worker: what is to be killed runs in processes of its own.
func TestMain(m *testing.M) {
	if dir := os.Getenv("ASYNQONCE_WORKER"); dir != "" {
		work(dir)
		return
	}
	redis.SetLogger(silent{}) // it tells of every fault that the tests cause
	goleak.VerifyTestMain(m)
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}
