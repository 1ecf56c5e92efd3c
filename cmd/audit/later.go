package audit

import (
	"go/ast"
	"go/token"
	"go/types"
	"strings"

	"golang.org/x/tools/go/ast/inspector"
)

// later tells whether the call at c, which releases l, runs when the function around it is over: it is deferred, or stands
// in a closure that is deferred, returned, or given to a Cleanup method, also through a variable. fresh is that closure:
// contexts made in it are made for the release. A closure that is handed on and takes the lock itself is no release but
// the work, as a handler is: then it is like any other function.
func (s *scan) later(l *lock, c inspector.Cursor) (later bool, fresh ast.Node) {
	if _, ok := c.Parent().Node().(*ast.DeferStmt); ok {
		return true, nil
	}
	for e := range c.Enclosing((*ast.FuncLit)(nil), (*ast.FuncDecl)(nil)) {
		inner := e
		lit, ok := e.Node().(*ast.FuncLit)
		if !ok {
			return false, nil
		}
		e := s.onced(e)
		uses := []inspector.Cursor{e}
		if v, ok := s.target(e, 0).(*types.Var); ok && !v.IsField() && !s.aliased[v] && len(s.defs[v]) == 1 {
			uses = s.uses[v]
		}
		for _, u := range uses {
			switch s.handing(u) {
			case deferred:
				return true, lit
			case handedOn:
				if !s.takesIn(l, inner) {
					return true, lit
				}
			}
		}
	}
	return false, nil
}

// onced is the function that sync makes of another one, to be called once, or the function itself.
func (s *scan) onced(f inspector.Cursor) inspector.Cursor {
	call, ok := s.unparen(f).Parent().Node().(*ast.CallExpr)
	if !ok || len(call.Args) != 1 || ast.Unparen(call.Args[0]) != f.Node() {
		return f
	}
	if fn := s.callee(call); fn != nil && fn.Pkg() != nil && fn.Pkg().Path() == "sync" && strings.HasPrefix(fn.Name(), "Once") {
		return s.unparen(f).Parent()
	}
	return f
}

// returnedIn tells whether a function is a field of a struct that is returned, whose name says that it ends something.
func (s *scan) returnedIn(field *ast.KeyValueExpr, c inspector.Cursor) bool {
	name, ok := field.Key.(*ast.Ident)
	if !ok || !has(releaseWords, name.Name) && !has(endWords, name.Name) {
		return false
	}
	lit := c.Parent() // the composite literal
	if u, ok := lit.Parent().Node().(*ast.UnaryExpr); ok && u.Op == token.AND {
		lit = lit.Parent()
	}
	_, ok = s.unparen(lit).Parent().Node().(*ast.ReturnStmt)
	return ok
}

// endWords are what functions are called besides that end what somebody holds.
var endWords = map[string]bool{"close": true, "stop": true, "cancel": true, "done": true, "end": true}

// handing says what becomes of a function.
type handing int

const (
	otherwise handing = iota
	deferred
	handedOn // returned, or given to a Cleanup method
)

func (s *scan) handing(f inspector.Cursor) handing {
	f = s.unparen(f)
	p := f.Parent()
	switch n := p.Node().(type) {
	case *ast.ReturnStmt:
		return handedOn
	case *ast.KeyValueExpr:
		if s.returnedIn(n, p) {
			return handedOn
		}
	case *ast.CallExpr:
		if ast.Node(n.Fun) == f.Node() {
			if _, ok := p.Parent().Node().(*ast.DeferStmt); ok {
				return deferred
			}
		} else if fn := s.callee(n); fn != nil && fn.Name() == "Cleanup" {
			return handedOn
		}
	}
	return otherwise
}

// takesIn tells whether a closure takes a lock, as far as the names of what it calls say so.
func (s *scan) takesIn(l *lock, lit inspector.Cursor) bool {
	in := func(c inspector.Cursor) bool {
		return lit.Node().Pos() <= c.Node().Pos() && c.Node().End() <= lit.Node().End()
	}
	if l != nil && in(l.cur) {
		return true
	}
	for _, other := range s.locks {
		if l == nil && in(other.cur) {
			return true
		}
	}
	for c := range lit.Preorder((*ast.CallExpr)(nil)) {
		fn := s.callee(c.Node().(*ast.CallExpr))
		if fn != nil && !has(releaseWords, fn.Name()) && (has(lockWords, fn.Name()) || has(takeWords, fn.Name()) || has(takeCalls, fn.Name())) {
			return true
		}
	}
	return false
}
