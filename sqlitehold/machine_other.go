//go:build !linux

package sqlitehold

import "github.com/holdlock/holdlock/driver"

const (
	storeClock   = driver.WallClock
	bootIDNeeded = false
)

func netNamespace() string { return "" }

// Other systems are not asked for the kind of their file systems.
var statFileSystem func(path string) (fileSystem, error)
