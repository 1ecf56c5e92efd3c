package audit

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/ast/inspector"
)

// life says how long a context lasts, as far as the code shows it.
type life int

const (
	lifeUnknown life = iota
	lifeFree         // it does not end by itself
	lifeEnds         // it may have ended when the work is over
)

// release looks at the context of a release. Only releases that run whatever has happened to the context before are
// judged: deferred ones, and those in a function that is handed back to be called later. l may be nil; what names the lock
// for people.
func (s *scan) release(l *lock, c inspector.Cursor, ctx ast.Expr, what string) {
	later, fresh := s.later(l, c)
	life, why := s.life(ctx, fresh, 0)
	switch {
	case life == lifeFree:
		l.judge(OK, "")
	case !later:
		if d := s.wrap(l, c, ctx, what); d != nil {
			l.judge(Unknown, "the context of the release is what "+funcName(d)+" is called with: calls in this package are judged, and there may be others")
			break
		}
		l.judge(Unknown, "the release is not deferred: whether its context can have ended depends on the code around it")
	case life == lifeEnds:
		s.report(l, ReleaseContext, c.Node().Pos(),
			what+" is released with "+why+"; if that has ended by then, nothing is sent and the lock stays taken",
			"release with a context of its own, as in context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)")
		l.judge(OK, "")
	default:
		l.judge(Unknown, s.because("the context of the release comes from elsewhere: "+show(ctx)))
	}
}

// A wrapper is a function of this package that releases a lock with a context that its caller gives it.
type wrapper struct {
	fn   *types.Func
	lock *lock
	what string
	arg  int // the context's place among the arguments
}

// wrap notes that a release is one of a wrapper, if its context is a parameter of the function around it, and returns that; else nil.
func (s *scan) wrap(l *lock, c inspector.Cursor, ctx ast.Expr, what string) *ast.FuncDecl {
	d := s.decl(c)
	v, ok := s.object(ctx).(*types.Var)
	if d == nil || !ok || !s.params[v] || !isContext(v.Type()) || len(s.defs[v]) > 0 || s.enclosing(c, true) != ast.Node(d) {
		return nil
	}
	fn, ok := s.info.Defs[d.Name].(*types.Func)
	if !ok {
		return nil
	}
	for i := range fn.Signature().Params().Len() {
		w := wrapper{fn, l, what, i}
		if fn.Signature().Params().At(i) == v && !s.wrapped[w] { // once, however often it releases, and if it calls itself
			s.wrapped[w] = true
			s.wrappers[fn] = append(s.wrappers[fn], w)
		}
	}
	return d
}

// followWrappers judges the calls of wrappers as releases, and those that are wrappers themselves in turn.
func (s *scan) followWrappers() {
	for range maxDepth {
		found := s.wrappers
		s.wrappers = map[*types.Func][]wrapper{}
		if len(found) == 0 {
			return
		}
		s.calls(func(c inspector.Cursor, call *ast.CallExpr, fn *types.Func) bool {
			for _, w := range found[fn] {
				if w.arg < len(call.Args) {
					s.release(w.lock, c, call.Args[w.arg], w.what)
				}
			}
			return true
		})
	}
}

// judge notes the verdict on one release: what is not known of one is not known of the lock.
func (l *lock) judge(v Verdict, why string) {
	if l == nil || (l.released && v != Unknown) {
		return
	}
	l.released = true
	l.base[ReleaseContext] = Check{v, why}
}

// life follows a context to its root. fresh is the closure that releases, or nil.
func (s *scan) life(e ast.Expr, fresh ast.Node, depth int) (life, string) {
	if depth > maxDepth || e == nil || !s.step() {
		return lifeUnknown, ""
	}
	switch e := ast.Unparen(e).(type) {
	case *ast.CallExpr:
		return s.lifeOfCall(e, fresh, depth)
	case *ast.Ident:
		v, ok := s.object(e).(*types.Var)
		if !ok || v.IsField() || v.Parent() == s.pass.Pkg.Scope() || s.aliased[v] {
			return lifeUnknown, ""
		}
		return s.lifeOfVar(v, fresh, depth)
	}
	return lifeUnknown, ""
}

// lifeOfVar judges a variable by everything that is assigned to it: it ends only if all of that ends.
func (s *scan) lifeOfVar(v *types.Var, fresh ast.Node, depth int) (life, string) {
	var all []life
	var why string
	if s.params[v] {
		if !isContext(v.Type()) {
			return lifeUnknown, "" // other types decide themselves what ends them
		}
		if arg, ok := s.argument(v, fresh); ok {
			return s.life(arg, nil, depth+1)
		}
		if s.twins[v] {
			return lifeUnknown, "" // one of them may be that of the program
		}
		l, w, ok := s.lifeOfCallers(v, depth)
		if !ok {
			l, w = lifeEnds, "the context of the caller, "+v.Name()
		}
		all, why = append(all, l), w
	}
	for _, d := range s.defs[v] {
		if d.rhs == nil || (d.index > 0 && !s.isErrgroup(d.rhs)) { // an errgroup's context is the second result
			return lifeUnknown, ""
		}
		if id, ok := ast.Unparen(d.rhs).(*ast.Ident); ok && s.object(id) == types.Object(v) {
			continue
		}
		if s.derives(d.rhs, v) { // ctx, cancel = context.WithTimeout(ctx, …): as its parent, which is judged too
			continue
		}
		l, w := s.life(d.rhs, fresh, depth+1)
		all = append(all, l)
		if l == lifeEnds && why == "" {
			why = w
		}
	}
	if len(all) == 0 {
		return lifeUnknown, ""
	}
	for _, l := range all {
		if l != all[0] {
			return lifeUnknown, ""
		}
	}
	return all[0], why
}

// lifeOfCallers judges the parameter of a function that only this package can call by what all calls give for it. It is not
// ok if there may be others: the function is exported, or a value.
func (s *scan) lifeOfCallers(v *types.Var, depth int) (l life, why string, ok bool) {
	o, found := s.owners[v]
	if !found || o.fn.Exported() || len(s.uses[o.fn]) == 0 {
		return 0, "", false
	}
	free := o.fn.Signature().Recv() == nil // a method may be called through an interface too
	for _, u := range s.uses[o.fn] {
		f := u
		if sel, ok := u.Parent().Node().(*ast.SelectorExpr); ok && sel.Sel == u.Node() {
			f = u.Parent()
		}
		call, isCall := s.unparen(f).Parent().Node().(*ast.CallExpr)
		if !isCall || ast.Unparen(call.Fun) != f.Node() || o.arg >= len(call.Args) {
			return 0, "", false
		}
		arg := call.Args[o.arg]
		if s.object(arg) == types.Object(v) { // it calls itself
			continue
		}
		switch l, why := s.life(arg, nil, depth+1); l {
		case lifeEnds:
			return l, why, true
		case lifeUnknown:
			free = false
		}
	}
	if free {
		return lifeFree, "", true
	}
	return lifeUnknown, "", true
}

func (s *scan) isErrgroup(e ast.Expr) bool {
	call, ok := ast.Unparen(e).(*ast.CallExpr)
	return ok && s.callee(call) != nil && s.callee(call).FullName() == errgroupContext
}

const errgroupContext = "golang.org/x/sync/errgroup.WithContext"

// derives tells whether rhs only puts a further end or a value on v itself.
func (s *scan) derives(rhs ast.Expr, v *types.Var) bool {
	call, ok := ast.Unparen(rhs).(*ast.CallExpr)
	if !ok || len(call.Args) == 0 || s.object(call.Args[0]) != types.Object(v) {
		return false
	}
	fn := s.callee(call)
	if fn == nil || fn.Pkg() == nil || fn.Pkg().Path() != "context" {
		return false
	}
	switch fn.Name() {
	case "WithTimeout", "WithTimeoutCause", "WithDeadline", "WithDeadlineCause", "WithCancel", "WithCancelCause", "WithValue":
		return true
	}
	return false
}

// argument is what a deferred closure gets for its own parameter, as in defer func(ctx context.Context) {…}(x).
func (s *scan) argument(v *types.Var, fresh ast.Node) (ast.Expr, bool) {
	lit, ok := fresh.(*ast.FuncLit)
	if !ok {
		return nil, false
	}
	i := 0
	for _, f := range lit.Type.Params.List {
		for _, n := range f.Names {
			if s.info.Defs[n] == types.Object(v) {
				c, ok := s.root.FindNode(lit)
				if !ok {
					return nil, false
				}
				call, ok := s.unparen(c).Parent().Node().(*ast.CallExpr)
				if !ok || ast.Unparen(call.Fun) != ast.Expr(lit) || i >= len(call.Args) {
					return nil, true // whoever calls it decides
				}
				return call.Args[i], true
			}
			i++
		}
	}
	return nil, false
}

func (s *scan) lifeOfCall(call *ast.CallExpr, fresh ast.Node, depth int) (life, string) {
	fn := s.callee(call)
	if fn == nil || fn.Pkg() == nil {
		return lifeUnknown, ""
	}
	parent := func() (life, string) {
		if len(call.Args) == 0 {
			return lifeUnknown, ""
		}
		return s.life(call.Args[0], fresh, depth+1)
	}
	inside := fresh != nil && fresh.Pos() <= call.Pos() && call.End() <= fresh.End()
	switch fn.FullName() {
	case "context.Background", "context.TODO", "context.WithoutCancel":
		return lifeFree, ""
	case "context.WithValue":
		return parent()
	case "context.WithTimeout", "context.WithTimeoutCause", "context.WithDeadline", "context.WithDeadlineCause":
		l, why := parent()
		if l == lifeFree && !inside {
			return lifeEnds, "a context that was given a deadline before the work"
		}
		return l, why
	case "context.WithCancel", "context.WithCancelCause":
		l, why := parent()
		if l == lifeFree && !inside {
			return lifeUnknown, "" // it depends on who calls cancel, and when
		}
		return l, why
	case "os/signal.NotifyContext":
		return lifeEnds, "a context that a signal ends"
	case errgroupContext:
		return lifeEnds, "the context of an errgroup, which ends with it"
	case "(*net/http.Request).Context":
		return lifeEnds, "the context of the request"
	}
	return lifeUnknown, ""
}

func isContext(t types.Type) bool {
	n, ok := types.Unalias(t).(*types.Named)
	return ok && n.Obj().Name() == "Context" && n.Obj().Pkg() != nil && n.Obj().Pkg().Path() == "context"
}

// ctxArg returns the first argument of a call if it is a context.
func (s *scan) ctxArg(call *ast.CallExpr) ast.Expr {
	if len(call.Args) > 0 {
		if t := s.info.TypeOf(call.Args[0]); t != nil && implementsContext(t) {
			return call.Args[0]
		}
	}
	return nil
}

// implementsContext tells whether a value of type t can stand for a context.
func implementsContext(t types.Type) bool {
	if isContext(t) {
		return true
	}
	var names int
	for _, m := range []string{"Deadline", "Done", "Err", "Value"} {
		obj, _, _ := types.LookupFieldOrMethod(t, true, nil, m)
		if _, ok := obj.(*types.Func); ok {
			names++
		}
	}
	return names == 4
}
