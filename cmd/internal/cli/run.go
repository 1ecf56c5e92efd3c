package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/cmd/internal/guard"
	"github.com/holdlock/holdlock/driver"
	"github.com/holdlock/holdlock/internal/bootclock"
	"github.com/holdlock/holdlock/internal/unused"
	"github.com/holdlock/holdlock/memhold"
	"github.com/holdlock/holdlock/once"
)

type runCmd struct {
	Lock            string         `arg:"" help:"LOCK or LOCK/KEY, split at the first slash. The command follows after --."`
	Wait            span           `help:"How long to wait for the lock, or forever." default:"0s" placeholder:"DURATION"`
	TTL             time.Duration  `name:"ttl" help:"How soon the lock of a dead machine becomes free. It is renewed while the command runs." default:"30s"`
	MaxHold         span           `help:"End the command when it has held the lock for so long." default:"forever" placeholder:"DURATION"`
	MinHold         time.Duration  `help:"Keep the lock at least so long, however short the command." default:"0s"`
	Grace           *time.Duration `help:"Time between TERM and KILL. Default: a quarter of --ttl, at most 5s." placeholder:"DURATION"`
	Purpose         string         `help:"What the lock protects, for people." placeholder:"TEXT"`
	DoubleRun       string         `help:"What a double run costs: harmless, costly or harmful. Reviews ask for it; harmful is refused where the store cannot protect it." enum:"undeclared,harmless,costly,harmful" default:"undeclared" placeholder:"WORD"`
	Guard           string         `help:"How the resource protects itself: fenced (it compares HOLDLOCK_TOKEN) or idempotency-key." enum:"none,fenced,idempotency-key" default:"none" placeholder:"WORD"`
	AcceptRisk      string         `help:"Why a harmful lock is used where the store cannot protect it. Reviews show it." placeholder:"TEXT"`
	HeldExitCode    int            `help:"Exit code when someone else holds the lock." default:"75" placeholder:"N"`
	Quiet           bool           `short:"q" help:"Say nothing when someone else holds the lock."`
	LeaveBackground bool           `help:"Leave alone what the command has started and left running."`
	Restart         bool           `help:"After a loss, wait for the lock and start the command again."`

	onceFlags `embed:""`
}

// check refuses what cannot work before anything is touched.
func (r *runCmd) check(g *globals) error {
	switch {
	case !g.separated:
		return usage("put the command after --, as in: holdlock run LOCK -- COMMAND ARG")
	case len(g.argv) == 0:
		return usage("there is no command after --")
	case r.HeldExitCode < 0 || r.HeldExitCode > 255:
		return usage(fmt.Sprintf("--held-exit-code %d is not allowed: 0 to 255", r.HeldExitCode))
	case r.TTL == 0: // in a program 0 is the default; on a command line it was written
		return usage("--ttl 0s is not allowed: at least 100ms")
	case r.MaxHold == 0:
		return usage("--max-hold 0s is not allowed: at least --ttl, or forever")
	case r.Grace != nil && (*r.Grace < 0 || *r.Grace > r.TTL/2):
		return usage(fmt.Sprintf("--grace %s is not allowed: between 0 and half of --ttl", *r.Grace))
	}
	if err := guard.Find(g.argv[0], os.Environ()); err != nil {
		return &exitError{code: exitCodeOf(err), kind: "command", err: err}
	}
	// The memory store asks for the least, so what it refuses is refused everywhere: no file is made for a bad flag.
	dry, err := memhold.Open(nil)
	if err != nil {
		return err
	}
	_, err = r.declare(dry)
	return errors.Join(err, dry.Shutdown(context.Background()))
}

// grace is the time between TERM and KILL.
func (r *runCmd) grace() time.Duration {
	if r.Grace != nil {
		return *r.Grace
	}
	return min(5*time.Second, r.TTL/4)
}

var (
	doubleRuns = map[string]holdlock.DoubleRun{"harmless": holdlock.Harmless, "costly": holdlock.Costly, "harmful": holdlock.Harmful}
	guards     = map[string]holdlock.Guard{"fenced": holdlock.Fenced, "idempotency-key": holdlock.IdempotencyKey}
)

// declare makes the lock that the flags describe.
func (r *runCmd) declare(c *holdlock.Client) (*holdlock.Lock, error) {
	name, key, err := holdlock.ParseName(r.Lock)
	if err != nil {
		return nil, err
	}
	l, err := c.NewLock(name, &holdlock.LockOptions{
		TTL: r.TTL, MaxHold: time.Duration(r.MaxHold), MinHold: r.MinHold, Wait: time.Duration(r.Wait), Purpose: r.Purpose,
		DoubleRun: doubleRuns[r.DoubleRun], Guard: guards[r.Guard], AcceptRisk: r.AcceptRisk,
	})
	if err != nil || key == "" {
		return l, err
	}
	return l.For(key), nil
}

// restartEvery is how long after the start of a run that was lost the next one may begin, for one that is lost at once each time.
const restartEvery = time.Second

// Run holds the lock for the life of the command.
func (r *runCmd) Run(g *globals) error {
	if err := r.check(g); err != nil {
		return err
	}
	job, err := r.options()
	if err != nil {
		return err
	}
	s := &session{g: g, job: job, r: r, renewed: make(chan struct{}, 1), signals: make(chan os.Signal, 16), refused: make(chan struct{}, 1)}
	signal.Notify(s.signals, guard.Signals()...)
	defer signal.Stop(s.signals)
	apart, err := opened(s, g.openLedger)
	if apart != nil {
		defer apart.Close()
	}
	book, _ := driver.As[driver.Ledger](apart)
	if code, kind := classify(err); err != nil && (code == exitUsage || kind == "signal") {
		return err
	} else if err != nil { // no lock depends on it
		book = away{err}
	}
	s.counts = &counts{Recorder: g.recorder(book), tidy: g.tidySpool, apart: g.Ledger != "", lost: g.uncounted}
	patience := s.patience(time.Duration(r.Wait))
	client, err := patience.open()
	if err != nil {
		r.notRun(g, err)
		return err
	}
	defer func() {
		patience := time.Second
		if !s.again { // nothing was run, and the counts and the closing take their time too
			patience /= 3
		}
		ctx, cancel := context.WithTimeout(context.Background(), min(patience, g.Timeout))
		defer cancel()
		_ = client.Shutdown(ctx) // what is left is left to expire, and was told
	}()
	if s.lock, err = r.declare(client); err != nil {
		return err
	}
	s.client = client
	for {
		began := time.Now()
		err := s.once(patience)
		if !r.Restart || !errors.Is(err, holdlock.ErrLost) {
			return err
		}
		g.say("restart", err.Error()+"; waiting for the lock to start the command again", nil)
		if err := s.sleep(restartEvery - time.Since(began)); err != nil {
			return err
		}
		patience = s.patience(holdlock.Forever)
	}
}

// session is one holdlock run.
type session struct {
	g       *globals
	r       *runCmd
	client  *holdlock.Client
	lock    *holdlock.Lock
	job     *once.Options // of the job that is to run once, or nil
	renewed chan struct{} // the lease has a new deadline
	signals chan os.Signal
	stop    os.Signal             // asked the command to end, by way of us, or nil
	refused chan struct{}         // the store does not let us wait
	failing atomic.Bool           // renewals fail, and this was told
	ran     atomic.Uint64         // the token of the last term of this run that was lost, and whose command has been ended; 0 if there is none
	kept    atomic.Pointer[error] // why the lock could not be given back at once
	counts  *counts
	again   bool // the command has run before, see runCmd.Restart
}

// Observe implements holdlock.Observer.
func (s *session) Observe(e holdlock.Event) {
	s.observeJob(e)
	switch e.Kind {
	case holdlock.Unreleased:
		if err := s.kept.Load(); err != nil && e.Abandoned {
			s.g.say("unreleased", fmt.Sprintf("lock %s could not be given back and stays taken for up to %s: %v", lockName(e.Name, e.Key), s.r.TTL, *err), nil)
		}
	case holdlock.Renewed:
		s.failing.Store(false)
		select {
		case s.renewed <- struct{}{}:
		default:
		}
	case holdlock.RenewFailed:
		if errors.Is(e.Err, driver.ErrGone) || errors.Is(e.Err, driver.ErrBroken) {
			return // an answer, after which nothing is tried again; the loss is told at the end
		}
		if !s.failing.Swap(true) {
			s.g.say("renew-failed", fmt.Sprintf("lock %s could not be renewed and is tried again: %v", lockName(e.Name, e.Key), e.Err), nil)
		}
	case holdlock.WaitFailing:
		if lasts(e.Err) || errors.Is(e.Err, holdlock.ErrDamaged) {
			select {
			case s.refused <- struct{}{}:
			default:
			}
			return // the wait ends, and says why
		}
		s.g.say("wait-failing", fmt.Sprintf("lock %s is still waited for, and the store fails: %v", lockName(e.Name, e.Key), e.Err), nil)
	case holdlock.Lapsed:
		if ours := s.ran.Load(); e.Prior != nil && ours != 0 && uint64(e.Prior.Token) == ours {
			s.g.say("lapsed", fmt.Sprintf("the last holder of lock %s was this run (token %d, %s), whose command was ended when the lock was lost",
				lockName(e.Name, e.Key), ours, e.Ending), nil)
			return
		}
		text := fmt.Sprintf("the last holder of lock %s never gave it back (%s); its work may have overlapped with this run",
			lockName(e.Name, e.Key), e.Ending)
		if e.Prior != nil {
			text = fmt.Sprintf("the last holder of lock %s, %s (token %d), never gave it back (%s); its work may have overlapped with this run",
				lockName(e.Name, e.Key), who(e.Prior.Holder), e.Prior.Token, e.Ending)
		}
		s.g.say("lapsed", text, nil)
	}
}

// once gets the lock, runs the command to its end, and gives the lock back.
func (s *session) once(p *patience) error {
	lease, err := p.acquire()
	if err != nil {
		if errors.Is(err, holdlock.ErrHeld) {
			s.told(err)
			return &exitError{code: s.r.HeldExitCode, kind: "held", silent: true, err: err}
		}
		return s.answered(err)
	}
	res, err := s.work(lease)
	if err != nil {
		_ = s.finish(lease, guard.Result{Err: &guard.StartError{Err: err}})
		return err
	}
	if len(res.Unkillable) > 0 {
		// Work may be alive: the lock is not given back but left to expire.
		s.g.say("unkillable", fmt.Sprintf("lock %s is left to expire, because the command's processes could not be ended: %v",
			lockName(s.lock.Name(), s.lock.Key()), res.Unkillable), nil)
		return s.ended(res, lease.Err())
	}
	s.ran.Store(uint64(lease.Token()))
	s.again = true
	if lease.Err() == nil {
		s.counts.cutOff(res.Ended, s.failing.Load())
	}
	switch err := s.finish(lease, res); {
	case errors.Is(err, holdlock.ErrLost):
		return s.ended(res, err)
	case err != nil:
		s.kept.Store(&err) // and is given back in the background, unless we hear that it was not
	}
	return s.ended(res, nil)
}

// ending are the signals that end a wait for the lock, as they would end a command, and ask one that runs to end.
var ending = []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT}

func (s *session) told(err error) {
	if !s.r.Quiet {
		s.g.say("held", "skipped: "+err.Error(), heldFields(err))
	}
}

// errWaitRefused is the end of a wait by what the store has answered, which is told before it.
var errWaitRefused = errors.New("somebody has to do something about that first")

// acquire waits for the lock. A signal that would end the command ends the wait, and so does a store that does not let us.
func (s *session) acquire(wait time.Duration) (*holdlock.Lease, error) {
	ctx, end := context.WithCancelCause(context.Background())
	cancel := func() { end(nil) }
	defer cancel()
	select {
	case <-s.refused: // of an earlier wait
	default:
	}
	type answer struct {
		lease *holdlock.Lease
		err   error
	}
	got := make(chan answer, 1)
	go func() {
		var a answer
		switch {
		case wait == 0:
			a.lease, a.err = s.get(ctx, 0)
		case s.heldAroundUs(ctx): // waiting would be for ever
			a.lease, a.err = s.get(ctx, 0)
			if errors.Is(a.err, holdlock.ErrHeld) {
				a.err = fmt.Errorf("%w; that is the holdlock around this one: a lock is not re-entrant", a.err)
			}
		case wait == holdlock.Forever:
			a.lease, a.err = s.get(ctx, wait)
		default: // one attempt in all: asking first and then waiting would count as two
			ctx, cancel := context.WithTimeoutCause(ctx, wait, waitOver(s.r.Wait))
			defer cancel()
			a.lease, a.err = s.get(ctx, holdlock.Forever)
		}
		got <- a
	}()
	for {
		select {
		case a := <-got:
			return a.lease, a.err
		case <-s.refused:
			end(errWaitRefused)
		case sig := <-s.signals:
			n, ok := sig.(syscall.Signal)
			if !ok || !slices.Contains(ending, n) {
				continue
			}
			cancel()
			if a := <-got; a.err == nil { // it was ours a moment before that
				_ = a.lease.Release(unused.Context(context.Background()))
			}
			return nil, s.endedBy(n)
		}
	}
}

// heldAroundUs reports whether the lock is held by the holdlock run inside which this one runs. Only there is the store asked.
func (s *session) heldAroundUs(ctx context.Context) bool {
	if os.Getenv("HOLDLOCK_LOCK") != s.lock.Name() || os.Getenv("HOLDLOCK_KEY") != s.lock.Key() {
		return false
	}
	info, held, err := s.client.Inspect(ctx, s.lock.Name(), s.lock.Key())
	return err == nil && held && os.Getenv("HOLDLOCK_TOKEN") == strconv.FormatUint(uint64(info.Token), 10)
}

// work runs the command under the guard, which is told each new deadline.
func (s *session) work(lease *holdlock.Lease) (guard.Result, error) {
	payload, err := orphanPayload(s.g, lease, s.r.MinHold)
	if err != nil {
		return guard.Result{}, err
	}
	g, err := guard.Start(guard.Config{
		Argv: s.g.argv, Env: environ(s.lock, lease), Deadline: deadline(lease), Grace: s.r.grace(),
		LeaveBackground: s.r.LeaveBackground, Payload: payload, ReapOrphans: true,
		OnStuck: func(u []guard.Unkillable) {
			s.g.say("stuck", fmt.Sprintf("still trying to end %v; the lock is kept meanwhile", u), nil)
		},
	})
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return guard.Result{}, &exitError{code: exitLost, kind: "lost", err: lostError{fmt.Sprintf(
			"lock %s ran out before the command could be started: this machine is too busy for --ttl %s", lockName(lease.Name(), lease.Key()), s.r.TTL)}}
	}
	if err != nil {
		return guard.Result{}, &exitError{code: exitCodeOf(err), kind: "command", err: err}
	}
	var maxHold <-chan time.Time
	if s.r.MaxHold != span(holdlock.Forever) {
		t := time.NewTimer(time.Duration(s.r.MaxHold) - s.r.grace())
		defer t.Stop()
		maxHold = t.C
	}
	lost := lease.Done()
	s.stop = nil
	for {
		select {
		case <-g.Done():
			// Whoever stops a group of processes has told the command as well, and that may have ended before we hear of it.
			for {
				select {
				case sig := <-s.signals:
					s.stopping(sig)
					continue
				default:
				}
				return g.Wait(), nil
			}
		case <-s.renewed:
			g.SetDeadline(deadline(lease))
		case sig := <-s.signals:
			s.stopping(sig)
			if _, err := g.Forward(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
				s.g.say("signal", fmt.Sprintf("signal %s could not be passed on: %v", sig, err), nil)
			}
		case <-maxHold:
			s.g.say("max-hold", fmt.Sprintf("lock %s reaches --max-hold %s; ending the command",
				lockName(s.lock.Name(), s.lock.Key()), time.Duration(s.r.MaxHold)), nil)
			g.End()
		case <-lost:
			lost = nil
			if s.keptUntilExpiry(lease) {
				g.End()
			} else {
				g.KillAll()
			}
		}
	}
}

// stopping notes a signal that asks the command to end. Some commands end with 0 then, their work done or not.
func (s *session) stopping(sig os.Signal) {
	if n, ok := sig.(syscall.Signal); ok && slices.Contains(ending, n) && s.stop == nil {
		s.stop = sig
	}
}

// keptUntilExpiry reports whether a lost lease still keeps others out for the time that the guard knows of: an operator
// broke it with patience. In every other case the lock may be somebody else's by now.
func (s *session) keptUntilExpiry(lease *holdlock.Lease) bool {
	var lost *holdlock.LostError
	if !errors.As(lease.Err(), &lost) || lost.Reason != holdlock.LossBroken {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	info, held, err := s.client.Inspect(ctx, lease.Name(), lease.Key())
	return err == nil && held && info.Token == lease.Token()
}

// ended turns the end of the command into the end of holdlock.
func (s *session) ended(res guard.Result, lost error) error {
	name := lockName(s.lock.Name(), s.lock.Key())
	if res.Leftovers > 0 {
		s.g.say("leftovers", fmt.Sprintf("ended %s that the command had left running (--leave-background keeps them)",
			count(res.Leftovers, "process", "processes")), nil)
	}
	why := ""
	var loss *holdlock.LostError
	switch {
	case errors.As(lost, &loss):
		why = fmt.Sprintf("lock %s was lost: %s", name, loss.Reason.Explain())
		if loss.Err != nil {
			why += ": " + loss.Err.Error()
		}
	case res.Ended == guard.Deadline:
		why = fmt.Sprintf("lock %s could not be renewed in time", name)
	case res.Ended == guard.Asked:
		why = fmt.Sprintf("lock %s reached --max-hold", name)
	case res.Ended == guard.GuardLost:
		why = fmt.Sprintf("the guard of lock %s was killed or stopped, so the command was ended", name)
	}
	if why != "" {
		return &exitError{code: exitLost, kind: "lost", err: lostError{why + "; " + stopped(res)}}
	}
	if res.Err != nil {
		return &exitError{code: res.ExitCode(), kind: "command", err: res.Err}
	}
	code := res.ExitCode()
	if n, ok := s.stop.(syscall.Signal); ok && code == 0 && s.job != nil {
		// 0 would say that the job is done, and whoever has delivered it would forget it. The rest is told.
		return &exitError{code: 128 + int(n), kind: "exit", silent: true, err: fmt.Errorf("the command ended with 0 after it was asked to stop (signal %s)", n)}
	}
	if code != 0 { // the command has told its own story
		return &exitError{code: code, kind: "exit", silent: true, err: fmt.Errorf("the command ended with code %d", code)}
	}
	return nil
}

// stopped says how a command ended whose lock was lost.
func stopped(res guard.Result) string {
	if byItself := res.Ended == "" || res.Ended == guard.Leftovers; !byItself || !res.Status.Known {
		return "the command was stopped"
	}
	if res.Status.Signal != 0 {
		return fmt.Sprintf("the command had ended by itself, by signal %s", res.Status.Signal)
	}
	return fmt.Sprintf("the command had ended by itself, with code %d", res.Status.Code)
}

// lostError is an ErrLost with a text of its own.
type lostError struct{ text string }

func (e lostError) Error() string        { return e.text }
func (e lostError) Is(target error) bool { return target == holdlock.ErrLost }

func exitCodeOf(err error) int {
	var s *guard.StartError
	if errors.As(err, &s) {
		return s.ExitCode()
	}
	return 126
}

// deadline is the end of trust on the clock that the guard watches.
func deadline(lease *holdlock.Lease) time.Duration {
	return bootclock.Now() + time.Until(lease.Deadline())
}

// environ is the command's environment: ours, and what it is to know of the lock.
func environ(lock *holdlock.Lock, lease *holdlock.Lease) []string {
	env := slices.DeleteFunc(os.Environ(), func(v string) bool { // of a holdlock around us
		return strings.HasPrefix(v, "HOLDLOCK_LOCK=") || strings.HasPrefix(v, "HOLDLOCK_KEY=") ||
			strings.HasPrefix(v, "HOLDLOCK_TOKEN=") || strings.HasPrefix(v, "HOLDLOCK_RUN=") ||
			strings.HasPrefix(v, "HOLDLOCK_IDEMPOTENCY_KEY=") || strings.HasPrefix(v, guard.LeaseEnv+"=")
	})
	env = append(env, "HOLDLOCK_LOCK="+lease.Name(), "HOLDLOCK_TOKEN="+strconv.FormatUint(uint64(lease.Token()), 10))
	if lease.Key() != "" {
		env = append(env, "HOLDLOCK_KEY="+lease.Key())
	}
	if job := lease.Job(); job != nil {
		env = append(env, "HOLDLOCK_RUN="+strconv.Itoa(job.Runs), "HOLDLOCK_IDEMPOTENCY_KEY="+once.Key(lock))
	}
	return env
}
