package sqlitehold

import (
	"errors"
	"time"

	"github.com/holdlock/holdlock/internal/bootclock"
)

// env is what a driver takes from the machine; tests put something else in its place.
type env struct {
	now  func() time.Duration // since boot, the same for all processes
	wall func() time.Time
	boot string // names the present boot; empty where the system does not tell
	net  string // names the network namespace of this process

	fileSystem func(path string) (fileSystem, error) // nil: not checked
	openBudget time.Duration                         // how long opening may wait for a locked file
}

func machine() (env, error) {
	e := env{
		now: bootclock.Now, wall: time.Now, boot: bootclock.ID(), net: netNamespace(),
		fileSystem: statFileSystem, openBudget: 5 * time.Second,
	}
	if e.boot == "" && bootIDNeeded {
		return env{}, errors.New("sqlitehold: cannot read /proc/sys/kernel/random/boot_id, so the terms of other processes " +
			"could not be told from those of an earlier boot; mount /proc")
	}
	return e, nil
}
