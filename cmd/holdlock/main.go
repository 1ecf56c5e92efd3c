// Command holdlock runs a command under a lock.
package main

import (
	"github.com/alecthomas/kong"
	_ "golang.org/x/sys/unix"

	_ "github.com/holdlock/holdlock/driver"
	_ "github.com/holdlock/holdlock/sqlitehold"
)

func main() { _ = kong.Must }
