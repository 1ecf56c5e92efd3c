// Command holdlock runs a command while holding a lock, so that it does not run twice at the same time.
package main

import (
	"os"

	"github.com/holdlock/holdlock/cmd/internal/cli"
	"github.com/holdlock/holdlock/cmd/internal/guard"
)

func main() {
	guard.Main(cli.ReleaseOrphan) // does not return in the process that guards the command
	os.Exit(cli.Main(os.Args[1:], os.Stdout, os.Stderr))
}
