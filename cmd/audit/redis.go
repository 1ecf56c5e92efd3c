package audit

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"slices"
	"strings"
	"time"

	"golang.org/x/tools/go/ast/inspector"
)

// redisSet is a SET … NX, or what stands for it.
type redisSet struct {
	key, value ast.Expr // value may be nil
	reply      reply
	doubt      string // why it may set the key also if it is not absent, or ""
}

// reply says how the answer "not set" comes back.
type reply int

const (
	replyBool  reply = iota // a command whose bool must be looked at, or (bool, error)
	replyError              // a command whose error says it
	replyAny                // redigo: nil
)

// addRedisSet notes calls that set a key only if it is absent.
func (s *scan) addRedisSet(c inspector.Cursor, call *ast.CallExpr, fn *types.Func) {
	sig := fn.Signature()
	if sig.Recv() == nil {
		return
	}
	if call.Ellipsis.IsValid() { // only a command is given like that
		if cmd, args, how := s.command(call, fn); cmd == "SET" || cmd == "SETNX" {
			s.noteCommand(c, fn, cmd, args, how)
		}
		return
	}
	path, name := library(fn)
	n := len(call.Args)
	switch {
	case fn.Name() == "SetNX" && isSetNX(sig) && n >= 3:
		s.noteSet(c, fn, s.ttl(call.Args[n-1], time.Nanosecond), redisSet{call.Args[n-3], call.Args[n-2], replyBool, ""})
	case fn.Name() == "SetArgs" && n >= 3 && typeName(sig.Params().At(sig.Params().Len()-1).Type()) == "SetArgs":
		s.noteSetArgs(c, fn, call.Args[n-3:])
	case fn.Name() == "Nx" && strings.HasSuffix(path, "/internal/cmds") && strings.HasPrefix(name, "SetValue."),
		fn.Name() == "Value" && strings.HasSuffix(path, "/internal/cmds") && name == "SetnxKey.Value":
		s.noteBuilder(c, call, fn)
	default:
		if cmd, args, how := s.command(call, fn); cmd == "SET" || cmd == "SETNX" {
			s.noteCommand(c, fn, cmd, args, how)
		}
	}
}

// noteSetArgs reads go-redis' SetArgs(…, key, value, SetArgs{Mode: "NX", …}).
func (s *scan) noteSetArgs(c inspector.Cursor, fn *types.Func, args []ast.Expr) {
	o := s.settingsOf(args[2])
	if o == nil {
		return
	}
	r := redisSet{args[0], args[1], replyError, ""}
	mode, sure := s.field(o, "Mode")
	if !s.equal(mode, "NX") {
		return
	}
	if !sure {
		r.doubt = "the mode is not always NX"
	}
	ttl := TTL{State: TTLNone}
	v, sure := s.field(o, "TTL")
	if v != nil {
		ttl = s.ttl(v, time.Nanosecond)
	}
	if !sure {
		ttl = TTL{State: TTLUnknown, Expr: show(args[2]) + ".TTL"}
	}
	if v, sure := s.field(o, "ExpireAt"); ttl.State == TTLNone && (v != nil || !sure) {
		ttl = TTL{State: TTLUnknown, Expr: "until " + show(args[2]) + ".ExpireAt"}
		if sure {
			ttl.Expr = "until " + show(v)
		}
	}
	s.noteSet(c, fn, ttl, r)
}

// isSetNX tells whether a method ends in (key string, value, expiration time.Duration) and answers with something.
func isSetNX(sig *types.Signature) bool {
	p := sig.Params()
	if p.Len() < 3 || sig.Variadic() || sig.Results().Len() == 0 {
		return false
	}
	key, ok := p.At(p.Len() - 3).Type().Underlying().(*types.Basic)
	return ok && key.Kind() == types.String && p.At(p.Len()-1).Type().String() == "time.Duration"
}

// equal tells whether an expression is this constant string, without regard to case.
func (s *scan) equal(e ast.Expr, want string) bool {
	v := s.constant(e)
	return v != nil && v.Kind() == constant.String && strings.EqualFold(constant.StringVal(v), want)
}

// clients are the packages whose Do and Send take a Redis command as a list, without major versions.
var clients = map[string]reply{
	"github.com/redis/go-redis": replyError, "github.com/go-redis/redis": replyError, "gopkg.in/redis": replyError,
	"github.com/gomodule/redigo/redis": replyAny, "github.com/garyburd/redigo/redis": replyAny,
	"github.com/redis/rueidis/rueidiscompat": replyError, "github.com/valkey-io/valkey-go/valkeycompat": replyError,
}

// command returns the Redis command that a call sends, in capitals, and its arguments. It is "" for other calls.
func (s *scan) command(call *ast.CallExpr, fn *types.Func) (cmd string, args []ast.Expr, how reply) {
	path, _ := library(fn)
	how, ok := clients[path]
	if !ok {
		return "", nil, 0
	}
	given := call.Args
	if call.Ellipsis.IsValid() {
		list := s.list(given[len(given)-1])
		if list == nil {
			return "", nil, 0
		}
		given = append(slices.Clone(given[:len(given)-1]), list...)
	}
	switch fn.Name() {
	case "Do", "DoContext", "DoWithTimeout", "Send":
	default:
		return "", nil, 0
	}
	for i, a := range given {
		if i > 2 {
			break
		}
		if v := s.constant(a); v != nil && v.Kind() == constant.String {
			return strings.ToUpper(constant.StringVal(v)), given[i+1:], how
		}
	}
	return "", nil, 0
}

// list returns the elements of a slice that is a literal, or a variable that is one and only handed on; else nil.
func (s *scan) list(e ast.Expr) []ast.Expr {
	v, variable := s.object(e).(*types.Var)
	if d, ok := s.only(e); ok && d.rhs != nil {
		e = d.rhs
	}
	lit, ok := ast.Unparen(e).(*ast.CompositeLit)
	if !ok {
		return nil
	}
	if variable {
		for _, u := range s.uses[v] {
			if call, ok := s.unparen(u).Parent().Node().(*ast.CallExpr); !ok || s.callee(call) == nil {
				return nil // an element may be set, or the slice may go elsewhere
			}
		}
	}
	for _, x := range lit.Elts {
		if _, ok := x.(*ast.KeyValueExpr); ok {
			return nil
		}
	}
	return lit.Elts
}

// noteCommand reads SET key value … NX … and SETNX key value.
func (s *scan) noteCommand(c inspector.Cursor, fn *types.Func, cmd string, args []ast.Expr, how reply) {
	if len(args) < 2 {
		return
	}
	if cmd == "SETNX" {
		s.noteSet(c, fn, TTL{State: TTLNone}, redisSet{args[0], args[1], replyAny, ""})
		return
	}
	nx, ttl := false, TTL{State: TTLNone}
	for i, a := range args[2:] {
		last := i+3 >= len(args)
		switch {
		case s.equal(a, "NX"):
			nx = true
		case s.equal(a, "PX") && !last:
			ttl = s.ttl(args[i+3], time.Millisecond)
		case s.equal(a, "EX") && !last:
			ttl = s.ttl(args[i+3], time.Second)
		case (s.equal(a, "PXAT") || s.equal(a, "EXAT")) && !last:
			ttl = TTL{State: TTLUnknown, Expr: "until " + show(args[i+3])}
		case s.constant(a) == nil && ttl.State == TTLNone && !s.isNumber(a):
			ttl = TTL{State: TTLUnknown, Expr: show(a)} // it may be the option
		}
	}
	if nx {
		s.noteSet(c, fn, ttl, redisSet{args[0], args[1], how, ""})
	}
}

func (s *scan) isNumber(e ast.Expr) bool {
	t := s.info.TypeOf(e)
	if t == nil {
		return false
	}
	b, ok := t.Underlying().(*types.Basic)
	return ok && b.Info()&types.IsNumeric != 0
}

// noteBuilder reads the chain of rueidis's and valkey-go's builder: Set().Key(k).Value(v).Nx().Px(d).
func (s *scan) noteBuilder(c inspector.Cursor, call *ast.CallExpr, fn *types.Func) {
	r := redisSet{reply: replyError}
	ttl := TTL{State: TTLNone}
	for e := ast.Expr(call); ; { // inwards
		inner, ok := ast.Unparen(e).(*ast.CallExpr)
		if !ok {
			break
		}
		if f := s.callee(inner); f != nil && len(inner.Args) == 1 {
			switch f.Name() {
			case "Key":
				r.key = inner.Args[0]
			case "Value":
				r.value = inner.Args[0]
			}
		}
		e = receiver(inner)
		if e == nil {
			break
		}
	}
	outer := c
	for { // outwards
		sel, ok := outer.Parent().Node().(*ast.SelectorExpr)
		if !ok {
			break
		}
		outer = outer.Parent().Parent()
		next, ok := outer.Node().(*ast.CallExpr)
		if !ok {
			break
		}
		if len(next.Args) == 1 {
			switch sel.Sel.Name {
			case "Px":
				ttl = s.ttl(next.Args[0], time.Nanosecond)
			case "Ex":
				ttl = s.ttl(next.Args[0], time.Nanosecond)
			case "PxMilliseconds":
				ttl = s.ttl(next.Args[0], time.Millisecond)
			case "ExSeconds":
				ttl = s.ttl(next.Args[0], time.Second)
			default:
				ttl = TTL{State: TTLUnknown, Expr: show(next.Args[0])}
			}
		}
	}
	built := false
	if last, ok := outer.Node().(*ast.CallExpr); ok {
		sel, ok := last.Fun.(*ast.SelectorExpr)
		built = ok && sel.Sel.Name == "Build"
	}
	if !built && ttl.State == TTLNone {
		ttl = TTL{State: TTLUnknown, Expr: "set later"} // the chain goes on elsewhere
	}
	if r.key != nil {
		s.noteSet(c, fn, ttl, r)
	}
}

func (s *scan) noteSet(c inspector.Cursor, fn *types.Func, ttl TTL, r redisSet) {
	l := s.add(c, RedisSet, fn.FullName(), s.name(r.key), ttl)
	l.redis = &r
}

// canon is a text that is the same for expressions with the same value, as far as the code shows it; "" if it shows
// nothing. With anon, parameters of different functions are taken for the same.
func (s *scan) canon(e ast.Expr, anon bool, depth int) string {
	if e == nil || depth > maxDepth || !s.step() {
		return ""
	}
	if v := s.constant(e); v != nil {
		return v.ExactString()
	}
	switch src := s.source(e).(type) {
	case *ast.Ident, *ast.SelectorExpr:
		return s.canonObject(src, anon, depth)
	case *ast.BinaryExpr:
		x, y := s.canon(src.X, anon, depth+1), s.canon(src.Y, anon, depth+1)
		if x == "" || y == "" {
			return ""
		}
		return x + src.Op.String() + y
	case *ast.CallExpr:
		fn := s.callee(src)
		if fn == nil {
			return ""
		}
		out := fn.FullName() + "("
		if recv := fn.Signature().Recv(); recv != nil {
			of := s.canonObject(receiver(src), anon, depth+1)
			if of == "" {
				return ""
			}
			out = of + "." + out
		}
		for _, a := range src.Args {
			arg := s.canon(a, anon, depth+1)
			if arg == "" {
				return ""
			}
			out += arg + ","
		}
		return out + ")"
	}
	return ""
}

// canonObject is canon of what has a name, without looking at where its value comes from: of a struct that is the same as
// another one at first only one may change. With anon, the receivers of different methods of one type are taken for the
// same.
func (s *scan) canonObject(e ast.Expr, anon bool, depth int) string {
	if e == nil || depth > maxDepth || !s.step() {
		return ""
	}
	if v := s.constant(e); v != nil {
		return v.ExactString()
	}
	base := ""
	switch e := ast.Unparen(e).(type) {
	case *ast.Ident:
	case *ast.SelectorExpr:
		if _, field := s.info.Selections[e]; field { // else it is something of another package
			base = s.canonObject(e.X, anon, depth+1)
			if base == "" {
				return ""
			}
		}
	case *ast.StarExpr:
		return s.canonObject(e.X, anon, depth+1)
	case *ast.UnaryExpr:
		if e.Op == token.AND {
			return s.canonObject(e.X, anon, depth+1)
		}
		return ""
	case *ast.CallExpr:
		return s.canon(e, anon, depth+1)
	default:
		return ""
	}
	obj := s.object(e)
	if obj == nil {
		return ""
	}
	v, isVar := obj.(*types.Var)
	switch {
	case anon && s.params[obj]:
		return "$"
	case anon && s.receivers[obj]:
		return "$" + typeName(obj.Type())
	case isVar && !v.IsField() && !s.params[obj] && len(s.defs[obj]) > 1:
		return "" // it changes
	}
	return base + "." + obj.Name() + "@" + s.pass.Fset.Position(obj.Pos()).String()
}

// keyText is a key as canon writes it, in its own function and in any.
type keyText struct{ here, anywhere string }

func (s *scan) keyText(e ast.Expr) keyText { return keyText{s.canon(e, false, 0), s.canon(e, true, 0)} }

// sameKey tells whether a, used in function da, and b, used in db, are the same key.
func sameKey(a keyText, da *ast.FuncDecl, b keyText, db *ast.FuncDecl) bool {
	switch {
	case da == db:
		return a.here != "" && a.here == b.here
	case a.anywhere == "" || a.anywhere != b.anywhere:
		return false
	case a.anywhere == "$": // Lock(key) and Unlock(key) of one type
		return da != nil && db != nil && recvName(da) != "" && recvName(da) == recvName(db)
	}
	return true
}

func recvName(d *ast.FuncDecl) string {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return ""
	}
	return strings.TrimPrefix(types.ExprString(d.Recv.List[0].Type), "*")
}
