package e2e

import (
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdlock/holdlock/internal/bootclock"
)

// The roles are what the commands under the lock do: this test binary, started as "role:NAME ARG…".
var roles map[string]func(args []string) int

func play(name string, args []string) int {
	roles = map[string]func([]string) int{
		"write": writeRole, "step": stepRole, "put": putRole, "naive": naiveRole, "flag": flagRole, "note": noteRole, "detach": detachRole, "handover": handoverRole, "stages": stagesRole,
	}
	f, ok := roles[name]
	if !ok {
		fmt.Fprintln(os.Stderr, "no such role:", name)
		return 99
	}
	return f(args)
}

// role is the command line that plays a role as a grandchild of the guard: a shell stands between.
func role(name string, args ...string) []string {
	return append([]string{"sh", "-c", `"$@"; exit $?`, "sh"}, direct(name, args...)...)
}

// direct is the same without the shell.
func direct(name string, args ...string) []string {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return append([]string{exe, "role:" + name}, args...)
}

// A journal is a file to which several processes append lines, each in one call.
type journal struct{ f *os.File }

func openJournal(path string) journal {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(98)
	}
	return journal{f}
}

// add appends "KIND NAME TOKEN STAMP EXTRA…". The stamp is of the clock that leases end by.
func (j journal) add(kind, name string, extra ...any) {
	line := fmt.Sprintf("%s %s %s %d", kind, name, token(), bootclock.Now())
	for _, e := range extra {
		line += fmt.Sprint(" ", e)
	}
	if _, err := j.f.WriteString(line + "\n"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(98)
	}
}

func token() string {
	if t := os.Getenv("HOLDLOCK_TOKEN"); t != "" {
		return t
	}
	return "0"
}

// An entry is one line of a journal.
type entry struct {
	kind, name string
	token      uint64
	at         time.Duration
	extra      []string
}

// journalOf reads a journal. A line that is still being written is left out.
func journalOf(path string) []entry {
	var list []entry
	for line := range strings.Lines(read(path)) {
		f := strings.Fields(line)
		if len(f) < 4 || !strings.HasSuffix(line, "\n") {
			continue
		}
		n, _ := strconv.ParseUint(f[2], 10, 64)
		at, _ := strconv.ParseInt(f[3], 10, 64)
		list = append(list, entry{kind: f[0], name: f[1], token: n, at: time.Duration(at), extra: f[4:]})
	}
	return list
}

// find returns the entries of a kind and name; "" stands for any.
func find(list []entry, kind, name string) []entry {
	var out []entry
	for _, e := range list {
		if (kind == "" || e.kind == kind) && (name == "" || e.name == name) {
			out = append(out, e)
		}
	}
	return out
}

// writeRole appends a W line every PERIOD until it is ended: write JOURNAL NAME PERIOD [stubborn]. A stubborn one ignores
// TERM; the others log a T line when it comes, and end.
func writeRole(args []string) int {
	j := openJournal(args[0])
	period, err := time.ParseDuration(args[2])
	if err != nil {
		return 97
	}
	term := make(chan os.Signal, 1)
	if len(args) > 3 && args[3] == "stubborn" {
		signal.Ignore(syscall.SIGTERM)
	} else {
		signal.Notify(term, syscall.SIGTERM)
	}
	tick := time.NewTicker(period)
	for {
		j.add("W", args[1])
		select {
		case <-tick.C:
		case <-term:
			j.add("T", args[1])
			return 128 + int(syscall.SIGTERM)
		}
	}
}

// flagRole makes a file and waits for another: flag MADE AWAITED. It ends after a while in any case.
func flagRole(args []string) int {
	openJournal(args[0]).add("F", "flag")
	if !poll(10*enough, func() bool { _, err := os.Stat(args[1]); return err == nil }) {
		return 96
	}
	return 0
}

// noteRole appends one line: note JOURNAL KIND.
func noteRole(args []string) int {
	openJournal(args[0]).add(args[1], "note")
	return 0
}

// putRole writes its name into a resource when the file GO appears: put JOURNAL RESOURCE NAME GO compared|blind. The
// resource holds "TOKEN NAME". Compared, a token that is smaller than the one in it is refused. It ends with 3 if so.
func putRole(args []string) int {
	j, resource, name, gate := openJournal(args[0]), args[1], args[2], args[3]
	j.add("ready", name)
	if !poll(10*enough, func() bool { _, err := os.Stat(gate); return err == nil }) {
		return 96
	}
	guard, err := os.OpenFile(resource+".flock", os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return 95
	}
	defer guard.Close()
	if err := unix.Flock(int(guard.Fd()), unix.LOCK_EX); err != nil {
		return 95
	}
	mine, _ := strconv.ParseUint(token(), 10, 64)
	first, _, _ := strings.Cut(read(resource), " ")
	theirs, _ := strconv.ParseUint(first, 10, 64)
	if args[4] == "compared" && mine < theirs {
		j.add("refused", name)
		return 3
	}
	if err := os.WriteFile(resource+".new", []byte(token()+" "+name), 0o644); err != nil {
		return 95
	}
	if err := os.Rename(resource+".new", resource); err != nil {
		return 95
	}
	j.add("put", name)
	return 0
}
