//go:build unix

package guard

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/holdlock/holdlock/internal/bootclock"
)

// A Guard is a started command with its guard process, as seen from holdlock. All methods are safe for concurrent use.
// A process has at most one at a time.
type Guard struct {
	cfg  Config
	proc *os.Process // the guard
	own  *tree       // what will be below this process: the guard's orphans, should it die

	started chan struct{} // closed when the command runs, or never will
	done    chan struct{} // closed after result has been written
	wake    chan struct{} // tells supervise that deadline or killBy has changed

	mu       sync.Mutex    // guards what follows
	requests *os.File      // the pipe to the guard; nil when it has ended
	deadline time.Duration // the latest
	killBy   time.Duration // an earlier limit, from End or KillAll; 0 if there is none
	pid      int           // of the command
	orphan   Status        // of the command, if it became our child

	result Result // of supervise until done is closed, then constant
}

// Start starts a guard and asks it to start the command. It does not wait for that: if the command cannot be started the
// Result says so. An error means that there is no guard and nothing has run. The calling process must have called Main.
//
// The calling process becomes a child subreaper, for good.
func Start(cfg Config) (*Guard, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	own, err := ownTree()
	if err != nil {
		return nil, fmt.Errorf("cannot guard a command here: %w", err)
	}
	proc, requests, events, err := spawn()
	if err != nil {
		return nil, fmt.Errorf("cannot start the guard process: %w", err)
	}
	g := &Guard{
		cfg: cfg, proc: proc, own: own, requests: requests,
		started: make(chan struct{}), done: make(chan struct{}), wake: make(chan struct{}, 1),
		deadline: cfg.Deadline,
	}
	timer, err := newBootTimer()
	if err == nil {
		_ = requests.SetWriteDeadline(time.Now().Add(cfg.Deadline - bootclock.Now()))
		err = writeMessage(requests, request{Start: &startRequest{
			Argv: toBytes(cfg.Argv), Env: toBytes(cfg.Env), Dir: []byte(cfg.Dir),
			Deadline: cfg.Deadline, Grace: cfg.Grace, Settle: cfg.settle(), Leave: cfg.LeaveBackground, Payload: cfg.Payload,
		}})
		_ = requests.SetWriteDeadline(time.Time{})
	}
	if err != nil {
		if timer != nil {
			timer.Stop()
		}
		_ = proc.Kill()
		_, _ = proc.Wait()
		_ = requests.Close()
		_ = events.Close()
		return nil, fmt.Errorf("cannot tell the guard process what to start: %w", err)
	}
	go g.supervise(events, timer)
	return g, nil
}

// spawn starts the guard process with two pipes.
func spawn() (proc *os.Process, requests, events *os.File, err error) {
	requestsEnd, requests, err := os.Pipe()
	if err != nil {
		return nil, nil, nil, err
	}
	defer requestsEnd.Close()
	events, eventsEnd, err := os.Pipe()
	if err != nil {
		_ = requests.Close()
		return nil, nil, nil, err
	}
	defer eventsEnd.Close()
	exe, err := executablePath()
	if err == nil {
		// The guard starts in our process group, so that the command inherits it, and leaves it then; see guardian.start.
		proc, err = os.StartProcess(exe, []string{guardName, "of", strconv.Itoa(os.Getpid())}, &os.ProcAttr{
			Files: []*os.File{os.Stdin, os.Stdout, os.Stderr, requestsEnd, eventsEnd},
		})
	}
	if err != nil {
		_ = requests.Close()
		_ = events.Close()
		return nil, nil, nil, err
	}
	return proc, requests, events, nil
}

// Started is closed when the command runs, or when it is certain that it never will.
func (g *Guard) Started() <-chan struct{} { return g.started }

// PID waits for Started and returns the process number of the command, or 0 if it never ran.
func (g *Guard) PID() int {
	<-g.started // a 0 that is taken for a process number means the caller's own group
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.pid
}

// Done is closed when all work has ended.
func (g *Guard) Done() <-chan struct{} { return g.done }

// Wait returns when all work has ended, and how. The lease must be renewed until then.
func (g *Guard) Wait() Result {
	<-g.done
	return g.result
}

// SetDeadline moves the deadline to later, after the lease was renewed. An earlier one is ignored: to end the work, call
// End. If the guard does not take the message (it is stopped), it goes on with an earlier deadline, which is safe.
func (g *Guard) SetDeadline(deadline time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if deadline <= g.deadline {
		return
	}
	g.deadline = deadline
	g.nudge()
	_ = g.send(request{Deadline: deadline})
}

// Signal passes sig on: TERM, INT, HUP and QUIT to all descendants, any other to the command alone. The error wraps
// os.ErrProcessDone if all has ended.
func (g *Guard) Signal(sig syscall.Signal) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if err := g.send(request{Signal: sig}); err != nil {
		return fmt.Errorf("cannot pass signal %v on to the command: %w", sig, err)
	}
	return nil
}

// End ends the work: TERM now, KILL after the grace, but never after the deadline. If the guard does not do it, this
// process does. It does not wait.
func (g *Guard) End() {
	// A moment more than the guard gets, so that we do not run in each other's way.
	g.endBy(bootclock.Now()+g.cfg.Grace+maxLead, request{End: true})
}

// KillAll kills the work now, without TERM and without waiting for the guard. It does not wait for the end.
func (g *Guard) KillAll() { g.endBy(bootclock.Now(), request{Kill: true}) }

func (g *Guard) endBy(at time.Duration, req request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.killBy == 0 || at < g.killBy {
		g.killBy = at
	}
	g.nudge()
	_ = g.send(req)
}

// send needs g.mu.
func (g *Guard) send(req request) error {
	if g.requests == nil {
		return os.ErrProcessDone
	}
	err := writeNow(g.requests, req)
	if errors.Is(err, syscall.EPIPE) {
		return os.ErrProcessDone
	}
	return err
}

func (g *Guard) nudge() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}
