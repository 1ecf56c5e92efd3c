package audit

import (
	"go/ast"
	"go/types"
)

// helped returns the calls of the function that t stands in, if that gets the key as a parameter: as releases with the
// key and the context that they give. They count only for locks that are taken where the call stands: what a type's own
// Unlock(key) does is judged there.
func (s *scan) helped(t touch) []touch {
	if t.in == nil || has(forceWords, t.in.Name.Name) || (t.what != touchDelete && t.what != touchScript) {
		return nil
	}
	fn, _ := s.info.Defs[t.in.Name].(*types.Func)
	if fn == nil {
		return nil
	}
	given := func(e ast.Expr) (int, bool) {
		if e == nil {
			return 0, false
		}
		v, ok := s.object(e).(*types.Var)
		if !ok || len(s.defs[v]) > 0 || s.owners[v].fn != fn {
			return 0, false
		}
		return s.owners[v].arg, true
	}
	var out []touch
	for _, k := range t.keys {
		arg, ok := given(k)
		if !ok {
			continue
		}
		for _, u := range s.uses[fn] {
			f := u
			if sel, ok := u.Parent().Node().(*ast.SelectorExpr); ok && sel.Sel == u.Node() {
				f = u.Parent()
			}
			c := s.unparen(f).Parent()
			call, ok := c.Node().(*ast.CallExpr)
			if !ok || ast.Unparen(call.Fun) != f.Node() || len(call.Args) != fn.Signature().Params().Len() {
				continue
			}
			s.site()
			key := call.Args[arg]
			h := touch{at: c, in: s.decl(c), keys: []ast.Expr{key}, named: []keyText{s.keyText(key)}, what: t.what, script: t.script, queued: t.queued, unsure: t.unsure, helped: true}
			if i, ok := given(t.ctx); ok {
				h.ctx = call.Args[i]
			}
			if h.in != nil && h.in != t.in {
				out = append(out, h)
			}
		}
	}
	return out
}
