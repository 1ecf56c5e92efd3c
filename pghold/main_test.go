//go:build unix

package pghold

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/holdlock/holdlock/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(suite{m}) }

// suite ends the shared server before leaks are looked for.
type suite struct{ m *testing.M }

func (s suite) Run() int {
	code := s.m.Run()
	testenv.End()
	return code
}
