package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdlock/holdlock/cmd/internal/guard"
	"github.com/holdlock/holdlock/internal/testenv"
)

// holdlockPath is the command under test, built once by TestMain.
var holdlockPath string

// TestMain is also the entry of the helper processes: this binary with "role:NAME" as its first argument.
func TestMain(m *testing.M) {
	guard.Main(nil) // stagesRole starts one
	if len(os.Args) > 1 {
		if name, ok := strings.CutPrefix(os.Args[1], "role:"); ok {
			os.Exit(play(name, os.Args[2:]))
		}
	}
	os.Exit(buildAndRun(m))
}

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "holdlock-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	defer testenv.End()
	// Some tests run the command as another user.
	if err := os.Chmod(dir, 0o755); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	holdlockPath = filepath.Join(dir, "holdlock")
	build := exec.Command("go", "build", "-o", holdlockPath, "github.com/holdlock/holdlock/cmd/holdlock")
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		fmt.Fprintln(os.Stderr, "cannot build the command:", err)
		return 1
	}
	flag.Parse()
	if !given("test.parallel") {
		_ = flag.Set("test.parallel", "6") // these tests wait for leases to end, more than they compute
	}
	return m.Run()
}

func given(name string) (found bool) {
	flag.Visit(func(f *flag.Flag) { found = found || f.Name == name })
	return found
}
