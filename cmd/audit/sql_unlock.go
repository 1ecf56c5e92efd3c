package audit

import (
	"go/ast"

	"golang.org/x/tools/go/ast/inspector"
)

// An unlock is a statement that gives an advisory lock back.
type unlock struct {
	at   inspector.Cursor
	call *ast.CallExpr
	name string // as of the lock
	on   runsOn
}

// advisoryOf returns the session lock that an unlock belongs to: the only one of its function, else the only one of its
// package, else the only one of its name.
func (s *scan) advisoryOf(u unlock) *lock {
	var same, named, all []*lock
	in := s.decl(u.at)
	for _, l := range s.locks {
		if l.Kind == PgAdvisory && l.TTL.State == TTLSession {
			all = append(all, l)
			if s.decl(l.cur) == in {
				same = append(same, l)
			}
			if l.Name.Text == u.name {
				named = append(named, l)
			}
		}
	}
	switch {
	case len(same) == 1:
		return same[0]
	case len(same) == 0 && len(all) == 1:
		return all[0]
	case len(same) == 0 && len(named) == 1:
		return named[0]
	}
	return nil
}

// checkUnlock judges what an unlock runs on, by what its lock was taken on.
func (s *scan) checkUnlock(l *lock, u unlock) {
	if l == nil || l.on != onSession || u.on == onSession {
		return
	}
	switch {
	case u.on == onUnknown:
		l.unknown(SessionOnPool, "whether "+show(receiver(u.call))+", which gives the lock back, is the session that took it is not in sight")
	case s.onePooled():
		l.unknown(SessionOnPool, "a pool of this package is limited to one connection")
	default:
		s.report(l, SessionOnPool, u.at.Node().Pos(), "the advisory lock is taken on one session and given back through the pool "+show(receiver(u.call))+
			": the unlock can go to another session, and the lock stays until its own ends",
			"unlock on the connection that took the lock")
		l.judge(Unknown, "the unlock can go to another session")
	}
}
