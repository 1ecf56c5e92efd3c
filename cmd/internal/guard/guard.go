package guard

import (
	"errors"
	"fmt"
	"time"
)

// LeaseEnv is the environment variable of the command that Remaining reads.
const LeaseEnv = "HOLDLOCK_LEASE"

// Config is what Start needs to know.
type Config struct {
	Argv []string // the command and its arguments; at least one
	Env  []string // its environment; LeaseEnv is set by the guard
	Dir  string   // its working directory; empty is the present one

	// Deadline is the moment at which the command and all its descendants must be dead, by bootclock.Now. Move it with
	// SetDeadline at each renewal of the lease.
	Deadline time.Duration

	// Grace is the time between TERM and KILL. Zero kills at once.
	Grace time.Duration

	// Settle is how long what the command leaves behind may take to end by itself, before it is sent TERM. Zero means a
	// quarter of Grace, at most 250 ms.
	Settle time.Duration

	// LeaveBackground leaves alone what the command has started and left behind when it ends by itself.
	LeaveBackground bool

	// Payload goes to the function given to Main if holdlock dies first. It travels through a pipe and shows neither in
	// the arguments nor in the environment of any process.
	Payload []byte

	// ReapOrphans says that this process waits for no child of its own besides the guard, so that all others which end
	// are foreign and may be reaped. The command line sets it; it matters for process 1 of a container.
	ReapOrphans bool

	// OnEnding, if not nil, is called once, when the guard begins to end the work. OnStuck, if not nil, is called when
	// processes have refused to die for a second. Both are called on the goroutine that watches the guard, so they must return soon.
	OnEnding func(Reason)
	OnStuck  func([]Unkillable)
}

func (c *Config) settle() time.Duration {
	if c.Settle > 0 {
		return c.Settle
	}
	return min(c.Grace/4, maxSettle)
}

func (c *Config) check() error {
	switch {
	case len(c.Argv) == 0:
		return errors.New("cannot start a command: none is given")
	case c.Deadline <= 0:
		return errors.New("cannot start a command without a deadline: take it from the lease")
	case c.Grace < 0, c.Settle < 0:
		return fmt.Errorf("cannot start a command with %v between TERM and KILL and %v before TERM: neither may be negative", c.Grace, c.Settle)
	}
	return nil
}

// A Reason says why work was ended.
type Reason string

// The reasons. The empty Reason means that all work ended by itself.
const (
	Deadline  Reason = "deadline"   // the lease was not renewed in time
	Asked     Reason = "asked"      // End or KillAll was called
	Orphaned  Reason = "orphaned"   // holdlock died; seen by the guard only
	Leftovers Reason = "leftovers"  // the command had ended by itself; what it left behind was ended
	GuardLost Reason = "guard lost" // the guard was killed, stopped, or hung
)

// An Unkillable process is, or may be, alive after it should have died.
type Unkillable struct {
	PID  int    `json:"pid"` // as /proc numbers it; 0 if it cannot be seen
	Name string `json:"name,omitempty"`
	Why  string `json:"why"`
}

// String returns "PID (NAME): WHY".
func (u Unkillable) String() string { return fmt.Sprintf("%d (%s): %s", u.PID, u.Name, u.Why) }

// A Result is how the command and its descendants ended.
type Result struct {
	PID int // of the command; 0 if it never ran

	// Err is a *StartError if the command could not be started. Other errors mean that the guard did not report an end:
	// the work is dead all the same, unless Unkillable says otherwise.
	Err error

	Status Status // of the command; Status.Known is false if it never ran or nobody saw it end
	Ended  Reason // why the work was ended; empty if it ended by itself

	Leftovers  int          // descendants that were alive when the command had ended and were ended for that
	Killed     int          // processes that had to be sent KILL
	Unkillable []Unkillable // not empty: work may be alive, so do not release the lease; let it expire
}

// ExitCode is the exit code that a shell would give: see Status.ExitCode and StartError.ExitCode. It is 1 if the status
// of the command is not known.
func (r Result) ExitCode() int {
	var s *StartError
	if errors.As(r.Err, &s) {
		return s.ExitCode()
	}
	if !r.Status.Known {
		return 1
	}
	return r.Status.ExitCode()
}
