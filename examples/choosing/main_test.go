//go:build unix

package choosing

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/holdlock/holdlock/internal/testenv"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) { testenv.End(); os.Exit(code) }))
}
