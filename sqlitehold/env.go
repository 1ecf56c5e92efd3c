package sqlitehold

import (
	"errors"
	"time"

	"github.com/holdlock/holdlock/internal/bootclock"
)

// someBoot stands for a boot without a name that all processes of the machine know it by. systemd-nspawn and LXC give each
// container a boot_id of its own, so that two ids that differ are no proof of a reboot there. To take one for proof would
// give two processes one key.
//
// Then the clock must prove it. Every row says at which time since boot it was written, and all processes read the same
// clock, which only goes forward. So a row that was written at a time that has not come yet is of an earlier boot; any other
// one may be of this one, and counts until its expiry. If it is of an earlier one after all, that is a wait in vain, and a bounded
// one: its time of writing is over, so at most the time that it was written for is left of it.
//
// The clock must be read after the row. Else a row that was written in between would look like one of an earlier boot.
const someBoot = "?"

// env is what a driver takes from the machine; tests put something else in its place.
type env struct {
	now  func() time.Duration // since boot, the same for all processes
	wall func() time.Time
	boot string // names the present boot; someBoot if the name it has here is not the machine's; empty where the system has none
	net  string // names the network namespace of this process

	fileSystem func(path string) (fileSystem, error) // nil: not checked
	openBudget time.Duration                         // how long opening may wait for a locked file
}

func machine() (env, error) {
	e := env{
		now: bootclock.Now, wall: time.Now, boot: bootName(), net: netNamespace(),
		fileSystem: statFileSystem, openBudget: 5 * time.Second,
	}
	if e.boot == "" && bootIDNeeded {
		return env{}, errors.New("sqlitehold: cannot read /proc/sys/kernel/random/boot_id, so the terms of other processes " +
			"could not be told from those of an earlier boot; mount /proc")
	}
	return e, nil
}

// sameBoot says whether r may be of the present boot. It reads the clock, so r must have been read before.
func (e *env) sameBoot(r *record) bool {
	if r.boot != someBoot && e.boot != someBoot {
		return r.boot == e.boot
	}
	return r.written <= int64(e.now())
}

// unsureFor is for how long a key stays taken at most by a row of which nothing but the wall clock says that it is of an earlier boot.
const unsureFor = time.Hour

// ends returns when r ends at the latest. A row that a program of layout 1 or 2 has made does not say at which time since boot, and its
// expiry may be of an earlier one, in which the machine was up for months. Then there is only the wall clock: if r was written before the
// machine was booted it is of an earlier boot, or the clock has been set since. So r does not end at once: whoever is alive renews it
// within unsureFor, and has it for as long as that again.
func (e *env) ends(r *record) int64 {
	wall := e.wall().UnixMicro() // first: if it stands still in between, the boot looks earlier than it was
	now := int64(e.now())
	if e.boot != someBoot || r.written != 0 || r.used >= wall-now/1000 {
		return r.expiry
	}
	return min(r.expiry, now+int64(unsureFor))
}

// stands says whether the key of r is taken at the moment now: until its expiry, or a reboot.
func (e *env) stands(r *record, now int64) bool { return r.expiry > now && e.sameBoot(r) }
