//go:build unix

package guard

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdlock/holdlock/cmd/internal/proctree"
	"github.com/holdlock/holdlock/internal/bootclock"
)

const (
	requestFD = 3 // the guard's ends of the two pipes
	eventFD   = 4

	orphanBudget = 10 * time.Second // for the function that gives the lease back
)

// runGuard is the guard's whole life. It returns the exit code, which nobody looks at but a user who has started the
// guard by hand.
func runGuard(onOrphaned func(context.Context, []byte)) int {
	if !isPipe(requestFD) || !isPipe(eventFD) {
		fmt.Fprintf(os.Stderr, "%s is started by `holdlock run` and does nothing by itself\n", guardName)
		return exitUsage
	}
	g := &guardian{requests: make(chan request, 16), hit: make(map[proctree.Identity]bool)}
	g.events = pipeEnd(eventFD, "events")
	go readMessages(pipeEnd(requestFD, "requests"), g.requests)
	first, ok := <-g.requests
	if !ok || first.Start == nil {
		return 1 // holdlock died before it could say what to start
	}
	if err := g.start(first.Start); err != nil {
		_ = g.send(event{Failed: pack(err)})
		return 0
	}
	g.loop()
	err := g.send(event{Finished: &finished{Leftovers: g.leftovers, Killed: len(g.hit), Unkillable: g.unkillable}})
	if errors.Is(err, syscall.EPIPE) {
		g.orphaned = true // holdlock has died in this very moment
	}
	if g.orphaned && len(g.unkillable) == 0 && onOrphaned != nil {
		ctx, cancel := context.WithTimeout(context.Background(), orphanBudget)
		defer cancel()
		done := make(chan struct{})
		go func() {
			defer close(done)
			onOrphaned(ctx, first.Start.Payload)
		}()
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
	return 0
}

func isPipe(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO
}

// pipeEnd returns a file that takes deadlines.
func pipeEnd(fd int, name string) *os.File {
	_ = unix.SetNonblock(fd, true)
	return os.NewFile(uintptr(fd), name)
}

// A guardian is the state of the guard process. One goroutine uses it.
type guardian struct {
	requests chan request // nil once holdlock is gone
	events   *os.File
	children chan os.Signal
	timer    *bootTimer
	board    *board
	tree     *tree
	plan     plan
	leave    bool

	command  int  // PID
	exited   bool // the command has ended and been reaped
	orphaned bool // holdlock is gone

	leftovers  int
	killSince  time.Duration // when KILL was first sent; 0 before
	nextKill   time.Duration
	killPause  time.Duration
	hit        map[proctree.Identity]bool
	stuck      bool // reported that processes refuse to die
	unkillable []Unkillable
}

// start prepares the guard and starts the command.
func (g *guardian) start(req *startRequest) *StartError {
	argv := toStrings(req.Argv)
	if err := g.prepare(req); err != nil {
		return &StartError{Kind: NotStarted, Command: argv[0], Err: err}
	}
	env := setenv(toStrings(req.Env), LeaseEnv, g.board.env)
	// The command lives no longer than the thread that starts it. This goroutine keeps it to the end. Not from the
	// beginning: preparing means many handshakes between goroutines, each slower from a locked thread.
	runtime.LockOSThread()
	pid, failed := startCommand(argv, env, string(req.Dir), attributes())
	if failed != nil {
		return failed
	}
	// A session of its own, so that no key of the terminal and no signal to holdlock's group reaches it. It must not be
	// another group of the same session: then the command's exit would make holdlock's group an orphan in the eyes of the
	// kernel, which sends HUP to everyone in it, a calling script too, if one of them is stopped.
	_, _ = unix.Setsid()
	g.command = pid
	g.tree.started(pid)
	_ = g.send(event{Started: pid})
	return nil
}

func (g *guardian) prepare(req *startRequest) error {
	if err := closeOnExec(); err != nil {
		return fmt.Errorf("cannot keep open files from the command: %w", err)
	}
	if err := shrugOff(); err != nil {
		return err
	}
	nameProcess(guardName)
	g.children = make(chan os.Signal, 1)
	signal.Notify(g.children, syscall.SIGCHLD)
	var err error
	if g.tree, err = ownTree(); err != nil {
		return err
	}
	if g.timer, err = newBootTimer(); err != nil {
		return err
	}
	_ = g.send(event{Guard: g.tree.number()})
	g.board = openBoard()
	g.plan = plan{grace: req.Grace, settle: req.Settle, deadline: req.Deadline}
	g.leave = req.Leave
	g.board.set(g.plan.termDue())
	return nil
}

// send reports an event. If nobody is there to read it, nothing else changes.
func (g *guardian) send(e event) error { return writeNow(g.events, e) }

// loop runs until no descendant is left, or none that can be killed.
func (g *guardian) loop() {
	for {
		childless := g.reap()
		if g.exited && (g.tree.empty(childless) || g.leave && g.plan.reason == "") {
			return
		}
		next, done := g.act(bootclock.Now())
		if done {
			return
		}
		g.timer.Set(next)
		select {
		case <-g.children:
		case <-g.timer.C:
		case req, ok := <-g.requests:
			if ok {
				g.serve(req)
				break
			}
			g.requests = nil
			g.orphaned = true
			g.end(Orphaned)
		}
	}
}

// reap collects every child that has ended, adopted ones too, and reports whether there is no child at all.
func (g *guardian) reap() (childless bool) {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return errors.Is(err, unix.ECHILD)
		case pid == 0:
			return false
		case pid == g.command && !g.exited:
			g.exited = true
			g.plan.exited, g.plan.exitAt = true, bootclock.Now()
			st := statusOf(ws)
			_ = g.send(event{Exited: &st})
		}
	}
}

// statusOf translates the wait status of a process that has ended.
func statusOf(ws unix.WaitStatus) Status {
	if ws.Signaled() {
		return Status{Known: true, Signal: ws.Signal()}
	}
	return Status{Known: true, Code: ws.ExitStatus()}
}

// act does what the plan asks for and returns when to look again. done says that the guard has to give up.
func (g *guardian) act(now time.Duration) (next time.Duration, done bool) {
	step, why, at := g.plan.next(now)
	if step == term {
		g.end(why)
		step, _, at = g.plan.next(now)
	}
	if step == wait {
		return at, false
	}
	if g.killSince == 0 {
		g.killSince = now
	}
	if now >= g.nextKill {
		hit, _ := g.tree.kill()
		for _, id := range hit {
			g.hit[id] = true
		}
		g.killPause = min(max(2*g.killPause, minPause), maxPause)
		g.nextKill = now + g.killPause
	}
	if now < g.killSince+patience {
		return g.nextKill, false
	}
	if !g.stuck {
		g.stuck = true
		_ = g.send(event{Stuck: g.survivors()})
	}
	if now >= max(g.plan.deadline, g.killSince+giveUp) {
		g.unkillable = g.survivors()
		return 0, true
	}
	return g.nextKill, false
}

// survivors describes what KILL has not ended. It is never empty.
func (g *guardian) survivors() []Unkillable {
	if list := g.tree.survivors(); len(list) > 0 {
		return list[:min(len(list), 20)]
	}
	return []Unkillable{{Why: "a child process that /proc does not show has not ended"}}
}

// serve does what holdlock asks.
func (g *guardian) serve(req request) {
	switch {
	case req.Deadline != 0:
		g.plan.renew(req.Deadline)
		if g.plan.reason == "" {
			g.board.set(g.plan.termDue())
		}
	case req.End:
		g.end(Asked)
	case req.Kill:
		g.plan.grace = 0
		g.end(Asked)
	case req.Signal != 0 && forTree(req.Signal):
		g.tree.signal(req.Signal)
		g.tree.signal(syscall.SIGCONT) // as in end
	case req.Signal != 0 && !g.exited:
		_ = unix.Kill(g.command, req.Signal)
	}
}

// forTree tells the signals that ask for an end, which all descendants get, from those that mean something to the command
// alone.
func forTree(sig syscall.Signal) bool {
	switch sig {
	case syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT:
		return true
	}
	return false
}

// end begins to end the work. Only the first call has an effect.
func (g *guardian) end(why Reason) {
	if g.plan.reason != "" {
		return
	}
	if why == Leftovers {
		g.leftovers = g.tree.alive()
	}
	g.board.set(0)
	g.plan.ended(why, bootclock.Now())
	if g.plan.grace > 0 {
		g.tree.signal(syscall.SIGTERM)
		g.tree.signal(syscall.SIGCONT) // those that are stopped act on TERM only now
	}
	_ = g.send(event{Ending: why})
}
