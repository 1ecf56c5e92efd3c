//go:build unix

package guard

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdlock/holdlock/cmd/internal/proctree"
	"github.com/holdlock/holdlock/internal/bootclock"
)

const (
	rescuePause  = 100 * time.Millisecond // between attempts to do the guard's work for it
	guardTimeout = 10 * time.Second       // from when all should be dead until a guard that runs is killed, too
)

// A supervision follows a guard process to its end. One goroutine uses it.
type supervision struct {
	*Guard
	work     *tree                      // what is below the guard; nil until it has said its number
	stuck    bool                       // the guard has said that processes refuse to die: it is alive and goes on trying
	finished bool                       // the guard has said how all ended
	rescued  Reason                     // why this process had to end the work; empty if it had not
	known    bool                       // whether the command was started: Guard.started is closed
	hit      map[proctree.Identity]bool // what this process has sent KILL
}

// supervise follows the guard process, does its work if it fails to, and makes the Result.
func (g *Guard) supervise(pipe *os.File, timer *bootTimer) {
	defer close(g.done)
	defer timer.Stop()
	defer pipe.Close()
	events := make(chan event)
	go readMessages(pipe, events)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		g.waitGuard()
	}()
	s := &supervision{Guard: g, hit: make(map[proctree.Identity]bool)}
	for gone != nil {
		timer.Set(s.secondLine(bootclock.Now()))
		select {
		case e, ok := <-events:
			if ok {
				s.note(e)
			} else {
				events = nil
			}
		case <-gone:
			gone = nil
		case <-timer.C:
		case <-g.wake:
		}
	}
	if events != nil {
		for e := range events { // what it said last is still in the pipe
			s.note(e)
		}
	}
	g.mu.Lock()
	_ = g.requests.Close()
	g.requests = nil
	g.mu.Unlock()
	if !s.finished {
		s.adopt()
	} else if s.result.Ended == "" {
		s.result.Ended = s.rescued // before the guard got round to it
	}
	s.noteStart(0)
}

// waitGuard returns when the guard process has ended and its children have become ours.
func (g *Guard) waitGuard() {
	if !g.cfg.ReapOrphans {
		_, _ = g.proc.Wait()
		return
	}
	// One loop waits for the guard and for whatever else lands here, so nothing can take the guard's status away.
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, 0, nil)
		if pid == g.proc.Pid || err != nil && !errors.Is(err, unix.EINTR) {
			return
		}
		g.noteOrphan(pid, ws)
	}
}

// noteOrphan keeps the status of the command if that has become our child because the guard died.
func (g *Guard) noteOrphan(pid int, ws unix.WaitStatus) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if pid > 0 && pid == g.pid {
		g.orphan = statusOf(ws)
	}
}

// note takes in what the guard says.
func (s *supervision) note(e event) {
	r := &s.result
	switch {
	case e.Guard != 0:
		if work, err := s.own.below(e.Guard); err == nil {
			s.work = work
		}
	case e.Started != 0:
		s.noteStart(e.Started)
	case e.Failed != nil:
		r.Err = e.Failed.unpack()
		s.finished = true
		s.noteStart(0)
	case e.Exited != nil:
		r.Status = *e.Exited
	case e.Ending != "":
		r.Ended = e.Ending
		if s.cfg.OnEnding != nil {
			s.cfg.OnEnding(e.Ending)
		}
	case len(e.Stuck) > 0:
		s.stuck = true
		if s.cfg.OnStuck != nil {
			s.cfg.OnStuck(e.Stuck)
		}
	case e.Finished != nil:
		r.Leftovers, r.Killed, r.Unkillable = e.Finished.Leftovers, e.Finished.Killed, e.Finished.Unkillable
		s.finished = true
	}
}

// noteStart notes that the command runs, or, with 0, that it will not.
func (s *supervision) noteStart(pid int) {
	if s.known {
		return
	}
	s.known = true
	s.mu.Lock()
	s.pid = pid
	s.mu.Unlock()
	s.result.PID = pid
	s.own.started(pid)
	if s.work != nil {
		s.work.started(pid)
	}
	close(s.Guard.started)
}

// secondLine does the guard's work if that has not been done in time: the guard may be stopped, or hang. It returns when
// to look again.
func (s *supervision) secondLine(now time.Duration) time.Duration {
	s.mu.Lock()
	deadline, due, why := s.deadline, s.deadline, Deadline
	if s.killBy != 0 && s.killBy < due {
		due, why = s.killBy, Asked
	}
	s.mu.Unlock()
	switch {
	case now < due:
		return due
	case s.stuck && now < deadline:
		return deadline // the guard is at it, and the lease is still ours
	case s.finished:
		return now + guardTimeout // it only has to exit
	}
	if s.work != nil {
		hit, _ := s.work.kill()
		s.count(hit)
		if len(hit) > 0 && s.rescued == "" {
			s.rescued = why
		}
	}
	// A guard that is only slow, on a busy machine, has its time to report.
	if now >= due+guardTimeout || s.work != nil && s.work.rootStopped() {
		_ = s.proc.Kill() // what is left becomes ours
	}
	return now + rescuePause
}

// count notes what was sent KILL; the same process may be hit more than once before it is dead.
func (s *supervision) count(hit []proctree.Identity) {
	for _, id := range hit {
		s.hit[id] = true
	}
}

// adopt ends what a guard has left that died without finishing. All of it is below this process now.
func (s *supervision) adopt() {
	r := &s.result
	r.Ended = GuardLost
	if !s.known {
		r.Err = errors.New("the guard process died before it had started the command")
	}
	pause := minPause
	for until := bootclock.Now() + giveUp; ; {
		hit, _ := s.own.kill()
		s.count(hit)
		childless := s.reap()
		if childless || s.own.alive() == 0 {
			break
		}
		if bootclock.Now() >= until {
			r.Unkillable = s.own.survivors()
			break
		}
		time.Sleep(pause)
		pause = min(2*pause, maxPause)
	}
	s.reap()
	r.Killed = len(s.hit)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.orphan.Known && !r.Status.Known {
		r.Status = s.orphan
	}
}

// reap collects adopted children that have ended, the command among them, and reports whether there is no child at all.
func (s *supervision) reap() (childless bool) {
	if !s.cfg.ReapOrphans {
		return false // others here may wait for children of their own
	}
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, unix.WNOHANG, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return errors.Is(err, unix.ECHILD)
		case pid == 0:
			return false
		default:
			s.noteOrphan(pid, ws)
		}
	}
}
