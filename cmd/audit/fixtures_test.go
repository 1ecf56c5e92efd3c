package audit

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/tools/go/packages"
)

const (
	fixturesDir = "testdata/fixtures" // a module of its own, with everything but this library
	holdDir     = "testdata/hold"     // a package of this module
)

// moduleEnv is the environment for a module that is none of this workspace's.
func moduleEnv() []string { return append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly") }

var fixtures = sync.OnceValues(func() ([]*packages.Package, error) {
	pkgs, err := load(context.Background(), &LoadOptions{Dir: fixturesDir, Env: moduleEnv()}, []string{"./..."})
	if err != nil {
		return nil, err
	}
	hold, err := load(context.Background(), &LoadOptions{}, []string{"./" + holdDir})
	return append(pkgs, hold...), err
})

// loadFixtures returns the fixtures, loaded once.
func loadFixtures(t *testing.T) []*packages.Package {
	t.Helper()
	pkgs, err := fixtures()
	if err != nil {
		t.Fatal(err)
	}
	return pkgs
}

// A fixture says what it holds in comments, on the line itself or n lines below it:
//
//	// want lock KIND "NAME" TTL; fault FAULT
//	// want-1 maybe KIND "NAME" TTL
//	// want lock KIND "NAME" TTL; answer FAULT unknown
var want = regexp.MustCompile(`(?://|--) want(-\d+)? (.*)$`)

// expectations reads the comments of all fixtures, as "file:line what", without the answers.
func expectations(t *testing.T) []string {
	t.Helper()
	return expected(t, false)
}

func expected(t *testing.T, answers bool) []string {
	t.Helper()
	var out []string
	walkFixtures(t, func(path, rel string) error {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		in := bufio.NewScanner(f)
		for line := 1; in.Scan(); line++ {
			m := want.FindStringSubmatch(in.Text())
			if m == nil {
				continue
			}
			at := line
			if m[1] != "" {
				n, err := strconv.Atoi(m[1])
				if err != nil {
					return err
				}
				at += n
			}
			for _, w := range strings.Split(m[2], "; ") {
				if strings.HasPrefix(w, "answer ") != answers {
					continue
				}
				out = append(out, fmt.Sprintf("%s:%d %s", rel, at, w))
			}
		}
		return in.Err()
	})
	slices.Sort(out)
	return out
}

// walkFixtures calls f with the path of every file of the fixtures, and with the name that it has in expectations.
func walkFixtures(t *testing.T, f func(path, rel string) error) {
	t.Helper()
	for _, dir := range []string{fixturesDir, holdDir} {
		err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") {
				return err
			}
			rel, err := filepath.Rel("testdata", path)
			if err != nil {
				return err
			}
			return f(path, filepath.ToSlash(rel))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// fixtureLine is a place as it stands in expectations.
func fixtureLine(t *testing.T, p token.Position) string {
	t.Helper()
	abs, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	rel, err := filepath.Rel(abs, p.Filename)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s:%d", filepath.ToSlash(rel), p.Line)
}

// told is what a report says, in the same form.
func told(t *testing.T, r *Report) []string {
	t.Helper()
	at := func(p token.Position) string { return fixtureLine(t, p) }
	var out []string
	for _, l := range r.Locks {
		what := "lock"
		if l.Maybe {
			what = "maybe"
		}
		out = append(out, fmt.Sprintf("%s %s %s %q %s", at(l.Pos), what, l.Kind, l.Name.Text, l.TTL))
	}
	for _, f := range r.All() {
		out = append(out, fmt.Sprintf("%s fault %s", at(f.Pos), f.Fault))
	}
	slices.Sort(out)
	return out
}

// TestFixtures compares every lock and every fault of the fixtures with the comments there: nothing may be missing, and
// nothing may be accused that is not marked.
func TestFixtures(t *testing.T) {
	r, err := analyze(t.Context(), &LoadOptions{}, loadFixtures(t), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Problems {
		t.Errorf("cannot read %s: %s: %s", p.Package, p.Pos, p.Message)
	}
	for _, d := range differ(told(t, r), expectations(t)) {
		t.Error(d)
	}
}

// TestFixtureAnswers compares the answers that comments name, those that are no faults among them: a doubt is unknown.
func TestFixtureAnswers(t *testing.T) {
	r, err := analyze(t.Context(), &LoadOptions{}, loadFixtures(t), "")
	if err != nil {
		t.Fatal(err)
	}
	given := map[string]bool{}
	for _, l := range r.Locks {
		for f, c := range l.Checks {
			given[fmt.Sprintf("%s answer %s %s", fixtureLine(t, l.Pos), f, c.Verdict)] = true
		}
	}
	wanted := expected(t, true)
	for _, w := range wanted {
		if !given[w] {
			t.Errorf("missing: %s", w)
		}
	}
	if len(wanted) < 40 {
		t.Errorf("only %d answers are named", len(wanted))
	}
}

// TestReasons looks at what is said where something cannot be told: what the code shows otherwise must not be said.
func TestReasons(t *testing.T) {
	r, err := analyze(t.Context(), &LoadOptions{}, loadFixtures(t), "")
	if err != nil {
		t.Fatal(err)
	}
	why := map[string]string{}
	for _, l := range r.Locks {
		for f, c := range l.Checks {
			why[fmt.Sprintf("%s %s", l.Name.Text, f)] = c.Why
		}
	}
	for what, want := range map[string]string{
		"helped loss-ignored":     "it is given to with, where its use is not followed",
		"lent lock release-ctx":   "the context of the release is what (*lentLock).Unlock is called with: calls in this package are judged, and there may be others",
		"afterwards loss-ignored": "Err tells of a loss, but whether the work asks it in time is not in the code",
	} {
		if why[what] != want {
			t.Errorf("%s: %q, want %q", what, why[what], want)
		}
	}
}

// differ lists what one sorted list has and the other has not, counting what occurs several times.
func differ(got, wanted []string) []string {
	var out []string
	for len(got) > 0 || len(wanted) > 0 {
		switch {
		case len(got) == 0 || (len(wanted) > 0 && wanted[0] < got[0]):
			out, wanted = append(out, "missing: "+wanted[0]), wanted[1:]
		case len(wanted) == 0 || got[0] < wanted[0]:
			out, got = append(out, "not wanted: "+got[0]), got[1:]
		default:
			got, wanted = got[1:], wanted[1:]
		}
	}
	return out
}

// TestFixturesNoticeEveryRule switches off one rule after another: the fixtures must miss it.
func TestFixturesNoticeEveryRule(t *testing.T) {
	for _, f := range Faults() {
		r, err := analyze(t.Context(), &LoadOptions{}, loadFixtures(t), f)
		if err != nil {
			t.Fatal(err)
		}
		missing := differ(told(t, r), expectations(t))
		if len(missing) < 3 {
			t.Errorf("without the rule %s the fixtures miss only %q", f, missing)
		}
		for _, m := range missing {
			if !strings.HasPrefix(m, "missing: ") || !strings.HasSuffix(m, "fault "+string(f)) {
				t.Errorf("without the rule %s: %s", f, m)
			}
		}
	}
}

// TestFixturesAreMany counts the cases: declarations with a fault, and declarations named good… that have none.
func TestFixturesAreMany(t *testing.T) {
	faults := map[string]bool{}
	for _, e := range expectations(t) {
		if at, _, ok := strings.Cut(e, " fault "); ok {
			faults[at] = true
		}
	}
	bad, good := 0, 0
	fset := token.NewFileSet()
	walkFixtures(t, func(path, rel string) error {
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		for _, d := range f.Decls {
			faulty := false
			for line := fset.Position(d.Pos()).Line; line <= fset.Position(d.End()).Line; line++ {
				faulty = faulty || faults[fmt.Sprintf("%s:%d", rel, line)]
			}
			fn, isFunc := d.(*ast.FuncDecl)
			switch {
			case faulty:
				bad++
				if isFunc && strings.HasPrefix(fn.Name.Name, "good") {
					t.Errorf("%s: a good one has a fault", fn.Name.Name)
				}
			case isFunc && strings.HasPrefix(fn.Name.Name, "good"):
				good++
			}
		}
		return nil
	})
	t.Logf("%d cases with a fault, %d without", bad, good)
	if bad < 30 || good < 30 {
		t.Errorf("%d cases with a fault and %d without; 30 of each at least", bad, good)
	}
}

// TestUnknownsHaveReasons checks that every lock has an answer to each of the six questions, and every "unknown" a reason.
func TestUnknownsHaveReasons(t *testing.T) {
	r, err := analyze(t.Context(), &LoadOptions{}, loadFixtures(t), "")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[Verdict]int{}
	for _, l := range r.Locks {
		for _, f := range Faults() {
			c, ok := l.Checks[f]
			seen[c.Verdict]++
			if !ok || (c.Verdict == Unknown) != (c.Why != "") {
				t.Errorf("%s %s: %s is %+v", l.Pos, l.Name.Text, f, c)
			}
			if faulty := slices.ContainsFunc(l.Findings, func(x Finding) bool { return x.Fault == f }); faulty != (c.Verdict == Faulty) {
				t.Errorf("%s %s: %s is %+v, findings %v", l.Pos, l.Name.Text, f, c, l.Findings)
			}
			if l.Maybe && c.Verdict == Faulty {
				t.Errorf("%s %s is accused although it may be no lock", l.Pos, l.Name.Text)
			}
		}
	}
	for _, v := range []Verdict{OK, Faulty, Unknown, None} {
		if seen[v] == 0 {
			t.Errorf("no answer is %s", v)
		}
	}
}

// TestMessages checks that every finding says what is wrong with which lock, and what to do.
func TestMessages(t *testing.T) {
	r, err := analyze(t.Context(), &LoadOptions{}, loadFixtures(t), "")
	if err != nil {
		t.Fatal(err)
	}
	all := r.All()
	slices.SortFunc(all, func(a, b Finding) int { return cmp.Compare(a.Message, b.Message) })
	for _, f := range all {
		if !strings.Contains(f.Message, "lock") || len(f.Fix) < 20 || strings.ContainsAny(f.Message+f.Fix, "\n") {
			t.Errorf("%s: %q, %q", f.Pos, f.Message, f.Fix)
		}
	}
}
