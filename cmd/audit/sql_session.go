package audit

import (
	"go/ast"
	"go/types"
	"slices"
	"strings"

	"golang.org/x/tools/go/ast/inspector"
)

// A session lock outlives what it is taken through: a transaction that ends, and a connection that goes back to its pool, leave it with
// the session. So it has to be given back before, and in a transaction even that is not certain: one that has failed refuses the unlock.

// A handle is what a session lock is taken through, if a pool gets the session back.
type handle int

const (
	handleOther  handle = iota // a connection of its own, whose end ends the lock; or not known
	handleTx                   // a transaction
	handlePooled               // a connection out of a pool
)

func handleOf(t types.Type) handle {
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	n, ok := types.Unalias(t).(*types.Named)
	if !ok || n.Obj().Pkg() == nil || placeOf(n) != onSession {
		return handleOther
	}
	path := majorVersion.ReplaceAllString(n.Obj().Pkg().Path(), "")
	switch name := n.Obj().Name(); {
	case name == "Tx":
		return handleTx
	case name == "Conn" && path != "github.com/jackc/pgx":
		return handlePooled
	}
	return handleOther
}

// checkSessions judges the session locks on transactions and on connections of pools, when all unlocks have been seen.
func (s *scan) checkSessions() {
	loose := s.unlockText
	of := map[*lock][]unlock{}
	for _, u := range s.unlocks {
		if l := s.advisoryOf(u); l != nil {
			of[l] = append(of[l], u)
		} else {
			loose = true
		}
	}
	for _, l := range s.locks {
		call, ok := l.cur.Node().(*ast.CallExpr)
		if !ok || l.Kind != PgAdvisory || l.TTL.State != TTLSession || l.on != onSession || receiver(call) == nil {
			continue
		}
		s.site()
		switch recv := receiver(call); handleOf(s.info.TypeOf(recv)) {
		case handleTx:
			s.checkTx(l, recv, of[l], loose)
		case handlePooled:
			s.checkPooled(l, recv, len(of[l]) > 0, loose)
		}
	}
}

// checkTx judges a session lock that is taken in a transaction.
func (s *scan) checkTx(l *lock, tx ast.Expr, unlocks []unlock, loose bool) {
	const fix = "use pg_advisory_xact_lock, which ends with the transaction; or take one connection out of the pool for lock, work and unlock"
	own, all := s.methodsOf(tx)
	pooled := all && s.fromPool(own)
	if len(unlocks) == 0 && !l.gives && !loose && pooled {
		s.report(l, SessionOnPool, l.at, "a session lock is taken in the transaction "+show(tx)+" and not given back: it stays with the pooled connection when the transaction has ended", fix)
	}
	for _, u := range unlocks {
		if later, _ := s.later(l, u.at); later && pooled && s.object(receiver(u.call)) == own && s.commits(own, u.at) {
			s.report(l, SessionOnPool, u.at.Node().Pos(), "the advisory lock is given back in a transaction that has been committed by then: nothing is sent, and the lock stays with the pooled connection", fix)
		}
	}
	l.unknown(SessionOnPool, "a session lock outlives its transaction: one that has failed refuses the unlock, and the lock stays with the connection")
}

// checkPooled judges a session lock that is taken on a connection of a pool.
func (s *scan) checkPooled(l *lock, conn ast.Expr, unlocked, loose bool) {
	if unlocked || l.gives {
		return
	}
	if own, all := s.methodsOf(conn); all && !loose && (s.called(own, "Close") || s.called(own, "Release")) {
		s.report(l, SessionOnPool, l.at, "a session lock is taken on the connection "+show(conn)+", which goes back to its pool without an unlock: the lock stays with it",
			"unlock on that connection before it goes back")
	}
	l.unknown(SessionOnPool, "no unlock is seen in this package: when the connection goes back to its pool, the lock stays with it")
}

// sqlMethods are those of connections and transactions after which nothing else has them.
var sqlMethods = []string{"Begin", "BeginTx", "BeginTxx", "Beginx", "Commit", "Rollback", "Close", "Release", "Ping", "PingContext"}

// methodsOf returns the local variable that an expression names, and whether nothing is done with it but to call methods of SQL: nobody else
// has it then.
func (s *scan) methodsOf(e ast.Expr) (types.Object, bool) {
	v, ok := s.object(e).(*types.Var)
	if _, named := ast.Unparen(e).(*ast.Ident); !ok || !named || v.IsField() || s.params[v] || s.aliased[v] || len(s.defs[v]) != 1 || v.Parent() == s.pass.Pkg.Scope() {
		return nil, false
	}
	for _, u := range s.uses[v] {
		sel, ok := u.Parent().Node().(*ast.SelectorExpr)
		if !ok {
			if _, compared := u.Parent().Node().(*ast.BinaryExpr); compared {
				continue
			}
			return v, false
		}
		call, ok := u.Parent().Parent().Node().(*ast.CallExpr)
		if !ok || call.Fun != sel || !statement[sel.Sel.Name] && !slices.Contains(sqlMethods, sel.Sel.Name) {
			return v, false
		}
	}
	return v, true
}

// fromPool says whether a transaction was begun on a pool, or on a connection of one.
func (s *scan) fromPool(tx types.Object) bool {
	ds := s.defs[tx]
	if len(ds) != 1 {
		return false
	}
	call, ok := ast.Unparen(ds[0].rhs).(*ast.CallExpr)
	if !ok || receiver(call) == nil || !strings.HasPrefix(s.nameOf(call), "Begin") {
		return false
	}
	t := s.info.TypeOf(receiver(call))
	return placeOf(t) == onPool || t != nil && handleOf(t) == handlePooled
}

// commits says whether a transaction is committed in the function around a deferred unlock, and not by a deferred call itself.
func (s *scan) commits(tx types.Object, unlock inspector.Cursor) bool {
	in := s.decl(unlock)
	for _, u := range s.uses[tx] {
		sel, ok := u.Parent().Node().(*ast.SelectorExpr)
		if !ok || sel.Sel.Name != "Commit" || s.decl(u) != in {
			continue
		}
		if d, ok := s.enclosing(u, true).(*ast.FuncDecl); !ok || d != in {
			continue
		}
		if _, deferred := u.Parent().Parent().Parent().Node().(*ast.DeferStmt); !deferred {
			return true
		}
	}
	return false
}

// called says whether a method of a variable is called anywhere.
func (s *scan) called(v types.Object, method string) bool {
	return slices.ContainsFunc(s.uses[v], func(u inspector.Cursor) bool {
		sel, ok := u.Parent().Node().(*ast.SelectorExpr)
		return ok && sel.Sel.Name == method
	})
}

func (s *scan) nameOf(call *ast.CallExpr) string {
	if fn := s.callee(call); fn != nil {
		return fn.Name()
	}
	return ""
}
