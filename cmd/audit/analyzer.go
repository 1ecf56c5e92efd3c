package audit

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
)

// NewAnalyzer returns the rules as an analyzer. Its diagnostics are the faults, with the fault as category, and its result
// is the *Inventory of the package. Its flags say whether files of tests and generated files are read. It looks at one
// package at a time and needs no facts of others.
func NewAnalyzer() *analysis.Analyzer {
	o := &options{}
	a := &analysis.Analyzer{
		Name: "holdlock",
		Doc: "find faults of distributed locks\n\n" +
			"Reports locks without expiry, releases that do not check who holds the lock, values that do not tell holders apart,\n" +
			"releases with a context that may have ended, session locks of PostgreSQL on a pool, and ignored losses.",
		URL:              "https://github.com/holdlock/holdlock/blob/main/docs/audit.md",
		Requires:         []*analysis.Analyzer{inspect.Analyzer},
		ResultType:       reflect.TypeFor[*Inventory](),
		RunDespiteErrors: true,
	}
	a.Run = func(pass *analysis.Pass) (any, error) { return o.run(pass), nil }
	a.Flags.BoolVar(&o.tests, "tests", false, "also read _test.go files")
	a.Flags.BoolVar(&o.generated, "generated", false, "also read generated files")
	return a
}

// An Inventory is what one package holds.
type Inventory struct {
	Locks    []Lock
	Findings []Finding // of locks that are declared elsewhere

	steps int // that were made to follow values
}

type options struct {
	tests, generated bool
	off              Fault // a rule that is switched off, so that tests can show that they notice
}

func (o *options) run(pass *analysis.Pass) *Inventory {
	in := pass.ResultOf[inspect.Analyzer].(*inspector.Inspector)
	s := newScan(pass, in, o.off)
	for c := range in.Root().Preorder((*ast.File)(nil)) {
		f := c.Node().(*ast.File)
		name := pass.Fset.Position(f.FileStart).Filename
		if (strings.HasSuffix(name, "_test.go") && !o.tests) || (ast.IsGenerated(f) && !o.generated) {
			continue
		}
		s.files = append(s.files, c)
		s.readSilence(f)
	}
	s.findLocks()
	s.findUses()
	inv := s.inventory()
	for _, f := range inv.all() {
		pass.Report(analysis.Diagnostic{
			Pos: f.at, Category: string(f.Fault), Message: fmt.Sprintf("%s: %s; %s", f.Fault, f.Message, f.Fix),
		})
	}
	return inv
}

func (inv *Inventory) all() []Finding {
	r := Report{Locks: inv.Locks, Findings: inv.Findings}
	return r.All()
}

// inventory turns what the scan has gathered into its result, ordered as the code is.
func (s *scan) inventory() *Inventory {
	inv := &Inventory{}
	slices.SortStableFunc(s.locks, func(a, b *lock) int { return cmp.Compare(a.at, b.at) })
	for _, l := range s.locks {
		out := l.Lock
		out.Checks = map[Fault]Check{}
		for _, f := range Faults() {
			out.Checks[f] = l.verdict(f)
		}
		slices.SortStableFunc(out.Findings, byPos)
		inv.Locks = append(inv.Locks, out)
	}
	slices.SortStableFunc(s.orphans, byPos)
	inv.Findings = s.orphans
	inv.steps = s.steps
	return inv
}

func byPos(a, b Finding) int { return cmp.Compare(a.at, b.at) }

// silence is a comment //holdlock:ignore FAULT reason, on the line of a finding or on the one above it. Without a reason
// it does nothing: whoever reads it must learn why.
const silence = "//holdlock:ignore "

type silenced struct {
	file  string
	line  int
	fault Fault
}

func (s *scan) readSilence(f *ast.File) {
	for _, g := range f.Comments {
		for _, c := range g.List {
			rest, ok := strings.CutPrefix(c.Text, silence)
			fault, reason, _ := strings.Cut(strings.TrimSpace(rest), " ")
			if ok && strings.TrimSpace(reason) != "" {
				p := s.pass.Fset.Position(c.Pos())
				s.silent[silenced{p.Filename, p.Line, Fault(fault)}] = true
				s.silent[silenced{p.Filename, p.Line + 1, Fault(fault)}] = true
			}
		}
	}
}

// report adds a finding to a lock, or to the package if the lock is not known.
func (s *scan) report(l *lock, f Fault, at token.Pos, message, fix string) {
	p := s.pass.Fset.Position(at)
	if f == s.off || s.silent[silenced{p.Filename, p.Line, f}] {
		return
	}
	finding := Finding{Fault: f, Pos: p, Message: message, Fix: fix, at: at}
	if l == nil {
		s.orphans = append(s.orphans, finding)
		return
	}
	for _, have := range l.Findings {
		if have.Fault == f && have.at == at {
			return
		}
	}
	l.Findings = append(l.Findings, finding)
}
