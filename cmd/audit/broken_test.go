package audit

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"go/types"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"testing"

	"golang.org/x/tools/go/analysis"
	"golang.org/x/tools/go/analysis/passes/inspect"
	"golang.org/x/tools/go/ast/inspector"
	"golang.org/x/tools/go/packages"
)

// TestBrokenAnywhere takes tokens out of the fixtures, in many ways, and reads what is left: code that does not
// compile must not make the rules panic.
func TestBrokenAnywhere(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	read, illTyped := 0, 0
	for _, p := range loadFixtures(t) {
		var sources [][]byte
		for _, name := range p.GoFiles {
			src, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			sources = append(sources, src)
		}
		for range 50 {
			i := rng.IntN(len(sources))
			whole := sources[i]
			sources[i] = withoutTokens(rng, whole)
			errs := auditSources(t, p, sources)
			if read++; errs > 0 {
				illTyped++
			}
			sources[i] = whole
			if t.Failed() {
				return
			}
		}
	}
	t.Logf("%d mutants read, %d of them with type errors", read, illTyped)
	if illTyped < read/4 {
		t.Errorf("only %d of %d mutants have type errors: they do not break enough", illTyped, read)
	}
}

// withoutTokens takes one to three tokens out, which stand together.
func withoutTokens(rng *rand.Rand, src []byte) []byte {
	var s scanner.Scanner
	file := token.NewFileSet().AddFile("", -1, len(src))
	s.Init(file, src, nil, 0)
	var at []int
	for {
		pos, tok, _ := s.Scan()
		if tok == token.EOF {
			break
		}
		at = append(at, file.Offset(pos))
	}
	at = append(at, len(src))
	i := rng.IntN(len(at) - 4)
	from, to := at[i], at[i+1+rng.IntN(3)]
	return append(bytes.Clone(src[:from]), src[to:]...)
}

// auditSources type-checks the sources as package p and runs the rules on them. It returns the number of type errors.
func auditSources(t *testing.T, p *packages.Package, sources [][]byte) (errs int) {
	t.Helper()
	_, errs = inventorySources(t, p, sources)
	return errs
}

func inventorySources(t *testing.T, p *packages.Package, sources [][]byte) (inv *Inventory, errs int) {
	t.Helper()
	fset := token.NewFileSet()
	var files []*ast.File
	for i, src := range sources {
		f, _ := parser.ParseFile(fset, p.GoFiles[i], src, parser.ParseComments|parser.SkipObjectResolution)
		if f != nil {
			files = append(files, f)
		}
	}
	info := &types.Info{
		Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{}, Uses: map[*ast.Ident]types.Object{},
		Implicits: map[ast.Node]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{}, Instances: map[*ast.Ident]types.Instance{},
		Scopes: map[ast.Node]*types.Scope{},
	}
	conf := types.Config{
		Importer: importer(func(path string) (*types.Package, error) {
			if d := p.Imports[path]; d != nil {
				return d.Types, nil
			}
			return types.NewPackage(path, "nowhere"), nil
		}),
		Error: func(error) { errs++ },
	}
	pkg, _ := conf.Check(p.PkgPath, fset, files, info)
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("panic: %v\n%s", r, debug.Stack())
			for i, src := range sources {
				t.Logf("%s:\n%s", p.GoFiles[i], src)
			}
		}
	}()
	inv = (&options{}).run(&analysis.Pass{
		Analyzer: NewAnalyzer(), Fset: fset, Files: files, Pkg: pkg, TypesInfo: info, TypesSizes: p.TypesSizes, Report: func(analysis.Diagnostic) {},
		ResultOf: map[*analysis.Analyzer]any{inspect.Analyzer: inspector.New(files)},
	})
	return inv, errs
}
