package audit

import (
	"cmp"
	"context"
	"slices"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/checker"
	"golang.org/x/tools/go/packages"
)

// maxProblems is how many problems of one package are reported: the rest mostly follow from the first.
const maxProblems = 3

// analyze runs the rules on loaded packages; off is a rule to leave out.
func analyze(ctx context.Context, o *LoadOptions, pkgs []*packages.Package, off Fault) (*Report, error) {
	a := NewAnalyzer()
	opts := &options{tests: o.Tests, generated: o.All, off: off}
	a.Run = func(pass *analysis.Pass) (any, error) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		return opts.run(pass), nil
	}
	r := &Report{}
	var readable []*packages.Package
	for _, p := range pkgs {
		r.Problems = append(r.Problems, problems(p)...)
		if p.Types != nil && p.TypesInfo != nil && len(p.Syntax) > 0 { // else it is a name that the go command could not find
			readable = append(readable, p)
		}
	}
	r.Packages = len(readable)
	g, err := checker.Analyze([]*analysis.Analyzer{a}, readable, nil)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	for _, act := range g.Roots {
		if act.Err != nil {
			r.Problems = append(r.Problems, Problem{Package: act.Package.PkgPath, Message: act.Err.Error()})
			continue
		}
		inv := act.Result.(*Inventory)
		r.Locks = append(r.Locks, inv.Locks...)
		r.Findings = append(r.Findings, inv.Findings...)
	}
	slices.SortStableFunc(r.Locks, func(a, b Lock) int {
		return cmp.Or(cmp.Compare(a.Package, b.Package), cmp.Compare(a.Pos.Filename, b.Pos.Filename), cmp.Compare(a.Pos.Offset, b.Pos.Offset))
	})
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Pos.Filename, b.Pos.Filename), cmp.Compare(a.Pos.Offset, b.Pos.Offset))
	})
	return r, nil
}

// problems are those that the go command and the type checker have met.
func problems(p *packages.Package) []Problem {
	var out []Problem
	for _, e := range p.Errors {
		out = append(out, Problem{Package: p.PkgPath, Pos: e.Pos, Message: e.Msg})
	}
	if len(out) == 0 { // else they say the same again
		for _, e := range p.TypeErrors {
			pos := ""
			if e.Fset != nil {
				pos = e.Fset.Position(e.Pos).String()
			}
			out = append(out, Problem{Package: p.PkgPath, Pos: pos, Message: e.Msg})
		}
	}
	if len(out) > maxProblems {
		out = out[:maxProblems]
	}
	return out
}
