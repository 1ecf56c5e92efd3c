package audit

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/types/typeutil"
)

// grade says how well a lock's value tells one holder from another.
type grade int

const (
	weak    grade = iota // the same for several holders, or easily so
	unclear              // it comes from elsewhere
	strong               // random enough
)

// judgeValue judges the value of a lock that is given as an expression.
func (s *scan) judgeValue(l *lock, value ast.Expr, how string) {
	g, why := s.strength(value, nil)
	s.judgeStrength(l, g, why, value.Pos(), how)
}

func (s *scan) judgeStrength(l *lock, g grade, why string, at token.Pos, how string) {
	switch g {
	case strong:
		l.ok(GuessableValue)
	case unclear:
		if why == "" {
			why = "the value comes from elsewhere"
		}
		l.unknown(GuessableValue, s.because(why))
	default:
		s.report(l, GuessableValue, at, "the value of "+called(l, nil)+" is "+why+" ("+how+"): a release cannot tell one holder from the next",
			"use 128 bits of crypto/rand for every attempt")
	}
}

// strength judges a value. It is as strong as its strongest part; parts that are weak alone can be enough together. key, if it
// is not nil, is the lock's own.
func (s *scan) strength(e, key ast.Expr) (grade, string) {
	g, parts := s.grade(e, key, 0)
	switch {
	case g != weak:
		return g, ""
	case parts.once():
		return unclear, "the value is made once for the process: two holders in it have the same"
	case parts.enough():
		return unclear, "the value is " + parts.String() + ": it tells holders apart unless two of them make it in the same instant, or by the same chance"
	}
	return weak, parts.String()
}

// parts are what a weak value is made of.
type parts []part

type part struct {
	what string
	kind partKind
}

type partKind int

const (
	fixed   partKind = iota // the same for all
	placed                  // the same for all in one place
	passing                 // another one the next time, but not for certain
	once                    // random, and made once for the process
)

func (p parts) once() bool {
	return slices.ContainsFunc(p, func(x part) bool { return x.kind == once })
}

// enough tells whether the parts may tell holders apart together: where somebody is, and when.
func (p parts) enough() bool {
	n, passes := 0, false
	for _, x := range p {
		if x.kind != fixed {
			n++
		}
		passes = passes || x.kind == passing
	}
	return passes && n > 1
}

// String lists what varies, or the first part if nothing does.
func (p parts) String() string {
	var out []string
	for _, x := range p {
		if x.kind != fixed {
			out = append(out, x.what)
		}
	}
	switch n := len(out); {
	case n == 1:
		return out[0]
	case n > 1:
		return strings.Join(out[:n-1], ", ") + " and " + out[n-1]
	case len(p) == 0:
		return "a constant"
	}
	for _, x := range p {
		if !strings.HasPrefix(x.what, "the constant") {
			return x.what
		}
	}
	return p[0].what
}

func is(what string, kind partKind) (grade, parts) { return weak, parts{{what, kind}} }

func (s *scan) grade(e, key ast.Expr, depth int) (grade, parts) {
	if e == nil || depth > maxDepth || !s.step() {
		return unclear, nil
	}
	if v := s.constant(e); v != nil {
		return is("the constant "+v.String(), fixed)
	}
	if key != nil {
		if k := s.canon(key, false, 0); k != "" && k == s.canon(e, false, 0) {
			return is("the lock's own key", fixed)
		}
	}
	if s.global(e) {
		g, parts := s.gradeSource(s.source(e), key, depth)
		if g == strong {
			return is("a value that is made once for the process", once)
		}
		return g, parts
	}
	return s.gradeSource(s.source(e), key, depth)
}

// global tells whether a value comes through a variable of the package.
func (s *scan) global(e ast.Expr) bool {
	for range maxDepth {
		v, ok := s.object(e).(*types.Var)
		if ok && v.Parent() == s.pass.Pkg.Scope() {
			return true
		}
		d, ok := s.only(e)
		if !ok || d.rhs == nil || d.index > 0 {
			return false
		}
		e = d.rhs
	}
	return false
}

func (s *scan) gradeSource(e, key ast.Expr, depth int) (grade, parts) {
	switch src := e.(type) {
	case *ast.BinaryExpr:
		if src.Op == token.ADD {
			return s.strongest([]ast.Expr{src.X, src.Y}, key, depth)
		}
	case *ast.CallExpr:
		return s.gradeCall(src, key, depth)
	case *ast.SliceExpr:
		return s.grade(src.X, key, depth+1)
	case *ast.SelectorExpr:
		if v, ok := s.object(src).(*types.Var); ok && v.Pkg() != nil && constantID(unversioned(v.Pkg().Path()), v.Name()) {
			return is("the constant "+show(src), fixed)
		}
	}
	return unclear, nil
}

// strongest grades what is put together of several values.
func (s *scan) strongest(values []ast.Expr, key ast.Expr, depth int) (grade, parts) {
	best, all := weak, parts(nil)
	for _, v := range values {
		g, p := s.grade(v, key, depth+1)
		best = max(best, g)
		for _, x := range p {
			if !slices.Contains(all, x) {
				all = append(all, x)
			}
		}
	}
	if best != weak {
		return best, nil
	}
	return weak, all
}

func (s *scan) gradeCall(call *ast.CallExpr, key ast.Expr, depth int) (grade, parts) {
	fn := s.callee(call)
	if fn == nil {
		if f, _ := typeutil.Callee(s.info, call).(*types.Func); f != nil && len(call.Args) == 1 { // uuid.Must(uuid.NewRandom())
			if path, name := library(f); random[path] != nil && name == "Must" {
				return s.grade(call.Args[0], key, depth+1)
			}
		}
		return unclear, nil
	}
	path, name := library(fn)
	switch {
	case random[path] != nil:
		return s.gradeID(call, path, name, key, depth)
	case path == "crypto/rand" && name == "Text":
		return strong, nil
	case path == "crypto/rand" && name == "Int" && len(call.Args) == 2:
		if big, ok := s.source(call.Args[1]).(*ast.CallExpr); ok && len(big.Args) == 1 {
			return s.oneOf(big.Args[0], strong)
		}
	case path == "os" && (name == "Getpid" || name == "Getppid"):
		return is("the process id", placed)
	case path == "os" && name == "Hostname":
		return is("the name of the host", placed)
	case path == "time" && name == "Now":
		return is("the time", passing)
	case (path == "math/rand" || path == "math/rand/v2") && (name == "Intn" || name == "IntN" || name == "Int31n" || name == "Int32N") && len(call.Args) == 1:
		return s.oneOf(call.Args[0], unclear)
	case path == "time" && strings.HasPrefix(name, "Time."):
		return s.grade(receiver(call), key, depth+1)
	case path == "encoding/hex" || path == "encoding/base64":
		if len(call.Args) == 1 {
			return s.gradeBytes(call.Args[0])
		}
	case path == "fmt" && strings.HasPrefix(name, "Sprint"), path == "strconv", path == "strings" && name == "Join":
		return s.strongest(call.Args, key, depth)
	case strings.HasSuffix(name, ".String") && receiver(call) != nil:
		return s.grade(receiver(call), key, depth+1)
	}
	return unclear, nil
}

// oneOf grades a random number below n; many is the grade if there are enough of them.
func (s *scan) oneOf(n ast.Expr, many grade) (grade, parts) {
	v := s.constant(n)
	if v == nil {
		return unclear, nil
	}
	if n, ok := constant.Int64Val(constant.ToInt(v)); ok && n <= 1<<32 {
		return is("one of "+v.String()+" numbers", passing)
	}
	return many, nil
}

// gradeBytes knows bytes that crypto/rand has filled.
func (s *scan) gradeBytes(e ast.Expr) (grade, parts) {
	x := ast.Unparen(e)
	if sl, ok := x.(*ast.SliceExpr); ok {
		x = sl.X
	}
	v, ok := s.object(x).(*types.Var)
	if !ok {
		return unclear, nil
	}
	for _, u := range s.uses[v] {
		for c := range u.Enclosing((*ast.CallExpr)(nil)) {
			call := c.Node().(*ast.CallExpr)
			fn := s.callee(call)
			if fn == nil {
				continue
			}
			if fn.FullName() == "crypto/rand.Read" {
				return strong, nil
			}
			if fn.FullName() == "io.ReadFull" && len(call.Args) == 2 {
				if r := s.object(call.Args[0]); r != nil && r.Pkg() != nil && r.Pkg().Path() == "crypto/rand" {
					return strong, nil
				}
			}
		}
	}
	return unclear, nil
}
