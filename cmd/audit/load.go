package audit

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/tools/go/packages"
)

// LoadOptions say what to read. The zero value reads what is written by hand, without tests.
type LoadOptions struct {
	// Dir is where the go command runs. Default: the current directory.
	Dir string
	// Env is the go command's environment. Default: that of this process.
	Env []string
	// Tests also reads _test.go files.
	Tests bool
	// All also reads generated files, and the packages of a vendor directory below Dir.
	All bool
}

// Run loads the packages that match the patterns, as the go command understands them, and audits them. What cannot be
// read is in Report.Problems. An error means that nothing could be read: there is no go command, or ctx ended. When ctx ends,
// Run ends the go command and begins nothing new; it returns when the packages that are being read are done.
func Run(ctx context.Context, o *LoadOptions, patterns ...string) (*Report, error) {
	if o == nil {
		o = &LoadOptions{}
	}
	pkgs, err := load(ctx, o, patterns)
	if err != nil {
		return nil, err
	}
	r, err := analyze(ctx, o, pkgs, "")
	if err == nil && len(pkgs) == 0 { // a clean report about nothing would mislead
		r.Problems = append(r.Problems, Problem{Message: "no packages match " + strings.Join(patterns, " ")})
	}
	return r, err
}

// load lists the packages with the go command and type-checks them from source: those that match in full, what they
// import without the bodies of functions. Nothing is compiled, so that it is quick with an empty build cache too, and what
// does not compile is read as far as it goes.
func load(ctx context.Context, o *LoadOptions, patterns []string) ([]*packages.Package, error) {
	mode := packages.NeedName | packages.NeedFiles | packages.NeedImports | packages.NeedDeps | packages.NeedModule | packages.NeedTypesSizes
	if o.Tests {
		mode |= packages.NeedForTest
	}
	fset := token.NewFileSet()
	pkgs, err := packages.Load(&packages.Config{Context: ctx, Dir: o.Dir, Env: o.Env, Mode: mode, Tests: o.Tests, Fset: fset}, patterns...)
	if err != nil {
		return nil, fmt.Errorf("audit: the go command cannot list %s: %w", strings.Join(patterns, " "), err)
	}
	if o.All {
		pkgs = append(pkgs, vendored(o.Dir, pkgs)...)
	}
	pkgs = withoutDoubles(pkgs)
	l := &loader{ctx: ctx, fset: fset, full: map[*packages.Package]bool{}, futures: map[*packages.Package]*future{}}
	l.slots = make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, p := range pkgs {
		l.full[p] = true
	}
	packages.Visit(pkgs, func(p *packages.Package) bool {
		l.futures[p] = &future{done: make(chan struct{})}
		return true
	}, nil)
	for p, f := range l.futures {
		go l.check(p, f)
	}
	for _, f := range l.futures {
		<-f.done
	}
	return pkgs, ctx.Err()
}

// vendored returns the packages of the vendor directory that the others import.
func vendored(dir string, pkgs []*packages.Package) []*packages.Package {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil
	}
	var out []*packages.Package
	packages.Visit(pkgs, nil, func(p *packages.Package) {
		if len(p.GoFiles) == 0 {
			return
		}
		if rel, err := filepath.Rel(abs, p.GoFiles[0]); err == nil && !strings.HasPrefix(rel, "..") && strings.Contains("/"+filepath.ToSlash(rel), "/vendor/") {
			out = append(out, p)
		}
	})
	return out
}

// withoutDoubles drops the main packages that the go command makes for tests, and those whose files are read with their
// tests too.
func withoutDoubles(pkgs []*packages.Package) []*packages.Package {
	tested := map[string]bool{}
	for _, p := range pkgs {
		if p.ForTest != "" && p.PkgPath == p.ForTest {
			tested[p.ForTest] = true
		}
	}
	seen := map[*packages.Package]bool{}
	var out []*packages.Package
	for _, p := range pkgs {
		generated := strings.HasSuffix(p.ID, ".test")
		if !generated && !(tested[p.PkgPath] && p.ForTest == "") && !seen[p] {
			seen[p] = true
			out = append(out, p)
		}
	}
	return out
}

// loader type-checks packages, each once its imports are done.
type loader struct {
	ctx     context.Context
	fset    *token.FileSet
	full    map[*packages.Package]bool
	futures map[*packages.Package]*future
	slots   chan struct{} // bounds the work at a time
}

type future struct {
	done  chan struct{}
	types *types.Package
}

func (l *loader) check(p *packages.Package, f *future) {
	defer close(f.done)
	if p.PkgPath == "unsafe" {
		f.types = types.Unsafe
		p.Types = types.Unsafe
		return
	}
	for _, d := range p.Imports {
		<-l.futures[d].done
	}
	l.slots <- struct{}{}
	defer func() { <-l.slots }()
	if l.ctx.Err() != nil {
		return
	}
	full := l.full[p]
	files := l.parse(p, full)
	cgo := importsC(files)
	conf := types.Config{
		Importer:         importer(func(path string) (*types.Package, error) { return l.imported(p, path) }),
		IgnoreFuncBodies: !full,
		FakeImportC:      true,
		Sizes:            p.TypesSizes,
		Error: func(err error) {
			if full && !(cgo && ofC(err)) {
				p.TypeErrors = append(p.TypeErrors, asTypeError(err))
			}
		},
	}
	if p.Module != nil && p.Module.GoVersion != "" {
		conf.GoVersion = "go" + p.Module.GoVersion
	}
	if full {
		p.TypesInfo = &types.Info{
			Types: map[ast.Expr]types.TypeAndValue{}, Instances: map[*ast.Ident]types.Instance{}, Defs: map[*ast.Ident]types.Object{},
			Uses: map[*ast.Ident]types.Object{}, Implicits: map[ast.Node]types.Object{}, Selections: map[*ast.SelectorExpr]*types.Selection{},
			Scopes: map[ast.Node]*types.Scope{}, FileVersions: map[*ast.File]string{},
		}
		p.Syntax = files
	}
	p.Fset = l.fset
	p.Types, _ = conf.Check(p.PkgPath, l.fset, files, p.TypesInfo) // errors are collected above
	p.IllTyped = len(p.TypeErrors) > 0 || len(p.Errors) > 0
	f.types = p.Types
}

// importsC tells whether a package uses C, whose types are not known here: cgo is not run.
func importsC(files []*ast.File) bool {
	for _, f := range files {
		for _, i := range f.Imports {
			if i.Path.Value == `"C"` {
				return true
			}
		}
	}
	return false
}

// ofC tells whether an error follows from that.
func ofC(err error) bool {
	return strings.Contains(err.Error(), "invalid type") || strings.Contains(err.Error(), "_C_") || strings.Contains(err.Error(), "C.")
}

func asTypeError(err error) types.Error {
	var e types.Error
	if errors.As(err, &e) {
		return e
	}
	return types.Error{Msg: err.Error()}
}

type importer func(path string) (*types.Package, error)

func (i importer) Import(path string) (*types.Package, error) { return i(path) }

func (l *loader) imported(p *packages.Package, path string) (*types.Package, error) {
	if path == "unsafe" {
		return types.Unsafe, nil
	}
	d := p.Imports[path]
	if d == nil || l.futures[d].types == nil {
		return nil, fmt.Errorf("package %s cannot be read", path)
	}
	return l.futures[d].types, nil
}

// parse reads the files of a package. What it cannot read of a package in full is a problem of that package.
func (l *loader) parse(p *packages.Package, full bool) []*ast.File {
	mode := parser.SkipObjectResolution
	if full {
		mode |= parser.ParseComments
	}
	var files []*ast.File
	for _, name := range p.GoFiles {
		src, err := os.ReadFile(name)
		var f *ast.File
		if err == nil {
			f, err = parser.ParseFile(l.fset, name, src, mode)
		}
		if err != nil && full && len(p.Errors) == 0 {
			pos := name
			var pathErr *fs.PathError
			if errors.As(err, &pathErr) {
				err = pathErr.Err
			}
			p.Errors = append(p.Errors, packages.Error{Pos: pos, Msg: err.Error(), Kind: packages.ParseError})
		}
		if f != nil {
			files = append(files, f)
		}
	}
	return files
}
