package sqlitehold

import (
	"fmt"
	"maps"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// The test binary is also the other processes of its tests: see child_test.go.
func TestMain(m *testing.M) {
	if name := os.Getenv(childVariable); name != "" {
		maps.Copy(children, systemChildren)
		if err := children[name](os.Args[1:]); err != nil {
			fmt.Println("failed:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
