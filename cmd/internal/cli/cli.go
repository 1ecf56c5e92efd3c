// Package cli is the command line of holdlock: a file per command.
//
// It is built on kong: flags and help come from struct tags, parse errors are returned instead of printed, it has no
// dependencies of its own, and nothing is set up at import time, which counts for a program that runs for milliseconds.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/alecthomas/kong"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

// Exit codes, as docs/cli.md lists them. They follow sysexits.h where that has a word for it.
const (
	exitOK          = 0
	exitFindings    = 1  // review, doctor, audit: there is something that --fail-on asks to fail for
	exitUsage       = 64 // EX_USAGE: bad flag, name or URL; nothing was done
	exitIncomplete  = 65 // EX_DATAERR: audit, review, ls, jobs ls: some code or some records could not be read
	exitDamaged     = 65 // EX_DATAERR: what stands at the keys of the lock or job cannot be read; nothing was run
	exitOtherInput  = 65 // EX_DATAERR: the job was begun with another input; nothing was run
	exitUnavailable = 69 // EX_UNAVAILABLE: the store cannot be reached, read or trusted; nothing was run
	exitLost        = 70 // EX_SOFTWARE: the lock was lost; the command was stopped before it could pass on
	exitHeld        = 75 // EX_TEMPFAIL: someone else holds the lock; nothing was run
	exitSuspended   = 77 // EX_NOPERM: the job waits for an operator; nothing was run
)

// command is the grammar.
type command struct {
	globals
	Run     runCmd     `cmd:"" help:"Run a command while holding a lock; skip it if someone else holds the lock."`
	Check   checkCmd   `cmd:"" help:"Inside a command: is there enough time left under the lock?"`
	Ls      lsCmd      `cmd:"" help:"List the locks that are held."`
	Inspect inspectCmd `cmd:"" help:"Show who holds a lock."`
	Break   breakCmd   `cmd:"" help:"End somebody's term of a lock. Shows it first; --token does it."`
	Review  reviewCmd  `cmd:"" help:"Which locks are about to hurt, and which are still needed?"`
	Doctor  doctorCmd  `cmd:"" help:"Is the store set up so that it keeps locks?"`
	Audit   auditCmd   `cmd:"" help:"List the locks in Go code, and their faults."`
	Lab     labCmd     `cmd:"" help:"Show on real servers where each kind of lock falls short."`
	Migrate migrateCmd `cmd:"" help:"Make or update the tables of a PostgreSQL store."`
	Jobs    jobsCmd    `cmd:"" help:"Show and settle the jobs that run --once keeps records of."`
	Quorum  quorumCmd  `cmd:"" help:"Look after a quorum of Redis servers."`
	Version versionCmd `cmd:"" help:"Print the version."`
}

// globals are the flags of all commands, and what the commands run in.
type globals struct {
	Store     []string      `help:"Where locks live: sqlite:PATH, redis://HOST, redis+sentinel://…, redis+cluster://…, postgres://HOST/DB, postgres+advisory://…. Several redis://HOST are a quorum. Default: a file of this user; see docs/cli.md." env:"HOLDLOCK_STORE" placeholder:"URL" sep:"none"`
	Namespace string        `help:"Keeps the names of one team or stage apart from another's in one store." env:"HOLDLOCK_NAMESPACE" placeholder:"NAME"`
	Ledger    string        `help:"Where it is counted what locks do, for review. Default: the store itself; a quorum needs one of its nodes, or another store." env:"HOLDLOCK_LEDGER" placeholder:"URL"`
	Spool     string        `help:"Directory for what could not be counted because the store was away; the next command sends it. Default: unsent, beside the default store." env:"HOLDLOCK_SPOOL" placeholder:"DIR"`
	JSON      bool          `name:"json" help:"Print data and messages as JSON, one object a line."`
	Timeout   time.Duration `help:"How long the store may take for one call." default:"5s"`

	QuorumMaxTTL time.Duration `name:"quorum-max-ttl" help:"The longest --ttl in a quorum, and how long a node that has restarted abstains. All programs have to agree on it." default:"30s" env:"HOLDLOCK_QUORUM_MAX_TTL"`

	stdout, stderr io.Writer
	argv           []string // of the command to run: what stands after --
	separated      bool     // there was a --
}

// Main runs the command line and returns its exit code.
func Main(args []string, stdout, stderr io.Writer) int {
	c := &command{globals: globals{stdout: stdout, stderr: stderr}}
	// What follows -- is the command's own and must not be looked at, so it is cut off before the flags are parsed.
	if i := slices.Index(args, "--"); i >= 0 && !namesFollow(args[:i]) {
		args, c.argv, c.separated = args[:i], args[i+1:], true
	}
	helped := false
	parser, err := kong.New(c, kong.Name("holdlock"),
		kong.Description("Keeps a job from running twice at the same time, and says plainly when it cannot."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(int) { helped = true }), // after --help
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
	)
	if err != nil {
		return c.fail(err)
	}
	switch {
	case len(args) == 0: // as of a script whose variable is empty: nothing is done, which must not look like success
		return c.fail(usage("no command is given, such as run, ls or doctor"))
	case len(args) == 1 && args[0] == "help":
		args = []string{"--help"}
	case len(args) == 1 && args[0] == "--version":
		args = []string{"version"}
	}
	ctx, err := parse(parser, args)
	if helped {
		return exitOK
	}
	if err != nil {
		c.JSON = c.JSON || slices.Contains(args, "--json") // the parser may not have got that far
		return c.fail(usage(hideURLs(parseText(err), args)))
	}
	if c.separated && ctx.Command() != "run <lock>" {
		return c.fail(usage("only run takes a command after --"))
	}
	if err := c.settled(ctx); err != nil {
		return c.fail(err)
	}
	if c.Timeout <= 0 {
		return c.fail(usage(fmt.Sprintf("--timeout %s is not allowed: it must be positive", c.Timeout)))
	}
	if err := ctx.Run(&c.globals); err != nil {
		return c.fail(err)
	}
	return exitOK
}

// namesFollow says whether after -- there is the name of a lock, which may look like a flag. To others nothing may follow: a command there
// would not be run.
func namesFollow(before []string) bool {
	return !slices.Contains(before, "run") && slices.ContainsFunc(before, func(a string) bool {
		return a == "review" || a == "inspect" || a == "break"
	})
}

// parse reads the command line. What is not UTF-8 is refused here: the parser would change it in silence, and so make one
// lock of two names.
func parse(parser *kong.Kong, args []string) (*kong.Context, error) {
	for _, a := range args {
		if !utf8.ValidString(a) {
			return nil, fmt.Errorf("argument %q is not valid UTF-8", a)
		}
	}
	for _, name := range []string{"HOLDLOCK_STORE", "HOLDLOCK_NAMESPACE", "HOLDLOCK_LEDGER"} {
		if !utf8.ValidString(os.Getenv(name)) {
			return nil, fmt.Errorf("$%s is not valid UTF-8", name)
		}
		text, ok := os.LookupEnv(name)
		if ok && name == "HOLDLOCK_STORE" && strings.TrimSpace(text) == "" {
			return nil, fmt.Errorf("$%s is empty: unset it for the file of this user, or name a store", name)
		}
	}
	return parser.Parse(args)
}

// settled refuses a variable that names a file by a relative path, if the command would use it. The variable goes along into each working directory,
// and each of them would have locks of its own.
func (g *globals) settled(ctx *kong.Context) error {
	given := func(flag string) bool {
		return slices.ContainsFunc(ctx.Path, func(p *kong.Path) bool { return p.Flag != nil && p.Flag.Name == flag })
	}
	verb, _, _ := strings.Cut(ctx.Command(), " ")
	looks := verb != "audit" || given("with-usage")
	for name, used := range map[string]bool{
		"STORE":  looks && !slices.Contains([]string{"lab", "version"}, verb) && !given("store"),
		"LEDGER": looks && slices.Contains([]string{"run", "review", "audit"}, verb) && !given("ledger"),
	} {
		if used && wandering(strings.TrimSpace(os.Getenv("HOLDLOCK_"+name))) {
			return usage("$HOLDLOCK_" + name + " names a file relative to the working directory, so that each directory would have its own: write the whole path")
		}
	}
	return nil
}

// hideURLs takes out of a message what it repeats of the arguments, wherever that may be a URL with a password.
func hideURLs(text string, args []string) string {
	const instead = "(not shown: it may hold a password)"
	for _, a := range args {
		if !strings.Contains(a, "://") && !strings.Contains(a, "@") {
			continue
		}
		_, value, _ := strings.Cut(a, "=")
		for _, part := range []string{a, value} {
			if part != "" {
				quoted := strconv.Quote(part)
				text = strings.ReplaceAll(text, quoted[1:len(quoted)-1], instead)
				text = strings.ReplaceAll(text, part, instead)
			}
		}
	}
	return text
}

// exitError is an error with an exit code. A silent one has been told already, or must not be.
type exitError struct {
	code   int
	kind   string // one word for --json
	silent bool
	err    error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func usage(text string) error {
	return &exitError{code: exitUsage, kind: "usage", err: errors.New(text)}
}

// classify gives an error of the library its exit code and kind.
func classify(err error) (code int, kind string) {
	var e *exitError
	switch {
	case errors.As(err, &e):
		return e.code, e.kind
	case errors.Is(err, holdlock.ErrInvalid), errors.Is(err, holdlock.ErrRefused):
		return exitUsage, "usage"
	case errors.Is(err, holdlock.ErrHeld):
		return exitHeld, "held"
	case errors.Is(err, holdlock.ErrStaleToken), errors.Is(err, holdlock.ErrJobChanged):
		return exitHeld, "stale"
	case errors.Is(err, driver.ErrSuspended):
		return exitSuspended, "suspended"
	case errors.Is(err, driver.ErrOtherInput):
		return exitOtherInput, "input"
	case errors.Is(err, holdlock.ErrLost), errors.Is(err, holdlock.ErrShort):
		return exitLost, "lost"
	case errors.Is(err, holdlock.ErrDamaged), errors.Is(err, driver.ErrBadRecord):
		return exitDamaged, "damaged"
	default: // the store
		return exitUnavailable, "store"
	}
}

// fail tells an error on stderr, on one line, and returns its exit code.
func (g *globals) fail(err error) int {
	code, kind := classify(err)
	var e *exitError
	if errors.As(err, &e) && e.silent {
		return code
	}
	fields := heldFields(err)
	if fields == nil {
		fields = jobFieldsOf(err)
	}
	g.say(kind, spoken(err)+g.hint(err), fields)
	if code == exitUsage && !g.JSON {
		fmt.Fprintln(g.stderr, "holdlock: see holdlock --help")
	}
	return code
}

// open opens the store, with the label under which this process holds locks, until ctx ends. They are counted by rec.
func (g *globals) open(ctx context.Context, label string, observer holdlock.Observer, rec holdlock.Recorder) (*holdlock.Client, error) {
	drv, err := g.stores().open(ctx, g.Namespace, g.Timeout)
	if err != nil {
		return nil, err
	}
	return holdlock.NewClient(drv, &holdlock.ClientOptions{
		Label: label, Observer: observer, Recorder: rec, CallTimeout: g.Timeout, ConfirmGrants: true,
	})
}

func (g *globals) openDriver() (driver.Driver, error) {
	return g.stores().open(context.Background(), g.Namespace, g.Timeout)
}

// withClient opens the store for one short command, that has something to do there only if something is in it.
func (g *globals) withClient(f func(ctx context.Context, c *holdlock.Client) error) error {
	return g.withStore(func(ctx context.Context, c *holdlock.Client, _ driver.Driver) error { return f(ctx, c) })
}

// withStore is withClient for commands that need to know more about the store.
func (g *globals) withStore(f func(ctx context.Context, c *holdlock.Client, d driver.Driver) error) error {
	d, err := g.openToLook()
	if err != nil {
		return err
	}
	c, err := holdlock.NewClient(d, &holdlock.ClientOptions{Label: "holdlock", CallTimeout: g.Timeout})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*g.Timeout)
	defer cancel()
	return errors.Join(f(ctx, c, d), c.Shutdown(ctx))
}

// baseName is what a command is called in lists: never its arguments, which may hold secrets.
func baseName(argv []string) string {
	return strings.ToValidUTF8(filepath.Base(argv[0]), "?")
}

// user names who runs this process, for the records of break.
func user() string {
	name := os.Getenv("SUDO_USER")
	for _, v := range []string{"USER", "LOGNAME"} {
		if name == "" {
			name = os.Getenv(v)
		}
	}
	if name == "" {
		name = fmt.Sprintf("uid %d", os.Getuid())
	}
	host, err := os.Hostname()
	if err != nil {
		return name
	}
	return name + "@" + host
}
