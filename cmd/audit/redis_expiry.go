package audit

import (
	"go/ast"
	"go/types"

	"golang.org/x/tools/go/ast/inspector"
)

func (s *scan) checkExpiry(l *lock, in *ast.FuncDecl, related []touch) {
	switch l.TTL.State {
	case TTLKnown:
		l.ok(NoExpiry)
	case TTLUnknown:
		l.unknown(NoExpiry, "the expiry comes from elsewhere: "+l.TTL.Expr)
	case TTLNone:
		for _, t := range related {
			if t.what == touchExpire && t.in == in {
				if s.together(l, t) {
					return
				}
				s.report(l, NoExpiry, l.at, called(l, l.redis.key)+" gets its expiry in a second command: a crash between the two leaves it for ever",
					"set key and expiry in one command: SET key value NX PX ttl")
				return
			}
		}
		s.report(l, NoExpiry, l.at, called(l, l.redis.key)+" never expires: a crash of its holder leaves it for ever",
			"set an expiry in the same command, longer than the slowest run, or renew it")
	}
}

// together tells whether the command that sets the expiry is sent together with the one that sets the key, and judges that:
// a transaction does both or none, as long as both commands are always in it; of a pipeline that cannot be told.
func (s *scan) together(l *lock, t touch) bool {
	set, expire := l.cur, t.at
	a, b := receiver(set.Node().(*ast.CallExpr)), receiver(expire.Node().(*ast.CallExpr))
	if list := s.listed(set); list != nil && list == s.listed(expire) { // rueidis
		l.TTL = TTL{State: TTLUnknown, Expr: "set with it"}
		l.unknown(NoExpiry, "key and expiry are set by two commands of one list, which need not be a transaction")
		return true
	}
	obj := s.object(a)
	if obj == nil || obj != s.object(b) || !s.queues(set) || !s.queues(expire) || s.sentBetween(obj, set, expire) {
		return false
	}
	l.TTL = TTL{State: TTLUnknown, Expr: "set with it"}
	if s.inTransaction(obj) && sameBlock(set, expire) {
		l.ok(NoExpiry)
	} else {
		l.unknown(NoExpiry, "key and expiry are set by two commands of one pipeline, which need not be a transaction")
	}
	return true
}

// queues tells whether a call only puts a command into a queue.
func (s *scan) queues(c inspector.Cursor) bool {
	call := c.Node().(*ast.CallExpr)
	fn := s.callee(call)
	return queued(s.info.TypeOf(receiver(call))) || fn != nil && fn.Name() == "Send"
}

// listed returns the call of rueidis that sends several commands, of which the one at c is one.
func (s *scan) listed(c inspector.Cursor) *ast.CallExpr {
	for e := range c.Enclosing((*ast.CallExpr)(nil), (*ast.BlockStmt)(nil)) {
		call, ok := e.Node().(*ast.CallExpr)
		if !ok {
			return nil
		}
		if fn := s.callee(call); fn != nil && fn.Name() == "DoMulti" {
			return call
		}
	}
	return nil
}

// sentBetween tells whether a queue is sent between two commands.
func (s *scan) sentBetween(queue types.Object, a, b inspector.Cursor) bool {
	for _, u := range s.uses[queue] {
		sel, ok := u.Parent().Node().(*ast.SelectorExpr)
		if !ok || u.Node().Pos() < min(a.Node().Pos(), b.Node().Pos()) || u.Node().Pos() > max(a.Node().Pos(), b.Node().Pos()) {
			continue
		}
		switch sel.Sel.Name {
		case "Do": // go-redis puts it into the queue; redigo sends the queue with it
			if queued(s.info.TypeOf(sel.X)) {
				continue
			}
			return true
		case "Exec", "Discard", "Flush":
			return true
		}
	}
	return false
}

// inTransaction tells whether a pipeline is sent as a transaction.
func (s *scan) inTransaction(queue types.Object) bool {
	if ds := s.defs[queue]; len(ds) == 1 && !s.params[queue] && !s.initial[queue] {
		call, ok := s.source(ds[0].rhs).(*ast.CallExpr)
		return ok && s.callee(call) != nil && s.callee(call).Name() == "TxPipeline"
	}
	for c := range s.root.Preorder((*ast.FuncLit)(nil)) {
		lit := c.Node().(*ast.FuncLit)
		call, ok := s.unparen(c).Parent().Node().(*ast.CallExpr)
		if !ok || len(s.defs[queue]) > 0 {
			continue
		}
		for _, f := range lit.Type.Params.List {
			for _, n := range f.Names {
				if s.info.Defs[n] == queue {
					return s.callee(call) != nil && s.callee(call).Name() == "TxPipelined"
				}
			}
		}
	}
	return false
}

// sameBlock tells whether the second command is a statement of a block that the first stands in, so that it is not left out.
func sameBlock(first, second inspector.Cursor) bool {
	for e := range second.Enclosing((*ast.ExprStmt)(nil), (*ast.AssignStmt)(nil), (*ast.ReturnStmt)(nil), (*ast.FuncLit)(nil)) {
		block, ok := e.Parent().Node().(*ast.BlockStmt)
		return ok && block.Pos() <= first.Node().Pos() && first.Node().End() <= block.End()
	}
	return false
}
