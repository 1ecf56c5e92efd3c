package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdlock/holdlock"
	"github.com/holdlock/holdlock/driver"
)

func TestPlain(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                                  "",
		"plain text, with ümlaut and 🔒":     "plain text, with ümlaut and 🔒",
		"two\nlines":                        "two; lines",
		"\x1b[31mred\x07":                   `\x1b[31mred\a`,
		"tab\tand\rreturn":                  `tab\tand\rreturn`,
		"\u009b2J \u202e":                   `\u009b2J \u202e`,
		"not\xffUTF-8":                      "not\ufffdUTF-8",
		`quotes "stay" and \ backslash too`: `quotes "stay" and \ backslash too`,
	} {
		if got := plain(in); got != want {
			t.Errorf("plain(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestLockName(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, key, want string }{
		{"job", "", "job"},
		{"job", "a/b", "job/a/b"},
		{"job", "a b", "job/a b"},
		{"job", "🔒", "job/🔒"},
		{"job", "a\nb", `"job/a\nb"`},
		{"job", "\x1b[2J", `"job/\x1b[2J"`},
		{`a"b`, "", `"a\"b"`},
	} {
		if got := lockName(c.name, c.key); got != c.want {
			t.Errorf("lockName(%q, %q) = %s, want %s", c.name, c.key, got, c.want)
		}
	}
}

func TestHolderWithoutLabel(t *testing.T) {
	t.Parallel()
	h := holdlock.Holder{PID: 77, Host: "vm"}
	for label, want := range map[string]string{"": "pid 77 on vm", "report": "report, pid 77 on vm"} {
		h.Label = label
		for what, got := range map[string]string{
			"a lock": holder(holdlock.Info{Holder: h}), "a job": jobHolder(holdlock.JobInfo{Job: driver.Job{Holder: h}}),
		} {
			if got != want {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
	}
}

func TestSpan(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]time.Duration{"0": 0, "30s": 30 * time.Second, "1h30m": 90 * time.Minute, "forever": holdlock.Forever} {
		var s span
		if err := s.UnmarshalText([]byte(in)); err != nil || time.Duration(s) != want {
			t.Errorf("%q is %v, %v", in, time.Duration(s), err)
		}
	}
	for _, in := range []string{"", "5", "soon", "Forever", "1d"} {
		var s span
		if err := s.UnmarshalText([]byte(in)); err == nil || !strings.Contains(err.Error(), "forever") {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func TestHideURLs(t *testing.T) {
	t.Parallel()
	const hidden = "(not shown: it may hold a password)"
	for _, c := range []struct {
		text string
		args []string
		want string
	}{
		{"unexpected argument redis://u:pw@h", []string{"ls", "redis://u:pw@h"}, "unexpected argument " + hidden},
		{`expected duration but got "redis://u:\npw@h"`, []string{"--ttl", "redis://u:\npw@h"}, `expected duration but got "` + hidden + `"`},
		{"bad value u:pw@h", []string{"--ttl=u:pw@h"}, "bad value " + hidden},
		{"unknown flag --stor", []string{"--stor=redis://u:pw@h"}, "unknown flag --stor"},
		{"unexpected argument job", []string{"job", "x@y"}, "unexpected argument job"},
	} {
		if got := hideURLs(c.text, c.args); got != c.want {
			t.Errorf("hideURLs(%q, %q) = %q, want %q", c.text, c.args, got, c.want)
		}
	}
}

func TestOpenStoreNamesNoSecret(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"pw", "pw@host:1", "://pw", "mysql://u:pw@h", "redis://u:pw@h:port", "redis://u:pw@h/db", "sqlite://u:pw@h/x", "SQLITE:pw", "a b:pw", ":pw"} {
		d, err := openStore(url, "")
		var e *exitError
		if d != nil || !errors.As(err, &e) || e.code != exitUsage || strings.Contains(err.Error(), "pw") {
			t.Errorf("openStore(%q): %v", url, err)
		}
	}
}

// Files that would be other ones in each working directory, in silence: the home that no shell has put in, and a relative path that goes along
// in the environment.
func TestStoreOfTheWorkingDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	refused := func(want string, args ...string) {
		t.Helper()
		var out, errs bytes.Buffer
		if code := Main(args, &out, &errs); code != exitUsage || !strings.Contains(errs.String(), want) {
			t.Errorf("%q: %d, %s", args, code, errs.String())
		}
	}
	home, whole := "write $HOME or the whole path", "write the whole path"
	for _, url := range []string{"sqlite:~/locks.db", "sqlite:~", "sqlite:~jobs/locks.db"} {
		if d, err := openStore(url, ""); err == nil || !strings.Contains(err.Error(), home) {
			t.Errorf("openStore(%q): %v, %v", url, d, err)
		}
		refused(home, "ls", "--store", url)
	}
	t.Setenv("HOLDLOCK_STORE", "sqlite:~/locks.db")
	refused(home, "ls")
	for _, url := range []string{"sqlite:locks.db", " sqlite:./locks.db", "sqlite:dir/locks.db"} {
		t.Setenv("HOLDLOCK_STORE", url)
		refused(whole, "ls")
	}
	t.Setenv("HOLDLOCK_STORE", "sqlite:///nowhere/locks.db")
	t.Setenv("HOLDLOCK_LEDGER", "sqlite:usage.db")
	refused("$HOLDLOCK_LEDGER", "review")
	t.Setenv("HOLDLOCK_STORE", "sqlite:locks.db")
	refused("$HOLDLOCK_LEDGER", "run", "job", "--store", "sqlite:///nowhere/locks.db", "--", "true")
	// Where they are not used they are not in the way.
	for _, args := range [][]string{{"--help"}, {"--version"}, {"run", "--help"}, {"ls", "--store", "sqlite:" + filepath.Join(t.TempDir(), "locks.db")}} {
		var out, errs bytes.Buffer
		Main(args, &out, &errs)
		if strings.Contains(errs.String(), whole) {
			t.Errorf("%q: %s", args, errs.String())
		}
	}
	if made, _ := os.ReadDir("."); len(made) != 0 {
		t.Errorf("it has made %v", made)
	}
}

// TestClassify gives every error of the library its row of the table of exit codes.
func TestClassify(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		code int
		kind string
	}{
		{holdlock.ErrInvalid, 64, "usage"},
		{usage("x"), 64, "usage"},
		{holdlock.ErrHeld, 75, "held"},
		{holdlock.ErrStaleToken, 75, "stale"},
		{holdlock.ErrLost, 70, "lost"},
		{holdlock.ErrShort, 70, "lost"},
		{lostError{"x"}, 70, "lost"},
		{holdlock.ErrUnreachable, 69, "store"},
		{holdlock.ErrUnknown, 69, "store"},
		{holdlock.ErrUnsupported, 69, "store"},
		{errors.New("x"), 69, "store"},
		{&exitError{code: 7, kind: "exit", err: holdlock.ErrLost}, 7, "exit"},
	} {
		for _, err := range []error{c.err, fmt.Errorf("wrapped: %w", c.err), errors.Join(errors.New("first"), c.err)} {
			if code, kind := classify(err); code != c.code || kind != c.kind {
				t.Errorf("%v: %d %s, want %d %s", err, code, kind, c.code, c.kind)
			}
		}
	}
}

// TestUsageTouchesNothing runs the command line in this process, where no store is named that could be opened.
func TestUsageTouchesNothing(t *testing.T) {
	for _, args := range [][]string{
		{"run", "job"}, {"run", "job", "--"}, {"run", "a\xff", "--", "true"}, {"ls", "--store", "sqlite:\xff"}, {"check"}, {"ls", "--", "true"},
	} {
		var out, errs bytes.Buffer
		if code := Main(args, &out, &errs); code != exitUsage || out.Len() != 0 || !strings.HasPrefix(errs.String(), "holdlock: ") {
			t.Errorf("%q: %d, %q, %q", args, code, out.String(), errs.String())
		}
		errs.Reset()
		if code := Main(append([]string{args[0], "--json"}, args[1:]...), &out, &errs); code != exitUsage || !json.Valid(errs.Bytes()) {
			t.Errorf("%q with --json: %d, %q", args, code, errs.String())
		}
	}
}

// A look at a file whose path was mistyped does not make it, and does not say that all is well.
func TestALookMakesNoFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "typo.db")
	for _, args := range [][]string{
		{"review"},
		{"review", "job"},
		{"review", "--fail-on", "error"},
		{"ls"},
		{"ls", "--json"},
		{"inspect", "job"},
		{"break", "job"},
		{"doctor"},
		{"jobs", "ls"},
		{"jobs", "inspect", "job"},
		{"jobs", "settle", "job"},
		{"ls", "--store", "sqlite://" + path},
	} {
		var out, errs bytes.Buffer
		if !slices.Contains(args, "--store") {
			args = append(args, "--store", "sqlite:"+path)
		}
		code := Main(args, &out, &errs)
		if code != exitUsage || out.Len() != 0 || !strings.Contains(errs.String(), "there is no file "+path) {
			t.Errorf("%q: %d, %q, %q", args, code, out.String(), errs.String())
		}
	}
	var out, errs bytes.Buffer
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s was made: %v", path, err)
	}
	if d, err := openSQLite(path, ""); err != nil || d.Close() != nil {
		t.Fatal(err)
	}
	if code := Main([]string{"review", "--store", "sqlite:" + path, "--ledger", "sqlite:" + path + "2"}, &out, &errs); code != exitUsage ||
		!strings.Contains(errs.String(), "there is no file "+path+"2") {
		t.Errorf("a ledger that is not there: %d, %q", code, errs.String())
	}
}
