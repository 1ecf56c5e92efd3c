package audit

import (
	"go/ast"
	"go/token"
	"go/types"

	"golang.org/x/tools/go/ast/inspector"
)

// settings are a composite literal and the variables that it goes through on its way to where it is used, in which its
// fields can be changed.
type settings struct {
	lit     *ast.CompositeLit // without elements if a variable has no value at first
	through []step
}

// step is a variable, and where its fields are read for the last time on the way: where it is copied, or, if it is a
// pointer, where it is used.
type step struct {
	v  *types.Var
	at token.Pos
}

// settingsOf returns what an expression is a literal of, with or without &, or nil.
func (s *scan) settingsOf(e ast.Expr) *settings {
	if e == nil {
		return nil
	}
	o, at := &settings{}, e.Pos()
	for range 2 * maxDepth {
		e = ast.Unparen(e)
		if u, ok := e.(*ast.UnaryExpr); ok && u.Op == token.AND {
			e = u.X
			continue
		}
		if star, ok := e.(*ast.StarExpr); ok {
			e = star.X
			continue
		}
		if lit, ok := e.(*ast.CompositeLit); ok {
			o.lit = lit
			return o
		}
		if call, ok := e.(*ast.CallExpr); ok && len(call.Args) == 1 {
			switch fun := s.info.Types[call.Fun]; {
			case fun.IsType():
				e = call.Args[0]
				continue
			case fun.IsBuiltin() && structOf(s.info.TypeOf(call.Args[0])) != nil: // new(T)
				o.lit = &ast.CompositeLit{}
				return o
			}
		}
		if v, ok := s.object(e).(*types.Var); ok {
			if structOf(v.Type()) != nil {
				at = e.Pos()
			}
			o.through = append(o.through, step{v, at})
			if s.zero(v) {
				o.lit = &ast.CompositeLit{}
				return o
			}
		}
		d, ok := s.onlyDef(e, true)
		if !ok || d.index > 0 || d.rhs == nil {
			return nil
		}
		e = d.rhs
	}
	return nil
}

// zero tells whether a variable is a struct of a function that is declared without a value, and only its fields are set.
func (s *scan) zero(v *types.Var) bool {
	return s.initial[v] && !v.IsField() && (!s.aliased[v] || s.onlyRead(v)) && len(s.defs[v]) == 0 && v.Kind() == types.LocalVar && structOf(v.Type()) != nil
}

// onlyRead tells whether the address of a struct is given to nobody but the library that declares its type, which only reads
// options.
func (s *scan) onlyRead(v *types.Var) bool {
	n, ok := types.Unalias(v.Type()).(*types.Named)
	if !ok || structOf(n) == nil || n.Obj().Pkg() == s.pass.Pkg {
		return false
	}
	for _, c := range s.lentAt[v] {
		call, ok := s.unparen(c).Parent().Node().(*ast.CallExpr)
		if !ok {
			return false
		}
		if fn := s.callee(call); fn == nil || fn.Pkg() == nil || fn.Pkg() != n.Obj().Pkg() {
			return false
		}
	}
	return true
}

// literal returns the composite literal that an expression comes from, with or without &, or nil.
func (s *scan) literal(e ast.Expr) *ast.CompositeLit {
	if o := s.settingsOf(e); o != nil {
		return o.lit
	}
	return nil
}

// field returns what a field is set to, and whether that is certain. It is nil if nothing sets it; what is not certain is
// one of its values, or nil.
func (s *scan) field(o *settings, name string) (value ast.Expr, sure bool) {
	value = s.written(o.lit, name)
	var later []def
	var read token.Pos
	for _, t := range o.through {
		for _, u := range s.uses[t.v] {
			if s.lent(o, t.v, u) {
				return value, false
			}
			sel, ok := u.Parent().Node().(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != name {
				continue
			}
			later, read = append(later, assigned(u.Parent())...), t.at
		}
	}
	switch {
	case len(later) == 0:
		return value, true
	case len(later) == 1 && later[0].rhs != nil && before(later[0].in, read):
		return later[0].rhs, true
	}
	for _, d := range later {
		if value == nil {
			value = d.rhs
		}
	}
	return value, false
}

// written returns what a composite literal sets a field to, or nil.
func (s *scan) written(lit *ast.CompositeLit, name string) ast.Expr {
	for i, e := range lit.Elts {
		kv, ok := e.(*ast.KeyValueExpr)
		if !ok {
			if st := structOf(s.info.TypeOf(lit)); st != nil && i < st.NumFields() && st.Field(i).Name() == name {
				return e
			}
			continue
		}
		if id, ok := kv.Key.(*ast.Ident); ok && id.Name == name {
			return kv.Value
		}
	}
	return nil
}

// structOf returns the struct that a type is, or nil.
func structOf(t types.Type) *types.Struct {
	if t == nil {
		return nil
	}
	st, _ := types.Unalias(t).Underlying().(*types.Struct)
	return st
}

// assigned returns the changes of what the expression at c names: none if it is only read. A change without rhs is one
// whose value is not in the code.
func assigned(c inspector.Cursor) []def {
	switch p := c.Parent().Node().(type) {
	case *ast.AssignStmt:
		for i, l := range p.Lhs {
			if ast.Node(l) != c.Node() {
				continue
			}
			if p.Tok == token.ASSIGN && len(p.Rhs) == len(p.Lhs) {
				return []def{{p.Rhs[i], -1, c.Parent()}}
			}
			return []def{{nil, -1, c.Parent()}}
		}
	case *ast.UnaryExpr:
		if p.Op == token.AND {
			return []def{{nil, -1, c}}
		}
	case *ast.IncDecStmt, *ast.RangeStmt:
		return []def{{nil, -1, c}}
	}
	return nil
}

// lent tells whether somebody else can change the fields of a variable after the use at u: a method, or whoever gets the
// pointer. The library that declares the type only reads.
func (s *scan) lent(o *settings, v *types.Var, u inspector.Cursor) bool {
	if sel, ok := u.Parent().Node().(*ast.SelectorExpr); ok {
		chosen := s.info.Selections[sel]
		return chosen == nil || chosen.Kind() != types.FieldVal
	}
	p, pointer := types.Unalias(v.Type()).(*types.Pointer)
	if !pointer {
		return false // what takes its address is seen by only
	}
	switch parent := s.unparen(u).Parent().Node().(type) {
	case *ast.StarExpr: // a copy, or (*v).Field
		_, sel := s.unparen(s.unparen(u).Parent()).Parent().Node().(*ast.SelectorExpr)
		return sel
	case *ast.BinaryExpr:
		return false
	case *ast.CallExpr:
		n, ok := types.Unalias(p.Elem()).(*types.Named)
		fn := s.callee(parent)
		return !ok || fn == nil || fn.Pkg() == nil || fn.Pkg() != n.Obj().Pkg() || fn.Pkg() == s.pass.Pkg
	case *ast.AssignStmt, *ast.ValueSpec:
		for _, t := range o.through { // from one of the variables to the next
			if ds := s.defs[t.v]; len(ds) == 1 && ds[0].in.Node() == parent {
				return false
			}
		}
	}
	return true
}
