package choosing

import (
	"time"

	"github.com/holdlock/holdlock"
)

// bounded are the settings of a lock that nobody has to release: what a crash leaves ends after TTL, and what hangs after MaxHold.
var bounded = holdlock.LockOptions{
	Purpose: "imports the orders of a shop", DoubleRun: holdlock.Costly,
	TTL:     15 * time.Second, // how soon a dead holder is noticed: no longer than the job may stand still
	MaxHold: 10 * time.Minute, // longer than the slowest run; then the work's context ends
	Wait:    time.Minute,      // longer than TTL, so that a run which follows a crash is not skipped
}
