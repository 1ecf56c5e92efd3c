package audit

import (
	"go/ast"
	"go/token"
	"go/types"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/tools/go/ast/inspector"
)

var majorVersion = regexp.MustCompile(`/v\d+$`)

// library returns the import path of what declares fn, without the major version, and fn's receiver type and name, as in
// "github.com/go-redsync/redsync", "Mutex.Unlock".
func library(fn *types.Func) (path, name string) {
	if fn.Pkg() == nil {
		return "", fn.Name()
	}
	name = fn.Name()
	if recv := fn.Signature().Recv(); recv != nil {
		name = typeName(recv.Type()) + "." + name
	}
	return unversioned(fn.Pkg().Path()), name
}

// unversioned is an import path without the major version at its end, and without the vendor directory it may stand in.
func unversioned(path string) string {
	if i := strings.LastIndex(path, "/vendor/"); i >= 0 {
		path = path[i+len("/vendor/"):]
	}
	return majorVersion.ReplaceAllString(path, "")
}

// typeName is the name of a named type or of what a pointer points to, without its package.
func typeName(t types.Type) string {
	t = types.Unalias(t)
	if p, ok := t.(*types.Pointer); ok {
		t = types.Unalias(p.Elem())
	}
	if n, ok := t.(*types.Named); ok {
		return n.Obj().Name()
	}
	return ""
}

// Where the libraries live, without major versions.
const (
	pathHoldlock  = "github.com/holdlock/holdlock"
	pathRedsync   = "github.com/go-redsync/redsync"
	pathRedislock = "github.com/bsm/redislock"
	pathRueidis   = "github.com/redis/rueidis/rueidislock"
	pathValkey    = "github.com/valkey-io/valkey-go/valkeylock"
)

// findLocks fills the inventory.
func (s *scan) findLocks() {
	s.calls(func(c inspector.Cursor, call *ast.CallExpr, fn *types.Func) bool {
		path, name := library(fn)
		switch {
		case path == pathHoldlock && name == "Client.NewLock":
			s.addHoldlock(c, call, fn)
		case (path == pathRedsync || path == "gopkg.in/redsync") && name == "Redsync.NewMutex":
			s.addRedsync(c, call, fn)
		case path == pathRedislock && (name == "Client.Obtain" || name == "Client.ObtainMulti" || name == "Obtain"):
			s.addRedislock(c, call, fn)
		case (path == pathRueidis || path == pathValkey) && strings.HasPrefix(name, "Locker.") && strings.HasSuffix(name, "WithContext"):
			s.addRueidislock(c, call, fn)
		case isEtcd(path):
			s.addEtcd(c, call, fn, name)
		default:
			s.addRedisSet(c, call, fn)
		}
		return true
	})
	s.findScripts()
	s.findEmbedded()
	s.findSQL()
}

// findUses looks at what is done with the locks.
func (s *scan) findUses() {
	s.calls(func(c inspector.Cursor, call *ast.CallExpr, fn *types.Func) bool {
		path, name := library(fn)
		switch {
		case path == pathHoldlock:
			s.useHoldlock(c, call, name)
		case path == pathRedsync || path == "gopkg.in/redsync":
			s.useRedsync(c, call, name)
		case path == pathRedislock:
			s.useRedislock(c, call, name)
		case isEtcd(path):
			s.useEtcd(c, call, name)
		default:
			s.handOn(call, fn)
		}
		return true
	})
	s.touches() // each of them is a place of its own
	for _, l := range s.locks {
		s.site()
		switch l.Kind {
		case Redislock:
			s.checkRedislock(l)
		case Rueidislock:
			s.checkRueidislock(l)
		case RedisSet:
			s.checkRedisSet(l)
		}
		s.doubt(l)
	}
	s.followWrappers()
}

// lockOf returns the lock that an expression holds, if the package shows which one: what is assigned to it, or to the
// field or function that it names, is one declaration.
func (s *scan) lockOf(e ast.Expr) *lock { return s.lockAt(e, 0) }

func (s *scan) lockAt(e ast.Expr, depth int) *lock {
	if e == nil || depth > maxDepth || !s.step() {
		return nil
	}
	e = ast.Unparen(e)
	if call, ok := e.(*ast.CallExpr); ok {
		if l := s.byCall[call]; l != nil {
			return l
		}
		fn := s.callee(call)
		if fn == nil {
			return nil
		}
		if path, name := library(fn); path == pathHoldlock && name == "Lock.For" {
			return s.lockAt(receiver(call), depth+1)
		}
		return s.lockOfDefs(fn, depth)
	}
	if u, ok := e.(*ast.UnaryExpr); ok && u.Op == token.AND {
		return s.lockAt(u.X, depth+1)
	}
	if obj := s.object(e); obj != nil && !s.params[obj] {
		return s.lockOfDefs(obj, depth)
	}
	return nil
}

func (s *scan) lockOfDefs(obj types.Object, depth int) *lock {
	var found *lock
	for _, d := range s.defs[obj] {
		if d.rhs == nil || d.index > 0 || s.isNil(d.rhs) {
			continue
		}
		l := s.lockAt(d.rhs, depth+1)
		if l == nil || (found != nil && found != l) {
			return nil
		}
		found = l
	}
	return found
}

// called names a lock in messages.
func called(l *lock, e ast.Expr) string {
	if l != nil && l.Name.Constant {
		return "lock " + strconv.Quote(l.Name.Text)
	}
	if e != nil {
		return "the lock " + show(e)
	}
	return "the lock"
}

// ---- redsync

func (s *scan) addRedsync(c inspector.Cursor, call *ast.CallExpr, fn *types.Func) {
	if len(call.Args) == 0 {
		return
	}
	l := s.add(c, Redsync, fn.FullName(), s.name(call.Args[0]), TTL{State: TTLDefault, D: 8 * time.Second})
	l.ok(NoExpiry)
	l.ok(UncheckedRelease)
	l.ok(GuessableValue)
	l.unknown(ReleaseContext, "no release is seen in this package")
	l.unknown(LossIgnored, "redsync tells nobody of a loss; whether the work ends before the expiry is not in the code")
	if call.Ellipsis.IsValid() {
		l.TTL = TTL{State: TTLUnknown, Expr: show(call.Args[len(call.Args)-1])}
		l.unknown(GuessableValue, "the options come from elsewhere")
		return
	}
	for _, a := range call.Args[1:] {
		opt, ok := s.source(a).(*ast.CallExpr)
		f := (*types.Func)(nil)
		if ok {
			f = s.callee(opt)
		}
		if f == nil || len(opt.Args) != 1 {
			l.unknown(GuessableValue, "an option comes from elsewhere: "+show(a))
			continue
		}
		_, name := library(f)
		switch name {
		case "WithExpiry", "SetExpiry":
			l.TTL = s.ttl(opt.Args[0], time.Nanosecond)
		case "WithValue":
			s.judgeValue(l, opt.Args[0], "WithValue makes it the value of every attempt")
		case "WithGenValueFunc":
			s.judgeGenerator(l, opt.Args[0])
		}
	}
}

// judgeGenerator looks at what a function for values returns.
func (s *scan) judgeGenerator(l *lock, e ast.Expr) {
	l.unknown(GuessableValue, "the function for values is not in sight: "+show(e))
	lit, ok := s.source(e).(*ast.FuncLit)
	if !ok {
		return
	}
	weakest, why, at := strong, "", lit.Pos()
	c, _ := s.root.FindNode(lit)
	for r := range c.Preorder((*ast.ReturnStmt)(nil)) {
		ret := r.Node().(*ast.ReturnStmt)
		if s.enclosing(r, true) != ast.Node(lit) || len(ret.Results) != 2 || !s.isNil(ret.Results[1]) {
			continue
		}
		if g, w := s.strength(ret.Results[0], nil); g < weakest {
			weakest, why, at = g, w, ret.Pos()
		}
	}
	s.judgeStrength(l, weakest, why, at, "the function for values")
}

func (s *scan) useRedsync(c inspector.Cursor, call *ast.CallExpr, name string) {
	method, ok := strings.CutPrefix(name, "Mutex.")
	if !ok {
		return
	}
	l := s.lockOf(receiver(call))
	what := called(l, receiver(call))
	switch method {
	case "Lock", "LockContext", "TryLock", "TryLockContext":
		if s.result(c, 0) == resultDropped {
			s.report(l, LossIgnored, c.Node().Pos(), "the error of "+method+" is dropped: the work runs whether "+what+" was got or not",
				"do the work only if "+method+" returns nil")
		}
	case "Extend", "ExtendContext":
		if s.result(c, 0) == resultDropped && s.result(c, 1) == resultDropped {
			s.report(l, LossIgnored, c.Node().Pos(), "both results of "+method+" are dropped: the work goes on after "+what+" was lost",
				"stop the work unless "+method+" returns true")
		}
	case "UnlockContext":
		if len(call.Args) == 1 {
			s.release(l, c, call.Args[0], what)
		}
	case "Unlock":
		l.judge(OK, "") // it makes a context of its own
	}
}

// ---- redislock

func (s *scan) addRedislock(c inspector.Cursor, call *ast.CallExpr, fn *types.Func) {
	n := len(call.Args)
	if n < 4 { // …, key, ttl, options
		return
	}
	l := s.add(c, Redislock, fn.FullName(), s.name(call.Args[n-3]), s.ttl(call.Args[n-2], time.Nanosecond))
	l.ok(NoExpiry)
	l.ok(UncheckedRelease)
	l.ok(GuessableValue)
	l.unknown(ReleaseContext, "no release is seen in this package")
	l.unknown(LossIgnored, "redislock tells nobody of a loss; whether the work ends before the expiry is not in the code")
	opt := call.Args[n-1]
	if s.isNil(opt) {
		return
	}
	o := s.settingsOf(opt)
	if o == nil {
		l.unknown(GuessableValue, "the options come from elsewhere: "+show(opt))
		return
	}
	switch token, sure := s.field(o, "Token"); {
	case !sure:
		l.unknown(GuessableValue, "the options are changed on the way: "+show(opt))
	case token != nil && !s.equal(token, ""): // an empty one is replaced by a random one
		s.judgeValue(l, token, "Options.Token makes it the value of every holder")
	}
}

func (s *scan) useRedislock(c inspector.Cursor, call *ast.CallExpr, name string) {
	l := s.lockOf(receiver(call))
	what := called(l, receiver(call))
	switch name {
	case "Lock.Refresh":
		if s.result(c, 0) == resultDropped {
			s.report(l, LossIgnored, c.Node().Pos(), "the error of Refresh is dropped: the work goes on after "+what+" was lost",
				"stop the work when Refresh returns ErrNotObtained, or no nil before the expiry")
		}
	case "Lock.Release":
		if len(call.Args) == 1 {
			s.release(l, c, call.Args[0], what)
		}
	}
}

// checkRedislock finds an Obtain whose error nobody looks at. A holder that compares the lock with nil is told as well.
func (s *scan) checkRedislock(l *lock) {
	if s.result(l.cur, 1) != resultDropped {
		return
	}
	if obj := s.target(l.cur, 0); obj != nil {
		for _, u := range s.uses[obj] {
			if b, ok := u.Parent().Node().(*ast.BinaryExpr); ok && (s.isNil(b.X) || s.isNil(b.Y)) {
				return
			}
		}
	}
	s.report(l, LossIgnored, l.at, "the error of Obtain is dropped: the work runs whether "+called(l, nil)+" was got or not",
		"do the work only if Obtain returns no error")
}

// ---- rueidislock, valkeylock

func (s *scan) addRueidislock(c inspector.Cursor, call *ast.CallExpr, fn *types.Func) {
	if len(call.Args) != 2 {
		return
	}
	l := s.add(c, Rueidislock, fn.FullName(), s.name(call.Args[1]), s.rueidisTTL(receiver(call)))
	for _, f := range []Fault{NoExpiry, UncheckedRelease, GuessableValue, ReleaseContext, LossIgnored} {
		l.ok(f)
	}
}

// rueidisTTL finds the options of a locker that this package makes.
func (s *scan) rueidisTTL(locker ast.Expr) TTL {
	unknown := TTL{State: TTLUnknown, Expr: "set with the locker"}
	obj := s.object(locker)
	if obj == nil || len(s.defs[obj]) != 1 {
		return unknown
	}
	made, ok := s.source(s.defs[obj][0].rhs).(*ast.CallExpr)
	if !ok || s.callee(made) == nil || s.callee(made).Name() != "NewLocker" || len(made.Args) != 1 {
		return unknown
	}
	o := s.settingsOf(made.Args[0])
	if o == nil {
		return unknown
	}
	v, sure := s.field(o, "KeyValidity")
	if !sure {
		return unknown
	}
	ttl := TTL{State: TTLDefault, D: 5 * time.Second}
	if v != nil {
		if set := s.ttl(v, time.Nanosecond); set.State != TTLNone { // zero is the default
			ttl = set
		}
	}
	return ttl
}

func (s *scan) checkRueidislock(l *lock) {
	switch {
	case s.result(l.cur, 2) == resultDropped:
		s.report(l, LossIgnored, l.at, "the error is dropped: the work runs whether "+called(l, nil)+" was got or not",
			"do the work only if there is no error")
	case s.result(l.cur, 0) == resultDropped:
		s.report(l, LossIgnored, l.at, "the context of "+called(l, nil)+" is dropped: the work does not learn of a loss",
			"do the work under the returned context")
	default:
		ctx, ok := s.target(l.cur, 0).(*types.Var)
		if !ok || ctx.IsField() || ctx.Parent() == s.pass.Pkg.Scope() {
			if _, ok := s.targets(l.cur); ok {
				l.unknown(LossIgnored, "the context is kept where its uses cannot all be seen")
			}
			return
		}
		switch v, why := s.listens(ctx, l.cur.Node()); v {
		case Unknown:
			l.unknown(LossIgnored, why)
		case Faulty:
			s.report(l, LossIgnored, l.at, "the context of "+called(l, nil)+" is not used: the work does not learn of a loss",
				"do the work under the returned context")
		}
	}
}
