package audit

import (
	"go/ast"
	"go/types"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/tools/go/ast/inspector"
)

// A touch is something else that is done with keys of Redis.
type touch struct {
	at     inspector.Cursor
	in     *ast.FuncDecl
	keys   []ast.Expr
	named  []keyText
	ctx    ast.Expr // may be nil
	what   touchKind
	script string // touchScript: its text, or ""
	queued bool   // in a pipeline or transaction
	unsure bool   // it may be done with something else than Redis
	helped bool   // it is the call of a function that does it with a key that it is given
	other  bool   // for one lock: it may be done with the key of another one
}

type touchKind int

const (
	touchDelete touchKind = iota
	touchExpire
	touchGet
	touchScript
)

var touchNames = map[string]touchKind{
	"Del": touchDelete, "Unlink": touchDelete, "DEL": touchDelete, "UNLINK": touchDelete,
	"Expire": touchExpire, "PExpire": touchExpire, "ExpireAt": touchExpire, "ExpireNX": touchExpire, "ExpireLT": touchExpire, "PExpireAt": touchExpire, "EXPIRE": touchExpire, "PEXPIRE": touchExpire, "EXPIREAT": touchExpire, "PEXPIREAT": touchExpire,
	"Get": touchGet, "GET": touchGet,
	"Eval": touchScript, "EvalSha": touchScript, "Run": touchScript, "Exec": touchScript, "EVAL": touchScript, "EVALSHA": touchScript,
}

// touches returns what the package does with keys of Redis besides setting them.
func (s *scan) touches() []touch {
	if s.touched != nil {
		return s.touched
	}
	s.touched = []touch{}
	s.calls(func(c inspector.Cursor, call *ast.CallExpr, fn *types.Func) bool {
		if t, ok := s.touch(c, call, fn); ok {
			for _, k := range t.keys {
				t.named = append(t.named, s.keyText(k))
			}
			s.touched = append(s.touched, t)
		}
		return true
	})
	for _, t := range slices.Clone(s.touched) {
		s.touched = append(s.touched, s.helped(t)...)
	}
	return s.touched
}

func (s *scan) touch(c inspector.Cursor, call *ast.CallExpr, fn *types.Func) (touch, bool) {
	t := touch{at: c, in: s.decl(c), ctx: s.ctxArg(call)}
	path, name := library(fn)
	if cmd, args, _ := s.command(call, fn); cmd != "" {
		kind, ok := touchNames[cmd]
		if kind == touchExpire && slices.ContainsFunc(args, func(a ast.Expr) bool { return s.equal(a, "XX") || s.equal(a, "GT") }) {
			return t, false // of a key without expiry these change nothing
		}
		t.what, t.keys = kind, args
		t.queued = queued(s.info.TypeOf(receiver(call)))
		return t, ok
	}
	if strings.HasSuffix(path, "/internal/cmds") && (name == "Del.Key" || name == "Unlink.Key") {
		t.keys = call.Args
		return t, true
	}
	if strings.HasSuffix(path, "/internal/cmds") && (name == "Expire.Key" || name == "Pexpire.Key") {
		t.what, t.keys = touchExpire, call.Args
		return t, true
	}
	sig := fn.Signature()
	kind, ok := touchNames[fn.Name()]
	if !ok || sig.Recv() == nil || fn.Name() == strings.ToUpper(fn.Name()) {
		return t, false
	}
	t.what = kind
	switch s.isRedis(call, fn) {
	case Faulty:
		return t, false
	case Unknown:
		t.unsure = true
	}
	t.queued = queued(s.info.TypeOf(receiver(call)))
	args := call.Args
	if t.ctx != nil {
		args = args[1:]
	}
	if kind != touchScript {
		if kind != touchDelete && len(args) > 1 {
			args = args[:1]
		}
		t.keys = args
		return t, len(args) > 0
	}
	for _, a := range args {
		if lit := s.literal(a); lit != nil {
			t.keys = append(t.keys, lit.Elts...)
		} else if text, whole := s.text(a); whole && strings.Contains(text, "call") {
			t.script = text
		} else {
			t.keys = append(t.keys, a) // redigo lists keys and values
		}
	}
	if made, ok := s.made(receiver(call)).(*ast.CallExpr); ok {
		for _, a := range made.Args {
			if text, whole := s.text(a); whole && strings.Contains(text, "call") {
				t.script = text
			}
		}
	}
	return t, len(t.keys) > 0
}

// made is where a script comes from: as source, and through a field that is set once.
func (s *scan) made(e ast.Expr) ast.Expr {
	if sel, ok := ast.Unparen(e).(*ast.SelectorExpr); ok {
		if v, ok := s.object(sel).(*types.Var); ok && v.IsField() && !v.Exported() && len(s.defs[v]) == 1 && s.defs[v][0].rhs != nil {
			return s.source(s.defs[v][0].rhs)
		}
	}
	return s.source(e)
}

// queued tells whether a type collects commands to send them together.
func queued(t types.Type) bool {
	if t == nil {
		return false
	}
	name := typeName(t)
	return strings.HasPrefix(name, "Pipelin") || name == "Tx"
}

var (
	luaDelete = regexp.MustCompile(`(?i)call\(\s*['"](del|unlink)['"]`)
	luaGet    = regexp.MustCompile(`(?i)call\(\s*['"](get|getrange|hget|hexists)['"]`)
)

var (
	luaCompare = regexp.MustCompile(`[=~]=\s*([A-Za-z_]\w*|"[^"]+"|'[^']+')`)
	luaField   = regexp.MustCompile(`(?i)call\(\s*['"]hexists['"]`)       // of the holder
	luaOther   = regexp.MustCompile(`[<>]|\b(?:string|cjson|cmsgpack)\b`) // another way to compare
)

// comparesHolder tells whether a script compares something with a value: OK, Faulty, or Unknown if it may do so in a way that
// is not known. That a key is there at all, or is not, says nothing of who holds it.
func comparesHolder(script string) Verdict {
	script = luaComment.ReplaceAllString(script, "")
	for _, m := range luaCompare.FindAllStringSubmatch(script, -1) {
		switch m[1] {
		case "false", "true", "nil":
		default:
			return OK
		}
	}
	switch {
	case luaField.MatchString(script):
		return OK
	case luaOther.MatchString(script):
		return Unknown
	}
	return Faulty
}

// checkRedisSet judges a key that is set if absent.
func (s *scan) checkRedisSet(l *lock) {
	in := s.decl(l.cur)
	var related []touch
	key := s.keyText(l.redis.key)
	for _, t := range s.touches() {
		for _, k := range t.named {
			if sameKey(key, in, k, t.in) && (!t.helped || t.in == in) {
				related = append(related, t)
				break
			}
		}
	}
	doubt := l.redis.doubt
	if doubt == "" {
		switch sign := s.sign(l, in, related); {
		case sign == noSign:
			doubt = "nothing here says whether this is a lock"
		case sign == someSign && !s.hasHolder(l):
			doubt = "only the name of the function says lock, and it may mean a state that stays: nothing tells one holder from another"
		}
	}
	if doubt != "" {
		l.Maybe = true
		for _, f := range []Fault{NoExpiry, UncheckedRelease, GuessableValue, ReleaseContext, LossIgnored} {
			l.unknown(f, doubt)
		}
		return
	}
	related = s.ofThis(l, in, key, related)
	s.checkExpiry(l, in, related)
	l.unknown(ReleaseContext, "no release is seen in this package")
	l.unknown(UncheckedRelease, "no release is seen in this package")
	l.unknown(GuessableValue, "no release is seen in this package, so the value may not matter")
	released, alike := false, ""
	for _, t := range related {
		if t.other {
			if t.what == touchDelete {
				alike = "a key that is made alike is deleted in " + funcName(t.in) + ": it need not be this lock's"
			}
			continue
		}
		released = s.checkTouch(l, in, t, related) || released
	}
	if alike != "" {
		l.unknown(UncheckedRelease, alike)
	}
	if released && l.redis.value != nil {
		g, why := s.strength(l.redis.value, l.redis.key)
		s.judgeStrength(l, g, why, l.redis.value.Pos(), "the value that is set")
	}
	s.checkReply(l, in, related)
}

// sign looks for signs that a key is a lock.
func (s *scan) sign(l *lock, in *ast.FuncDecl, related []touch) sign {
	var results []string
	for c := range l.cur.Enclosing((*ast.AssignStmt)(nil), (*ast.FuncDecl)(nil), (*ast.FuncLit)(nil)) {
		if a, ok := c.Node().(*ast.AssignStmt); ok {
			for _, lhs := range a.Lhs {
				results = append(results, types.ExprString(lhs))
			}
		}
		break // the innermost
	}
	if has(lockWords, results...) || has(gotWords, results...) || hasLock(s.identifiers(l.redis.key)) {
		return clearSign
	}
	for _, t := range related {
		if _, direct := t.at.Parent().Node().(*ast.DeferStmt); direct && t.what == touchDelete && t.in == in && !t.unsure {
			return clearSign
		}
	}
	return s.around(in)
}

// hasHolder tells whether a key is treated as something that somebody has for a while: its value is random, or it expires
// and the answer is looked at.
func (s *scan) hasHolder(l *lock) bool {
	if g, _ := s.strength(l.redis.value, l.redis.key); g == strong {
		return true
	}
	return l.TTL.State != TTLNone && !s.answerIgnored(l)
}

// checkTouch judges one thing that is done with the lock's key, and tells whether it depends on the lock's value or
// ought to.
func (s *scan) checkTouch(l *lock, in *ast.FuncDecl, t touch, related []touch) bool {
	holder := t.in == in || (t.in != nil && has(releaseWords, t.in.Name.Name))
	if t.in != nil && has(forceWords, t.in.Name.Name) {
		return false
	}
	switch t.what {
	case touchDelete:
		switch {
		case holder && t.in != in && s.frees(t.in) && s.around(in) == noSign && !s.isStrong(l):
			l.unknown(UncheckedRelease, "the key is deleted in "+funcName(t.in)+", which may end a state that nobody holds")
			return false
		case !holder:
			l.unknown(UncheckedRelease, "the key is deleted in "+funcName(t.in)+", perhaps not by the holder")
			return false
		case t.unsure:
			l.unknown(UncheckedRelease, "whether "+show(t.at.Node().(*ast.CallExpr).Fun)+" deletes a key of Redis is not in sight")
			return false
		case t.queued:
			l.unknown(UncheckedRelease, "the key is deleted in a pipeline or transaction")
			return false
		}
		where := ""
		if t.in != in {
			where = " in " + funcName(t.in)
		}
		message := called(l, l.redis.key) + " is deleted" + where + " without looking at who holds it: after an expiry that frees the next holder's lock"
		for _, g := range related {
			if g.what == touchGet && g.in == t.in && g.at.Node().Pos() < t.at.Node().Pos() {
				message = called(l, l.redis.key) + " is read and then deleted" + where + " in two steps: it can pass to another holder in between"
			}
		}
		s.report(l, UncheckedRelease, t.at.Node().Pos(), message, "compare the value and delete the key in one Lua script")
		if t.ctx != nil {
			s.release(l, t.at, t.ctx, called(l, l.redis.key))
		}
		return true
	case touchScript:
		if t.script == "" {
			l.unknown(UncheckedRelease, "the script is not in sight")
			return false
		}
		if !luaDelete.MatchString(t.script) {
			return true // a renewal that compares, or something else
		}
		compared := comparesHolder(t.script)
		switch {
		case luaGet.MatchString(t.script) && compared == Faulty:
			s.report(l, UncheckedRelease, t.at.Node().Pos(), "the script reads "+called(l, l.redis.key)+" and deletes it without comparing who holds it",
				"compare the value and delete the key in one Lua script")
		case !luaGet.MatchString(t.script):
			s.report(l, UncheckedRelease, t.at.Node().Pos(), "the script deletes "+called(l, l.redis.key)+" without looking at who holds it",
				"compare the value and delete the key in one Lua script")
		case compared == Unknown:
			l.unknown(UncheckedRelease, "whether the script compares who holds the lock cannot be told")
		default:
			l.ok(UncheckedRelease)
		}
		if t.ctx != nil && holder {
			s.release(l, t.at, t.ctx, called(l, l.redis.key))
		}
		return true
	}
	return false
}

// frees tells whether the name of a function says what it frees, as UnlockUser does.
func (s *scan) frees(d *ast.FuncDecl) bool {
	for _, w := range words(d.Name.Name) {
		if !releaseWords[w] && !lockWords[w] && !plainWords[w] {
			return true
		}
	}
	return false
}

func (s *scan) isStrong(l *lock) bool {
	g, _ := s.strength(l.redis.value, l.redis.key)
	return g == strong
}

// checkReply finds out whether the answer "somebody else has it" is looked at.
func (s *scan) checkReply(l *lock, in *ast.FuncDecl, related []touch) {
	l.unknown(LossIgnored, "whether the work ends before the expiry is not in the code")
	for _, t := range related {
		if t.what == touchGet && (t.in == in || s.callsTo(in, t.in)) {
			return // reading the value back says it too
		}
	}
	if s.answerIgnored(l) {
		s.report(l, LossIgnored, l.at, "whether "+called(l, l.redis.key)+" was got is not looked at: the work runs in any case",
			"do the work only if the key was set")
	}
}

// callsTo tells whether one function calls another.
func (s *scan) callsTo(from, to *ast.FuncDecl) bool {
	if from == nil || to == nil {
		return false
	}
	for _, u := range s.uses[s.info.Defs[to.Name]] {
		if from.Pos() <= u.Node().Pos() && u.Node().End() <= from.End() {
			return true
		}
	}
	return false
}

// answerIgnored tells whether nobody looks at whether the key was set, as far as the code shows it.
func (s *scan) answerIgnored(l *lock) bool {
	fn := s.callee(l.cur.Node().(*ast.CallExpr))
	if queued(s.info.TypeOf(receiver(l.cur.Node().(*ast.CallExpr)))) || fn.Name() == "Nx" || fn.Name() == "Value" || fn.Name() == "Send" {
		return false
	}
	if r := fn.Signature().Results(); r.Len() == 2 { // (bool, error), or redigo's (any, error)
		_, b := r.At(0).Type().Underlying().(*types.Basic)
		return s.result(l.cur, 0) == resultDropped && (b || l.redis.reply == replyAny)
	}
	return s.ignoresCommand(l.cur, l.redis.reply, 0)
}

// ignoresCommand follows a command of go-redis to the methods that give its answer.
func (s *scan) ignoresCommand(c inspector.Cursor, how reply, depth int) bool {
	c = s.unparen(c)
	switch p := c.Parent().Node().(type) {
	case *ast.ExprStmt, *ast.GoStmt:
		return true
	case *ast.SelectorExpr:
		got := c.Parent().Parent()
		if _, ok := got.Node().(*ast.CallExpr); !ok {
			return false
		}
		switch p.Sel.Name {
		case "Err":
			return how == replyBool || s.result(got, 0) == resultDropped
		case "Result":
			if how == replyBool {
				return s.result(got, 0) == resultDropped
			}
			return s.result(got, 1) == resultDropped && s.result(got, 0) == resultDropped
		}
		return false
	case *ast.AssignStmt:
		if s.result(c, 0) == resultDropped {
			return true
		}
		v, ok := s.target(c, 0).(*types.Var)
		if !ok || v.IsField() || v.Parent() == s.pass.Pkg.Scope() || len(s.defs[v]) != 1 || depth > 0 || len(s.uses[v]) == 0 {
			return false
		}
		for _, u := range s.uses[v] {
			if !s.ignoresCommand(u, how, depth+1) {
				return false
			}
		}
		return true
	}
	return false
}
