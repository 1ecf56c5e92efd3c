//go:build !linux

package sqlitehold

import (
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/bootclock"
)

const (
	storeClock   = driver.WallClock
	bootIDNeeded = false
)

func bootName() string { return bootclock.ID() }

// mountedAlone is not known of other systems.
func mountedAlone(string) (alone, known bool) { return false, false }

func netNamespace() string { return "" }

// Other systems are not asked for the kind of their file systems.
var statFileSystem func(path string) (fileSystem, error)
