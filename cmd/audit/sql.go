package audit

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"strconv"
	"strings"

	"golang.org/x/tools/go/ast/inspector"
)

// statement are the methods that take SQL, if their signature has a string and more.
var statement = map[string]bool{
	"Exec": true, "ExecContext": true, "Query": true, "QueryContext": true, "QueryRow": true, "QueryRowContext": true, "Queryx": true, "QueryxContext": true,
	"QueryRowx": true, "QueryRowxContext": true, "Get": true, "GetContext": true, "Select": true, "SelectContext": true, "MustExec": true,
	"MustExecContext": true, "NamedExec": true, "NamedExecContext": true, "Raw": true, "NewRaw": true, "Prepare": true, "PrepareContext": true,
	"Queue": true, "ExecParams": true,
}

// answered are those of them that give back no rows.
var answerless = map[string]bool{
	"Exec": true, "ExecContext": true, "MustExec": true, "MustExecContext": true, "NamedExec": true, "NamedExecContext": true,
}

// findSQL finds advisory locks in SQL: first in calls that run a statement, then in string constants that no such call
// was seen to use.
func (s *scan) findSQL() {
	used := map[ast.Node]bool{}
	s.calls(func(c inspector.Cursor, call *ast.CallExpr, fn *types.Func) bool {
		if fn.Signature().Recv() == nil || !statement[fn.Name()] {
			return true
		}
		for i, a := range call.Args {
			if i > 2 {
				break
			}
			text, whole := s.text(a)
			if !strings.Contains(strings.ToLower(text), "advisory_") {
				continue
			}
			s.literals(a, used)
			masked := maskSQL(text)
			if locks := sqlLocks(text, masked); len(locks) > 0 {
				for _, l := range locks {
					s.addAdvisory(c, call, fn, sqlText{masked, whole, l}, call.Args[i+1:])
				}
			} else if m := sqlUnlock.FindStringSubmatchIndex(masked); m != nil {
				given := sqlCall{args: strings.Join(strings.Fields(text[m[2]:m[3]]), " "), masked: masked[m[2]:m[3]], start: m[2]}
				name := s.advisoryName(call, sqlText{masked, whole, given}, call.Args[i+1:])
				s.unlocks = append(s.unlocks, unlock{c, call, name.Text, s.place(call, fn)})
			}
			break
		}
		return true
	})
	for _, f := range s.files {
		for c := range f.Preorder((*ast.BasicLit)(nil)) {
			lit := c.Node().(*ast.BasicLit)
			s.site()
			if lit.Kind != token.STRING || used[lit] || !strings.Contains(strings.ToLower(lit.Value), "advisory_") || s.isMessage(c) {
				continue
			}
			text, err := strconv.Unquote(lit.Value)
			if err != nil {
				continue
			}
			s.unlockText = s.unlockText || sqlUnlock.MatchString(maskSQL(text))
			for _, m := range sqlLocks(text, maskSQL(text)) {
				name := Name{Text: m.args}
				if name.Text == "" { // the text goes on elsewhere
					name.Text = "…"
				}
				l := s.advisory(c, m.function, name)
				l.unknown(SessionOnPool, "what runs the statement is not in sight")
			}
		}
	}
	for _, u := range s.unlocks {
		s.site()
		l := s.advisoryOf(u)
		if ctx := s.ctxArg(u.call); ctx != nil {
			s.release(l, u.at, ctx, "the advisory lock")
		}
		s.checkUnlock(l, u)
	}
	s.checkSessions()
}

// literals notes the string literals that the text of an expression is made of, and the expressions that lead there: each
// is looked at once, however many statements it is part of.
func (s *scan) literals(e ast.Expr, used map[ast.Node]bool) {
	if e == nil || used[e] {
		return
	}
	used[e] = true
	ast.Inspect(e, func(n ast.Node) bool {
		s.steps++
		switch n := n.(type) {
		case *ast.BasicLit:
			used[n] = true
		case *ast.Ident:
			switch obj := s.object(n).(type) {
			case *types.Const:
				for _, d := range s.defs[obj] {
					s.literals(d.rhs, used)
				}
			case *types.Var:
				if d, ok := s.only(n); ok && d.index <= 0 {
					s.literals(d.rhs, used)
				}
			}
		}
		return true
	})
}

// isMessage tells whether a literal is an argument of something that makes messages or errors.
func (s *scan) isMessage(c inspector.Cursor) bool {
	for p := range c.Enclosing((*ast.CallExpr)(nil), (*ast.FuncDecl)(nil), (*ast.GenDecl)(nil)) {
		call, ok := p.Node().(*ast.CallExpr)
		if !ok {
			return false
		}
		fn := s.callee(call)
		if fn == nil || fn.Pkg() == nil {
			continue
		}
		switch fn.Pkg().Path() {
		case "errors", "log", "log/slog", "testing":
			return true
		case "fmt":
			return !strings.HasPrefix(fn.Name(), "Sprint")
		}
	}
	return false
}

func (s *scan) advisory(c inspector.Cursor, function string, name Name) *lock {
	ttl := TTL{State: TTLSession}
	if strings.Contains(function, "_xact_") {
		ttl = TTL{State: TTLTx}
	}
	if _, err := strconv.ParseInt(name.Text, 10, 64); err == nil {
		name.Constant = true
	}
	l := s.add(c, PgAdvisory, function, name, ttl)
	l.ok(NoExpiry)
	if ttl.State == TTLSession {
		l.unknown(ReleaseContext, "no release is seen in this package")
		l.unknown(LossIgnored, "whether anybody watches the session is not in the code")
	}
	return l
}

// sqlText is a statement that takes a lock.
type sqlText struct {
	masked string // without what is quoted, and without comments
	whole  bool   // nothing is missing
	lock   sqlCall
}

// unlocks tells whether the statement gives its session lock back, or, if that is not in sight, may.
func (t sqlText) unlocks() (yes, perhaps bool) {
	rest := t.masked[t.lock.end:]
	return strings.Contains(strings.ToLower(rest), "pg_advisory_unlock"), !t.whole && strings.Contains(rest, "…")
}

// answers tells whether the statement does nothing with the answer of the function but give it back.
func (t sqlText) answers() bool {
	return sqlAsked.MatchString(t.masked[:t.lock.at]) && sqlAnswered.MatchString(t.masked[t.lock.end:])
}

// addAdvisory notes a lock that a call takes, and judges what the call runs on.
func (s *scan) addAdvisory(c inspector.Cursor, call *ast.CallExpr, fn *types.Func, text sqlText, args []ast.Expr) {
	function := text.lock.function
	l := s.advisory(c, function, s.advisoryName(call, text, args))
	s.checkPool(l, call, fn, text)
	if strings.HasPrefix(function, "pg_try_") && s.answerDropped(c, fn) {
		if !text.answers() {
			l.unknown(LossIgnored, "the statement itself goes by whether the lock was got, or may")
			return
		}
		s.report(l, LossIgnored, l.at, "whether the advisory lock was got is not looked at: "+function+" answers false when another session has it",
			"read the answer with QueryRow and Scan, and do the work only if it is true")
	}
}

// advisoryName is the name of a lock in the arguments of its function, with what is given for their places.
func (s *scan) advisoryName(call *ast.CallExpr, text sqlText, args []ast.Expr) Name {
	given := text.lock.args
	name := Name{Text: sqlHolder.ReplaceAllStringFunc(given, func(h string) string {
		n, _ := strconv.Atoi(h[1:])
		if call.Ellipsis.IsValid() || n < 1 || n > len(args) {
			return h
		}
		return s.name(args[n-1]).Text
	})}
	before := strings.Count(text.masked[:text.lock.start], "?")
	for i := before; !call.Ellipsis.IsValid() && i < len(args) && i < before+strings.Count(text.lock.masked, "?"); i++ {
		name.Text = strings.Replace(name.Text, "?", s.name(args[i]).Text, 1)
	}
	if m := sqlHolder.FindStringSubmatch(given); m != nil && m[0] == given {
		if n, _ := strconv.Atoi(m[1]); n >= 1 && n <= len(args) && !call.Ellipsis.IsValid() {
			return s.name(args[n-1])
		}
	}
	return name
}

// answerDropped tells whether nobody can see the rows of a statement.
func (s *scan) answerDropped(c inspector.Cursor, fn *types.Func) bool {
	if !answerless[fn.Name()] {
		return false
	}
	path, _ := library(fn)
	if path == "gorm.io/gorm" || !known(path) {
		return false
	}
	_, assigned := s.targets(c)
	return assigned
}

// What a statement runs on, by the type of the receiver.
type runsOn int

const (
	onUnknown runsOn = iota
	onPool
	onSession // one connection, or a transaction
)

func known(path string) bool {
	switch path {
	case "database/sql", "github.com/jmoiron/sqlx", "github.com/jackc/pgx", "github.com/jackc/pgx/pgxpool", "github.com/jackc/pgx/v5/pgxpool",
		"github.com/jackc/pgx/v4/pgxpool", "github.com/jackc/pgconn", "github.com/jackc/pgx/v5/pgconn", "github.com/uptrace/bun", "gorm.io/gorm",
		"github.com/go-pg/pg":
		return true
	}
	return false
}

// place tells what the receiver of a call runs statements on: by its type, or, if that is none of those that are known but
// has one of them embedded, by the type that declares the method.
func (s *scan) place(call *ast.CallExpr, fn *types.Func) runsOn {
	if on := placeOf(s.info.TypeOf(receiver(call))); on != onUnknown {
		return on
	}
	if recv := fn.Signature().Recv(); recv != nil && fn.Pkg() != nil && fn.Pkg().Path() != "gorm.io/gorm" {
		return placeOf(recv.Type())
	}
	return onUnknown
}

func placeOf(t types.Type) runsOn {
	if t == nil {
		return onUnknown
	}
	if p, ok := types.Unalias(t).(*types.Pointer); ok {
		t = p.Elem()
	}
	n, ok := types.Unalias(t).(*types.Named)
	if !ok || n.Obj().Pkg() == nil {
		return onUnknown
	}
	path := majorVersion.ReplaceAllString(n.Obj().Pkg().Path(), "")
	if !known(path) {
		return onUnknown
	}
	switch n.Obj().Name() {
	case "Pool":
		return onPool
	case "DB":
		if path == "gorm.io/gorm" { // a DB of gorm is a pool, a connection or a transaction
			return onUnknown
		}
		return onPool
	case "Conn", "Tx", "PgConn":
		return onSession
	}
	return onUnknown
}

// checkPool judges whether lock and unlock can go to different sessions.
func (s *scan) checkPool(l *lock, call *ast.CallExpr, fn *types.Func, text sqlText) {
	session := l.TTL.State == TTLSession
	unlocked, perhaps := text.unlocks()
	l.on, l.gives = s.place(call, fn), session && (unlocked || perhaps)
	if session && unlocked {
		l.unknown(ReleaseContext, "the statement that takes the lock gives it back; it does not get that far if its context ends before")
	}
	switch l.on {
	case onSession:
		l.ok(SessionOnPool)
		return
	case onUnknown:
		l.unknown(SessionOnPool, "whether "+show(receiver(call))+" is a pool or one session is not in sight")
		return
	}
	if s.onePooled() {
		l.unknown(SessionOnPool, "a pool of this package is limited to one connection")
		return
	}
	switch {
	case session && unlocked:
		l.unknown(SessionOnPool, "lock, work and unlock are one statement and so one session; but if the work fails, the lock stays with a pooled connection")
		return
	case session && perhaps:
		l.unknown(SessionOnPool, "the statement goes on with what is not in sight; it may give the lock back")
		return
	case session:
		s.report(l, SessionOnPool, l.at, "a session lock is taken through the pool "+show(receiver(call))+
			": the unlock, and the work, can go to another session, and the lock stays with a pooled connection",
			"take one connection out of the pool for lock, work and unlock (db.Conn, pool.Acquire), or use pg_advisory_xact_lock in a transaction")
		return
	}
	if sqlOnlyXact.MatchString(text.masked) && !strings.HasPrefix(fn.Name(), "Prepare") {
		s.report(l, SessionOnPool, l.at, "a transaction lock is taken outside a transaction, on the pool "+show(receiver(call))+
			": it ends with its own statement and protects nothing",
			"take it on the transaction that does the work")
		return
	}
	l.unknown(SessionOnPool, "the statement does more than take the lock")
}

// onePooled tells whether the package limits a pool to one connection.
func (s *scan) onePooled() bool {
	if s.one == nil {
		found := s.limitsPool()
		s.one = &found
	}
	return *s.one
}

func (s *scan) limitsPool() bool {
	isOne := func(e ast.Expr) bool {
		v := s.constant(e)
		return v != nil && v.Kind() == constant.Int && v.ExactString() == "1"
	}
	for _, f := range s.files {
		for c := range f.Preorder((*ast.CallExpr)(nil)) {
			call := c.Node().(*ast.CallExpr)
			if fn := s.callee(call); fn != nil && fn.Name() == "SetMaxOpenConns" && len(call.Args) == 1 && isOne(call.Args[0]) {
				return true
			}
		}
	}
	for c := range s.root.Preorder((*ast.AssignStmt)(nil)) {
		a := c.Node().(*ast.AssignStmt)
		for i, lhs := range a.Lhs {
			if sel, ok := lhs.(*ast.SelectorExpr); ok && sel.Sel.Name == "MaxConns" && i < len(a.Rhs) && isOne(a.Rhs[i]) {
				return true
			}
		}
	}
	return false
}
