package audit

import (
	"go/ast"
	"go/constant"
	"go/types"
	"regexp"
	"slices"
	"strconv"

	"golang.org/x/tools/go/ast/inspector"
)

var luaKey = regexp.MustCompile(`^KEYS\[(\d+)\]$`)

// scriptKeys returns what the calls in sight give as the key that a script names KEYS[n], if the script at c stands in such a call, or
// in a variable or constant that does, itself or as a script object. Where a call does not show its keys, it returns nothing: they may
// be others.
func (s *scan) scriptKeys(c inspector.Cursor, key string) []ast.Expr {
	m := luaKey.FindStringSubmatch(key)
	if m == nil {
		return nil
	}
	n, err := strconv.Atoi(m[1])
	if err != nil || n == 0 {
		return nil
	}
	var keys []ast.Expr
	for _, u := range s.scriptUses(c, 0) {
		u = s.unparen(u)
		p := u.Parent()
		var args []ast.Expr
		switch e := p.Node().(type) {
		case *ast.SelectorExpr: // script.Run(ctx, client, keys, …)
			call, ok := p.Parent().Node().(*ast.CallExpr)
			if !ok || ast.Unparen(call.Fun) != ast.Expr(e) || !runs(e.Sel.Name) {
				continue // Hash, Load
			}
			args = call.Args
		case *ast.CallExpr: // client.Eval(ctx, script, keys, …)
			fn := s.callee(e)
			i := slices.IndexFunc(e.Args, func(a ast.Expr) bool { return ast.Node(a) == u.Node() })
			if fn == nil || i < 0 || !runs(fn.Name()) {
				continue // Load
			}
			args = e.Args[i+1:]
		default:
			return nil
		}
		k := s.keyGiven(args, n)
		if k == nil {
			return nil
		}
		keys = append(keys, k)
	}
	return keys
}

// scriptUses returns where a script is used that stands at c: there, or where what holds it is named.
func (s *scan) scriptUses(c inspector.Cursor, depth int) []inspector.Cursor {
	at := s.unparen(c)
	if call, ok := at.Parent().Node().(*ast.CallExpr); ok {
		if fn := s.callee(call); fn == nil || fn.Name() != "NewScript" {
			return []inspector.Cursor{at}
		}
		at = at.Parent()
	}
	obj := s.target(at, 0)
	if spec, ok := c.Node().(*ast.ValueSpec); ok && len(spec.Names) == 1 { // go:embed
		obj = s.info.Defs[spec.Names[0]]
	}
	if obj == nil || len(s.defs[obj]) > 1 || obj.Exported() || depth > maxDepth || !s.step() {
		return nil
	}
	if v, ok := obj.(*types.Var); ok && v.IsField() {
		return nil
	}
	var out []inspector.Cursor
	for _, u := range s.uses[obj] {
		at := s.unparen(u)
		if call, ok := at.Parent().Node().(*ast.CallExpr); ok {
			if fn := s.callee(call); fn != nil && fn.Name() == "NewScript" {
				out = append(out, s.scriptUses(u, depth+1)...)
				continue
			}
		}
		out = append(out, u)
	}
	return out
}

// runs tells whether a method of this name runs a script.
func runs(name string) bool {
	if kind, ok := touchNames[name]; ok && kind == touchScript {
		return true
	}
	return slices.Contains([]string{"EvalRO", "EvalShaRO", "RunRO", "Do", "DoContext", "Send"}, name)
}

// keyGiven returns key number n of the arguments after a script: a list of keys, or how many there are, and the keys.
func (s *scan) keyGiven(args []ast.Expr, n int) ast.Expr {
	for i, a := range args {
		if t := s.info.TypeOf(a); t != nil {
			if _, ok := types.Unalias(t).Underlying().(*types.Slice); ok {
				if list := s.list(a); n <= len(list) {
					return list[n-1]
				}
				return nil
			}
		}
		if v := s.constant(a); v != nil && v.Kind() == constant.Int {
			if count, ok := constant.Int64Val(v); ok && int64(n) <= count && i+n < len(args) {
				return args[i+n]
			}
			return nil
		}
	}
	return nil
}

// alike tells whether something is so of all keys.
func alike(keys []ast.Expr, f func(ast.Expr) bool) bool {
	return !slices.ContainsFunc(keys, func(k ast.Expr) bool { return !f(k) })
}
