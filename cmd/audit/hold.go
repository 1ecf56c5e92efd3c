package audit

import (
	"go/ast"
	"go/constant"
	"go/types"
	"strings"
	"time"

	"golang.org/x/tools/go/ast/inspector"
)

// addHoldlock notes a lock of this library. It always expires, checks its own nonce, and releases on a context of its own.
func (s *scan) addHoldlock(c inspector.Cursor, call *ast.CallExpr, fn *types.Func) {
	if len(call.Args) != 2 {
		return
	}
	l := s.add(c, Holdlock, fn.FullName(), s.name(call.Args[0]), TTL{State: TTLDefault, D: 30 * time.Second})
	for _, f := range []Fault{NoExpiry, UncheckedRelease, GuessableValue, ReleaseContext} {
		l.ok(f)
	}
	l.unknown(LossIgnored, "no use is seen in this package")
	if s.isNil(call.Args[1]) {
		return
	}
	o := s.settingsOf(call.Args[1])
	if o == nil {
		l.TTL = TTL{State: TTLUnknown, Expr: show(call.Args[1])}
		return
	}
	v, sure := s.field(o, "TTL")
	if v != nil {
		l.TTL = s.ttl(v, time.Nanosecond)
		if l.TTL.State == TTLNone { // NewLock refuses what is below zero, and zero is the default
			l.TTL = TTL{State: TTLDefault, D: 30 * time.Second}
		}
	}
	if !sure {
		l.TTL = TTL{State: TTLUnknown, Expr: show(call.Args[1]) + ".TTL"}
	}
	if v, sure := s.field(o, "Mode"); v != nil && sure {
		if k, ok := s.object(v).(*types.Const); ok && k.Name() == "Shadow" {
			l.shadow = true
			l.base[LossIgnored] = Check{Verdict: None}
		}
	}
	if v, sure := s.field(o, "Purpose"); sure {
		if text := s.constant(v); text != nil && text.Kind() == constant.String {
			l.Purpose = constant.StringVal(text)
		}
	}
	if v, sure := s.field(o, "DoubleRun"); v != nil && sure {
		if k, ok := s.object(v).(*types.Const); ok {
			l.Double = strings.ToLower(k.Name())
		}
	}
}

func (s *scan) useHoldlock(c inspector.Cursor, call *ast.CallExpr, name string) {
	l := s.lockOf(receiver(call))
	if l != nil && l.shadow {
		return
	}
	what := called(l, receiver(call))
	switch name {
	case "Lock.Do":
		if len(call.Args) == 2 {
			s.checkDo(l, call, what)
		}
	case "Lock.Acquire", "Lock.TryAcquire":
		s.checkLease(l, c, what)
	}
}

// handOn says of locks that are given to a function that their use is there: parameters are not followed.
func (s *scan) handOn(call *ast.CallExpr, fn *types.Func) {
	for _, a := range call.Args {
		if t := s.info.TypeOf(a); t == nil || !isLock(t) {
			continue
		}
		if l := s.lockOf(a); l != nil && !l.shadow && !l.released {
			l.unknown(LossIgnored, "it is given to "+fn.Name()+", where its use is not followed")
		}
	}
}

// isLock tells whether a type is *Lock of this library.
func isLock(t types.Type) bool {
	p, ok := types.Unalias(t).(*types.Pointer)
	if !ok {
		return false
	}
	n, ok := types.Unalias(p.Elem()).(*types.Named)
	return ok && n.Obj().Name() == "Lock" && n.Obj().Pkg() != nil && unversioned(n.Obj().Pkg().Path()) == pathHoldlock
}

// seen notes that a use of the lock was judged. A use that is not known stays so whatever the others are.
func (l *lock) seen(v Verdict, why string) {
	if l == nil || (l.released && v != Unknown) {
		return
	}
	l.released = true
	l.base[LossIgnored] = Check{v, why}
}

// checkDo looks at whether the work can learn of a loss: through its context or its lease.
func (s *scan) checkDo(l *lock, call *ast.CallExpr, what string) {
	var params *ast.FieldList
	var body *ast.BlockStmt
	switch fn := s.source(call.Args[1]).(type) {
	case *ast.FuncLit:
		params, body = fn.Type.Params, fn.Body
	default:
		d := s.declOf(s.object(fn))
		if d == nil {
			l.seen(Unknown, "the work is declared elsewhere: "+show(call.Args[1]))
			return
		}
		params, body = d.Type.Params, d.Body
	}
	if body == nil || !calls(body) { // nothing that could run long
		l.seen(OK, "")
		return
	}
	unsure := ""
	for _, f := range params.List {
		for _, n := range f.Names {
			if obj := s.info.Defs[n]; obj != nil {
				switch v, why := s.listens(obj, nil); v {
				case OK:
					l.seen(OK, "")
					return
				case Unknown:
					unsure = why
				}
			}
		}
	}
	if unsure != "" {
		l.seen(Unknown, unsure)
		return
	}
	s.report(l, LossIgnored, call.Args[1].Pos(), "the work under "+what+" uses neither its context nor its lease: it goes on after a loss",
		"do the work under the context that Do gives it, and ask lease.Check before effects that must not happen twice")
	l.seen(OK, "")
}

// listens tells whether somebody learns of a loss through a context or a lease: OK, Faulty, or Unknown and why if it goes where
// its uses cannot be seen, or is only asked whether it has ended, which may be too late. If it is given by a call, what stands before
// the end of that uses another value, but for a function that runs later.
func (s *scan) listens(obj types.Object, given ast.Node) (Verdict, string) {
	v, asked, before := Faulty, false, false
	if r, ok := obj.(*types.Var); ok && r.Kind() == types.ResultVar {
		v = Unknown // a return without values gives it to the caller
	}
	for _, u := range s.uses[obj] {
		a, ok := u.Parent().Node().(*ast.AssignStmt)
		if ok && assignedTo(a, u.Node()) {
			continue
		}
		if given != nil && u.Node().End() <= given.End() {
			before = before || u.Node().Pos() < given.Pos()
			continue
		}
		switch p := u.Parent().Node().(type) {
		case *ast.SelectorExpr:
			switch p.Sel.Name {
			case "Name", "Key", "Release", "Ref":
			case "Err":
				if repeated(u, obj) {
					return OK, ""
				}
				asked = true
			default:
				return OK, ""
			}
		case *ast.AssignStmt:
			if !dropped(p, u.Node()) {
				v = Unknown
			}
		default:
			v = Unknown
		}
	}
	switch {
	case v == Unknown && implementsContext(obj.Type()):
		return OK, "" // whoever gets a context is expected to end with it
	case v == Unknown:
		return v, "the lease goes where its uses cannot be seen"
	case asked:
		return Unknown, "Err tells of a loss, but whether the work asks it in time is not in the code"
	case before:
		return Unknown, "it is used before it is given only, and whether that is done again is not followed"
	}
	return v, ""
}

// repeated tells whether a use stands in a loop that begins after the declaration of obj, as work that asks again and again does.
func repeated(u inspector.Cursor, obj types.Object) bool {
	for e := range u.Enclosing((*ast.ForStmt)(nil), (*ast.RangeStmt)(nil)) {
		if e.Node().Pos() > obj.Pos() {
			return true
		}
	}
	return false
}

// assignedTo tells whether an assignment gives x another value.
func assignedTo(a *ast.AssignStmt, x ast.Node) bool {
	for _, l := range a.Lhs {
		if ast.Node(l) == x {
			return true
		}
	}
	return false
}

// dropped tells whether an assignment only gives x to _.
func dropped(a *ast.AssignStmt, x ast.Node) bool {
	for i, r := range a.Rhs {
		if ast.Node(r) == x && i < len(a.Lhs) {
			id, ok := a.Lhs[i].(*ast.Ident)
			return ok && id.Name == "_"
		}
	}
	return false
}

// checkLease looks at what is done with the lease of an Acquire.
func (s *scan) checkLease(l *lock, c inspector.Cursor, what string) {
	if s.result(c, 1) == resultDropped {
		s.report(l, LossIgnored, c.Node().Pos(), "the error is dropped: the work runs whether "+what+" was got or not",
			"do the work only if there is no error")
		l.seen(OK, "")
		return
	}
	if s.result(c, 0) == resultDropped {
		s.report(l, LossIgnored, c.Node().Pos(), "the lease of "+what+" is dropped: nobody releases it or learns of its loss",
			"use Do, or keep the lease: its WithContext, Check and Done tell of a loss")
		l.seen(OK, "")
		return
	}
	obj, ok := s.target(c, 0).(*types.Var)
	if !ok || obj.IsField() || obj.Parent() == s.pass.Pkg.Scope() {
		l.seen(Unknown, "the lease is kept where its uses cannot all be seen")
		return
	}
	if v, why := s.listens(obj, nil); v != Faulty {
		l.seen(v, why)
		return
	}
	s.report(l, LossIgnored, c.Node().Pos(), "the lease of "+what+" is only released: the work goes on after a loss",
		"do the work under lease.WithContext(ctx), or ask lease.Check before effects that must not happen twice; Do does the first by itself")
	l.seen(OK, "")
}

// declOf returns the declaration of a function of this package, or nil.
func (s *scan) declOf(obj types.Object) *ast.FuncDecl {
	fn, ok := obj.(*types.Func)
	if !ok {
		return nil
	}
	return s.decls[fn]
}

// calls tells whether a body calls anything.
func calls(body ast.Node) bool {
	found := false
	ast.Inspect(body, func(n ast.Node) bool {
		if _, ok := n.(*ast.CallExpr); ok {
			found = true
		}
		return !found
	})
	return found
}
