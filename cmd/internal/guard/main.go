package guard

import (
	"context"
	"os"
)

// guardName is argv[0] of the guard and its name in the process list. It does not contain "holdlock", so that
// `pkill -9 holdlock` leaves alive the one process that can clean up after it.
const guardName = "lease-guard"

// exitUsage is EX_USAGE of sysexits.h.
const exitUsage = 64

// Main turns the process into a guard if it was started as one by Start, and then does not return. In every other process
// it returns at once. It must come first in main, before anything that costs time, reads standard input or writes to the
// terminal.
//
// onOrphaned is called in the guard, at most once, with the Payload of the Config, if holdlock has died and all work is
// dead: it may give the lease back, so that the next holder need not wait until it expires. It is not called if a process
// could not be killed. ctx ends after ten seconds; the guard then exits. onOrphaned should write to no terminal: the user's
// shell has it back by then. It may be nil.
func Main(onOrphaned func(ctx context.Context, payload []byte)) {
	if len(os.Args) > 0 && os.Args[0] == guardName {
		os.Exit(runGuard(onOrphaned))
	}
}
