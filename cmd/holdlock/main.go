// Command holdlock runs a command while holding a lock, so that it does not run twice at the same time.
package main

import (
	"os"

	"github.com/holdlock/holdlock/cmd/internal/cli"
	"github.com/holdlock/holdlock/cmd/internal/guard"
	"github.com/holdlock/holdlock/cmd/lab/worker"
)

func main() {
	guard.Main(cli.ReleaseOrphan) // does not return in the process that guards the command
	worker.Main()                 // nor in a process that the lab experiments with
	os.Exit(cli.Main(os.Args[1:], os.Stdout, os.Stderr))
}
