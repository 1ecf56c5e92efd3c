//go:build unix

package pghold

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/holdlock/holdlock/internal/testenv"
)

func TestMain(m *testing.M) {
	if child := leaseChildren[os.Getenv(childVariable)]; child != nil {
		if err := child(os.Getenv("PGHOLD_URL"), os.Getenv("PGHOLD_SCHEMA")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(suite{m})
}

// suite ends the shared server before leaks are looked for.
type suite struct{ m *testing.M }

func (s suite) Run() int {
	code := s.m.Run()
	testenv.End()
	return code
}
