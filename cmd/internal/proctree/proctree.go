package proctree

import "fmt"

// A Process is one process as /proc described it at some moment.
type Process struct {
	PID  int    // as /proc numbers it
	PPID int    // its parent at that moment
	Name string // the kernel's name of it, at most 15 bytes; for people

	// Zombie says that it has ended and only waits for its parent to take notice.
	Zombie bool

	// Stopped says that a signal or a tracer has stopped it.
	Stopped bool

	start uint64 // in clock ticks since boot; tells it from a later process with the same number
}

// String returns "PID (NAME)".
func (p Process) String() string { return fmt.Sprintf("%d (%s)", p.PID, p.Name) }

// Is reports whether p and q are the same process, whatever has become of it in between.
func (p Process) Is(q Process) bool { return p.Identity() == q.Identity() }

// An Identity names one process for as long as the machine is up. It can be a map key.
type Identity struct {
	pid   int
	start uint64
}

// Identity returns what p has in common with later sights of the same process, and with nothing else.
func (p Process) Identity() Identity { return Identity{p.PID, p.start} }

// A Failure is a process that could not be signalled, and the reason.
type Failure struct {
	Process Process
	Err     error
}

// A Sweep is what one Kill did.
type Sweep struct {
	Killed []Process // were alive, and have been sent SIGKILL
	Failed []Failure // are alive, and refused it
}

// A SkipFunc tells which processes are left alone, with everything below them. A nil SkipFunc skips none.
type SkipFunc func(Process) bool
