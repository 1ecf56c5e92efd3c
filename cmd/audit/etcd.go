package audit

import (
	"go/ast"
	"go/types"
	"strings"
	"time"

	"golang.org/x/tools/go/ast/inspector"
)

// isEtcd tells whether a path is the concurrency package of one of etcd's clients, or its recipes.
func isEtcd(path string) bool {
	switch path {
	case "go.etcd.io/etcd/client/v3/concurrency", "go.etcd.io/etcd/clientv3/concurrency", "github.com/coreos/etcd/clientv3/concurrency",
		"go.etcd.io/etcd/client/v3/experimental/recipes", "go.etcd.io/etcd/contrib/recipes":
		return true
	}
	return false
}

func (s *scan) addEtcd(c inspector.Cursor, call *ast.CallExpr, fn *types.Func, name string) {
	switch name {
	case "NewMutex", "NewLocker", "NewElection", "ResumeElection", "NewRWMutex":
	default:
		return
	}
	if len(call.Args) < 2 {
		return
	}
	session := call.Args[0]
	l := s.add(c, Etcd, fn.FullName(), s.name(call.Args[1]), s.sessionTTL(session))
	l.session = session
	l.ok(NoExpiry)
	l.ok(UncheckedRelease) // a key of the session's own lease
	switch name {
	case "NewLocker", "NewRWMutex":
		l.ok(ReleaseContext) // unlocks with the client's context
	default:
		l.unknown(ReleaseContext, "no release is seen in this package")
	}
	s.checkSession(l, session)
}

// sessionTTL finds the expiry of a session that the package makes.
func (s *scan) sessionTTL(session ast.Expr) TTL {
	made, ok := s.source(session).(*ast.CallExpr)
	if !ok || s.callee(made) == nil || s.callee(made).Name() != "NewSession" {
		return TTL{State: TTLUnknown, Expr: "set with the session"}
	}
	ttl := TTL{State: TTLDefault, D: 60 * time.Second}
	for _, a := range made.Args[1:] {
		opt, ok := s.source(a).(*ast.CallExpr)
		if !ok || s.callee(opt) == nil || made.Ellipsis.IsValid() || len(opt.Args) != 1 {
			return TTL{State: TTLUnknown, Expr: show(a)}
		}
		switch s.callee(opt).Name() {
		case "WithTTL":
			if ttl = s.ttl(opt.Args[0], time.Second); ttl.State == TTLNone {
				ttl = TTL{State: TTLDefault, D: 60 * time.Second} // what is not above 0 is ignored
			}
		case "WithLease":
			return TTL{State: TTLUnknown, Expr: "the lease's: " + show(opt.Args[0])}
		}
	}
	return ttl
}

// checkSession looks for anybody who listens to the end of the session: that is the only way to learn of a loss. It is
// sure only of sessions that stay in one function.
func (s *scan) checkSession(l *lock, session ast.Expr) {
	l.unknown(LossIgnored, "whether anybody listens to the session's Done is not in sight")
	d, ok := s.only(session)
	if !ok {
		return
	}
	made, ok := s.source(d.rhs).(*ast.CallExpr)
	if !ok || s.callee(made) == nil || s.callee(made).Name() != "NewSession" {
		return
	}
	obj := s.object(session)
	if obj.Parent() == s.pass.Pkg.Scope() {
		return
	}
	for _, u := range s.uses[obj] {
		switch p := u.Parent().Node().(type) {
		case *ast.SelectorExpr:
			switch p.Sel.Name {
			case "Close", "Client":
			case "Done", "Ctx":
				l.ok(LossIgnored)
				return
			default: // Lease, Orphan: somebody else may watch it
				return
			}
		case *ast.CallExpr:
			if fn := s.callee(p); fn == nil || s.byCall[p] == nil && !isEtcdNew(fn) {
				return // it goes elsewhere
			}
		default:
			return
		}
	}
	if s.fenced(l) {
		return
	}
	if !s.takes(l) {
		return
	}
	s.report(l, LossIgnored, l.at, "nothing listens to the session of "+called(l, nil)+": the work does not learn when it ends",
		"stop the work when <-session.Done() fires, or do it under session.Ctx()")
}

func isEtcdNew(fn *types.Func) bool {
	path, name := library(fn)
	return isEtcd(path) && (strings.HasPrefix(name, "New") || name == "ResumeElection")
}

// fenced tells whether the lock's key or revision is used, or the lock goes where that cannot be seen.
func (s *scan) fenced(l *lock) bool {
	obj := s.target(l.cur, 0)
	if obj == nil {
		return true
	}
	for _, u := range s.uses[obj] {
		sel, ok := u.Parent().Node().(*ast.SelectorExpr)
		if !ok {
			return true
		}
		switch sel.Sel.Name {
		case "Lock", "TryLock", "Unlock", "Campaign", "Resign", "RLock", "RUnlock":
		default: // IsOwner, Key, Header, Rev, Observe
			return true
		}
	}
	return false
}

// takes tells whether the lock is taken where it can be seen.
func (s *scan) takes(l *lock) bool {
	for _, u := range s.uses[s.target(l.cur, 0)] {
		if sel, ok := u.Parent().Node().(*ast.SelectorExpr); ok {
			switch sel.Sel.Name {
			case "Lock", "TryLock", "Campaign", "RLock":
				return true
			}
		}
	}
	return false
}

func (s *scan) useEtcd(c inspector.Cursor, call *ast.CallExpr, name string) {
	typ, method, ok := strings.Cut(name, ".")
	if !ok || (typ != "Mutex" && typ != "Election" && typ != "RWMutex") {
		return
	}
	l := s.lockOf(receiver(call))
	what := called(l, receiver(call))
	switch method {
	case "Lock", "TryLock", "Campaign", "RLock":
		if s.result(c, 0) == resultDropped {
			s.report(l, LossIgnored, c.Node().Pos(), "the error of "+method+" is dropped: the work runs whether "+what+" was got or not",
				"do the work only if "+method+" returns nil")
		}
	case "Unlock", "Resign":
		if len(call.Args) != 1 {
			return
		}
		switch s.closes(l, c) {
		case OK:
			l.judge(OK, "")
		case Unknown:
			l.judge(Unknown, "its session is closed too, with a context that is not in sight")
		default:
			s.release(l, c, call.Args[0], what)
		}
	}
}

// closes tells whether the session of a lock is closed with its release at c, which frees the lock too, whatever has become
// of the context of the release: Close revokes the lease. It does so with the context of the client, unless the session
// got one of its own: then the answer is Unknown. It is None if nobody closes the session then.
func (s *scan) closes(l *lock, c inspector.Cursor) Verdict {
	if l == nil {
		return None
	}
	v, ok := s.object(l.session).(*types.Var)
	if !ok || v.IsField() {
		return None
	}
	for _, u := range s.uses[v] {
		sel, ok := u.Parent().Node().(*ast.SelectorExpr)
		call := u.Parent().Parent()
		if _, called := call.Node().(*ast.CallExpr); !ok || !called || sel.Sel.Name != "Close" || s.decl(call) != s.decl(c) {
			continue
		}
		around := s.enclosing(call, true)
		_, lit := around.(*ast.FuncLit)
		if later, _ := s.later(l, call); !later && !(lit && around == s.enclosing(c, true)) {
			continue // as where the lock was not got
		}
		return s.closesByClient(v)
	}
	return None
}

// closesByClient tells whether a session has the client's context: if it was made here, and no option says otherwise.
func (s *scan) closesByClient(session *types.Var) Verdict {
	ds := s.defs[session]
	if len(ds) != 1 || s.params[session] || ds[0].rhs == nil {
		return Unknown
	}
	made, ok := s.source(ds[0].rhs).(*ast.CallExpr)
	if !ok || s.callee(made) == nil || s.callee(made).Name() != "NewSession" || made.Ellipsis.IsValid() {
		return Unknown
	}
	for _, a := range made.Args[1:] {
		opt, ok := s.source(a).(*ast.CallExpr)
		if !ok || s.callee(opt) == nil {
			return Unknown
		}
		switch s.callee(opt).Name() {
		case "WithTTL", "WithLease":
		default:
			return Unknown
		}
	}
	return OK
}
