package guard

import (
	"bufio"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdlock/holdlock/cmd/internal/proctree"
	"github.com/holdlock/holdlock/internal/bootclock"
)

// The test binary plays every part itself: guard, holdlock, a holdlock without a guard, and several commands.
func TestMain(m *testing.M) {
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")) // or every guard takes a second to exit
	Main(func(_ context.Context, payload []byte) {
		_ = os.WriteFile(string(payload), fmt.Appendf(nil, "%d\n", bootclock.Now()), 0o600)
	})
	if len(os.Args) > 1 {
		if role, ok := strings.CutPrefix(os.Args[1], "role:"); ok {
			os.Exit(play(role, os.Args[2:]))
		}
	}
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		_ = f.Value.Set("8") // these tests mostly wait for deadlines
	}
	os.Exit(m.Run())
}

func play(role string, args []string) int {
	switch role {
	case "holdlock":
		return playHoldlock(args[0])
	case "naive":
		return playNaive(args[0])
	case "stamp":
		return playStamp(args[0], args[1:])
	case "tree":
		return playTree(args[0])
	case "signals":
		return playSignals(args[0], args[1:])
	case "remaining":
		return playRemaining()
	case "root":
		return playRoot(args[0])
	}
	fmt.Fprintln(os.Stderr, "no such role:", role)
	return 99
}

// A part is what the mini holdlock is to do. Everything that it does not name is as in production.
type part struct {
	Argv    []string
	TTL     time.Duration // the deadline is this far away at the start and after each renewal
	Renew   time.Duration // between renewals; 0: never
	Grace   time.Duration
	Leave   bool
	Payload string // the file that the guard writes if it must give the lease back
	Log     string // what happens, a line each
	Result  string // the Result, as JSON, in the end
	Repeat  int    // runs one after the other, instead of 1; stops at the first that does not exit with code 5
	NoReap  bool   // do not reap foreign children
	Control string // a named pipe with commands: end, killall, rest (no more renewals), or a DURATION (one renewal)
}

// playHoldlock is `holdlock run` without a store.
func playHoldlock(arg string) int {
	var p part
	if err := json.Unmarshal([]byte(arg), &p); err != nil {
		return 98
	}
	sigs := make(chan os.Signal, 16)
	signal.Notify(sigs, Signals()...)
	for range max(p.Repeat, 1) - 1 {
		if r := p.run(sigs); r.ExitCode() != 5 {
			return 97
		}
	}
	r := p.run(sigs)
	if p.Repeat > 0 {
		fmt.Printf("zombies %d\n", zombies())
	}
	return r.ExitCode()
}

func (p *part) run(sigs <-chan os.Signal) Result {
	deadline := bootclock.Now() + p.TTL
	p.log("deadline %d", deadline)
	g, err := Start(Config{
		Argv: p.Argv, Env: os.Environ(), Deadline: deadline, Grace: p.Grace, LeaveBackground: p.Leave,
		Payload: []byte(p.Payload), ReapOrphans: !p.NoReap,
		OnEnding: func(r Reason) { p.log("ending %s", r) },
		OnStuck:  func(u []Unkillable) { p.log("stuck %d", u[0].PID) },
	})
	if err != nil {
		p.log("error %v", err)
		return Result{Err: err}
	}
	var renew <-chan time.Time
	if p.Renew > 0 {
		t := time.NewTicker(p.Renew)
		defer t.Stop()
		renew = t.C
	}
	extend := func(ttl time.Duration) {
		deadline = bootclock.Now() + ttl
		p.log("deadline %d", deadline)
		g.SetDeadline(deadline)
	}
	control := p.listen()
	started := g.Started()
	for {
		select {
		case <-started:
			started = nil
			p.log("guard %d", g.proc.Pid)
			p.log("started %d", g.PID())
		case <-renew:
			extend(p.TTL)
		case s := <-sigs:
			sent, _ := g.Forward(s)
			p.log("signal %v %v", s, sent)
		case line := <-control:
			switch {
			case line == "end":
				g.End()
			case line == "killall":
				g.KillAll()
			case line == "rest":
				renew = nil
				p.log("rests")
			default:
				ttl, _ := time.ParseDuration(line)
				extend(ttl)
			}
		case <-g.Done():
			r := g.Wait()
			p.saveResult(r)
			return r
		}
	}
}

// log appends in one write, so that a reader sees whole lines.
func (p *part) log(format string, args ...any) {
	if p.Log != "" {
		appendLine(p.Log, fmt.Sprintf(format, args...))
	}
}

func appendLine(file, line string) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = f.WriteString(line + "\n")
}

func (p *part) listen() <-chan string {
	if p.Control == "" {
		return nil
	}
	c := make(chan string)
	go func() {
		for {
			f, err := os.Open(p.Control)
			if err != nil {
				return
			}
			for sc := bufio.NewScanner(f); sc.Scan(); {
				c <- sc.Text()
			}
			_ = f.Close()
		}
	}()
	return c
}

// outcome is a Result that survives JSON.
type outcome struct {
	PID        int
	Err        string
	Status     Status
	Ended      Reason
	Leftovers  int
	Killed     int
	Unkillable []Unkillable
}

func (p *part) saveResult(r Result) {
	if p.Result == "" {
		return
	}
	o := outcome{r.PID, "", r.Status, r.Ended, r.Leftovers, r.Killed, r.Unkillable}
	if r.Err != nil {
		o.Err = r.Err.Error()
	}
	b, _ := json.Marshal(o)
	_ = os.WriteFile(p.Result+".new", b, 0o600)
	_ = os.Rename(p.Result+".new", p.Result)
}

// zombies counts the children of this process that have ended and were not reaped.
func zombies() int {
	self, err := proctree.Self()
	if err != nil {
		return -1
	}
	list, err := proctree.Children(self)
	if err != nil {
		return -1
	}
	n := 0
	for _, p := range list {
		if p.Zombie {
			n++
		}
	}
	return n
}

// playNaive is what people write instead: the command in its own group with a death signal, ended by the very process
// that renews. It is the negative control: the tests of the guarantees must fail on it.
func playNaive(arg string) int {
	var p part
	if err := json.Unmarshal([]byte(arg), &p); err != nil {
		return 98
	}
	deadline := bootclock.Now() + p.TTL
	p.log("deadline %d", deadline)
	cmd := exec.Command(p.Argv[0], p.Argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return 97
	}
	p.log("started %d", cmd.Process.Pid)
	time.AfterFunc(deadline-bootclock.Now(), func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	_ = cmd.Wait()
	return 0
}

// playStamp writes its PID and the time into a file, over and over, for as long as it lives. With "stubborn" it ignores TERM.
func playStamp(file string, opts []string) int {
	for _, o := range opts {
		if o == "stubborn" {
			signal.Ignore(syscall.SIGTERM)
		}
	}
	for tick := time.NewTicker(10 * time.Millisecond); ; <-tick.C {
		appendLine(file, fmt.Sprintf("%d %d", os.Getpid(), bootclock.Now()))
	}
}

// playTree writes stamps, and so do a child, a child in a session of its own, and a daemon whose parent has ended. All
// ignore TERM.
func playTree(file string) int {
	exe, _ := os.Executable()
	stamp := []string{exe, "role:stamp", file, "stubborn"}
	for _, setsid := range []bool{false, true} {
		cmd := exec.Command(stamp[0], stamp[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: setsid}
		if err := cmd.Start(); err != nil {
			return 97
		}
	}
	daemon := exec.Command("sh", append([]string{"-c", `setsid "$@" & exit 0`, "sh"}, stamp...)...)
	if err := daemon.Run(); err != nil {
		return 96
	}
	return playStamp(file, []string{"stubborn"})
}

// playSignals writes each signal that it gets into a file, and ends with code 3 after TERM. It first starts the children
// that are asked for, each with a file of its own.
func playSignals(file string, children []string) int {
	sigs := make(chan os.Signal, 16)
	signal.Notify(sigs, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	exe, _ := os.Executable()
	for _, f := range children {
		if err := exec.Command(exe, "role:signals", f).Start(); err != nil {
			return 97
		}
	}
	appendLine(file, "ready")
	for s := range sigs {
		appendLine(file, s.String())
		if s == syscall.SIGTERM {
			return 3
		}
	}
	return 0
}

// playRemaining answers, for each line of standard input, how much time is left.
func playRemaining() int {
	signal.Ignore(syscall.SIGTERM)
	for sc := bufio.NewScanner(os.Stdin); sc.Scan(); {
		d, err := Remaining(os.Getenv(LeaseEnv))
		if err != nil {
			fmt.Println("error", err)
			continue
		}
		fmt.Println(int64(d))
	}
	return 0
}

// playRoot becomes root for good, as sudo does, if its file allows that, and then waits until somebody creates a file.
func playRoot(file string) int {
	if err := unix.Setresuid(0, 0, 0); err != nil {
		return 97
	}
	signal.Ignore(syscall.SIGTERM)
	appendLine(file+".ready", "ready")
	for tick := time.NewTicker(5 * time.Millisecond); ; <-tick.C {
		if _, err := os.Stat(file); err == nil {
			return 0
		}
	}
}
