package audit

import (
	"go/ast"
	"go/constant"
	"go/token"
	"go/types"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/tools/go/ast/inspector"
)

// maxDepth bounds how far a value is followed through variables.
const maxDepth = 6

// source follows an expression to where its value comes from: through parentheses, conversions that keep it, and local
// variables that are assigned once. Whatever else it is, it is returned as it stands.
func (s *scan) source(e ast.Expr) ast.Expr {
	for range maxDepth {
		s.steps++
		e = ast.Unparen(e)
		if call, ok := e.(*ast.CallExpr); ok && len(call.Args) == 1 {
			if tv, ok := s.info.Types[call.Fun]; ok && tv.IsType() {
				e = call.Args[0]
				continue
			}
		}
		d, ok := s.only(e)
		if !ok || d.index > 0 || d.rhs == nil {
			return e
		}
		e = d.rhs
	}
	return e
}

// only returns the one value that a variable can have where e stands: it is assigned once, for certain before, and nothing
// else can change it. It is a local variable, or one of the package that is not exported.
func (s *scan) only(e ast.Expr) (def, bool) { return s.onlyDef(e, false) }

// onlyDef is only; lent variables count too if only the library that declares their type gets their address: it reads them.
func (s *scan) onlyDef(e ast.Expr, lent bool) (def, bool) {
	id, ok := ast.Unparen(e).(*ast.Ident)
	if !ok {
		return def{}, false
	}
	v, ok := s.object(id).(*types.Var)
	if !ok || v.IsField() || s.params[v] || (s.aliased[v] && !(lent && s.onlyRead(v))) || len(s.defs[v]) != 1 {
		return def{}, false
	}
	if v.Parent() == s.pass.Pkg.Scope() && v.Exported() {
		return def{}, false
	}
	d := s.defs[v][0]
	if s.initial[v] && !before(d.in, e.Pos()) {
		return def{}, false // it may still have its first value
	}
	return d, true
}

// before tells whether a statement has run for certain, and for the last time, when the code at pos runs that stands in the
// block of the statement. What runs in init comes before everything else but the variables of the package.
func before(c inspector.Cursor, pos token.Pos) bool {
	if c.Node() == nil || c.Parent().Node() == nil {
		return false
	}
	block := c.Parent()
	switch block.Node().(type) {
	case *ast.BlockStmt, *ast.CaseClause, *ast.CommClause, *ast.IfStmt, *ast.SwitchStmt:
	default: // a loop's last statement stands before its body
		return false
	}
	if d, ok := block.Parent().Node().(*ast.FuncDecl); ok && d.Recv == nil && d.Name.Name == "init" {
		return true
	}
	return block.Node().Pos() <= pos && pos < block.Node().End() && c.Node().End() <= pos
}

// constant returns the constant value of an expression, or nil.
func (s *scan) constant(e ast.Expr) constant.Value {
	if e == nil {
		return nil
	}
	if tv := s.info.Types[e]; tv.Value != nil {
		return tv.Value
	}
	if src := s.source(e); src != e {
		return s.info.Types[src].Value
	}
	return nil
}

// verb is a verb of a format.
var verb = regexp.MustCompile(`%[-+# 0-9.*\[\]]*[a-zA-Z]`)

// text returns the value of a string as far as the code shows it; whole is false if a part is not known, and … stands
// for that part.
func (s *scan) text(e ast.Expr) (text string, whole bool) {
	var b strings.Builder
	whole = s.writeText(&b, e, 0)
	return b.String(), whole
}

func (s *scan) writeText(b *strings.Builder, e ast.Expr, depth int) (whole bool) {
	if v := s.constant(e); v != nil && v.Kind() == constant.String {
		b.WriteString(constant.StringVal(v))
		return true
	}
	if depth > maxDepth || !s.step() {
		b.WriteString("…")
		return false
	}
	src := s.source(e)
	switch src := src.(type) {
	case *ast.Ident:
		if text, ok := s.embedded[s.object(src)]; ok {
			b.WriteString(text)
			return true
		}
	case *ast.BinaryExpr:
		if src.Op == token.ADD {
			if src != ast.Unparen(e) {
				depth++ // through a variable; a sum itself may be as long as it likes
			}
			x := s.writeText(b, src.X, depth)
			y := s.writeText(b, src.Y, depth)
			return x && y
		}
	case *ast.CallExpr:
		if fn := s.callee(src); fn != nil && fn.FullName() == "fmt.Sprintf" && len(src.Args) > 0 {
			var format strings.Builder
			whole := s.writeText(&format, src.Args[0], depth+1)
			b.WriteString(verb.ReplaceAllString(format.String(), "…"))
			return whole && len(src.Args) == 1
		}
	}
	b.WriteString("…")
	return false
}

// name makes a Name of an expression.
func (s *scan) name(e ast.Expr) Name {
	if v := s.constant(e); v != nil {
		if v.Kind() == constant.String {
			return Name{constant.StringVal(v), true}
		}
		return Name{v.ExactString(), true}
	}
	if text, _ := s.text(e); strings.Trim(text, "…") != "" {
		return Name{Text: text}
	}
	src := s.source(e)
	if call, ok := src.(*ast.CallExpr); ok {
		if text := s.madeText(call); text != "" {
			return Name{Text: text}
		}
	}
	if _, ok := src.(*ast.CompositeLit); ok {
		src = e
	}
	return Name{Text: show(src)}
}

// madeText is the text of what a function makes in one line, or "" if nothing of it is known, or the call itself says more.
func (s *scan) madeText(call *ast.CallExpr) string {
	for _, given := range append([]ast.Expr{receiver(call)}, call.Args...) {
		if s.constant(given) != nil {
			return ""
		}
	}
	made := s.oneLine(call)
	if made == nil {
		return ""
	}
	text, _ := s.text(made)
	if strings.Trim(text, "…") == "" {
		return ""
	}
	return text
}

// show prints an expression on one line, not too long.
func show(e ast.Expr) string {
	text := strings.Join(strings.Fields(types.ExprString(e)), " ")
	if r := []rune(text); len(r) > 60 {
		text = string(r[:59]) + "…"
	}
	return text
}

// duration reads a constant expression in units, as in 30 with unit time.Second.
func (s *scan) duration(e ast.Expr, unit time.Duration) (time.Duration, bool) {
	v := s.constant(e)
	if v == nil {
		return 0, false
	}
	if v.Kind() == constant.String { // as an argument of a Redis command
		n, err := strconv.ParseInt(constant.StringVal(v), 10, 64)
		return time.Duration(n) * unit, err == nil
	}
	n, ok := constant.Int64Val(constant.ToInt(v))
	return time.Duration(n) * unit, ok
}

// ttl makes a TTL of an expression in units. What is not above zero is no expiry.
func (s *scan) ttl(e ast.Expr, unit time.Duration) TTL {
	d, ok := s.duration(e, unit)
	switch {
	case !ok:
		return TTL{State: TTLUnknown, Expr: show(e)}
	case d <= 0:
		return TTL{State: TTLNone}
	}
	return TTL{State: TTLKnown, D: d}
}

// isNil tells whether an expression is the predeclared nil.
func (s *scan) isNil(e ast.Expr) bool { return e != nil && s.info.Types[e].IsNil() }

// result says what becomes of one result of a call.
type result int

const (
	resultUsed    result = iota // something is done with it, or that cannot be told
	resultDropped               // assigned to _ or not taken at all
)

// result tells what becomes of result number i of the call at c.
func (s *scan) result(c inspector.Cursor, i int) result {
	lhs, ok := s.targets(c)
	if !ok {
		return resultUsed
	}
	if lhs == nil {
		return resultDropped
	}
	if i < len(lhs) {
		if id, ok := lhs[i].(*ast.Ident); ok && id.Name == "_" {
			return resultDropped
		}
	}
	return resultUsed
}

// target returns the object that takes result number i of the call at c, or nil.
func (s *scan) target(c inspector.Cursor, i int) types.Object {
	if lhs, ok := s.targets(c); ok && i < len(lhs) {
		return s.object(lhs[i])
	}
	if kv, ok := s.unparen(c).Parent().Node().(*ast.KeyValueExpr); ok && i == 0 {
		if id, ok := kv.Key.(*ast.Ident); ok {
			return s.object(id)
		}
	}
	return nil
}

// targets returns the left side of the assignment whose right side is the call at c; nil and true if the call is a
// statement of its own, so that its results are dropped.
func (s *scan) targets(c inspector.Cursor) (lhs []ast.Expr, ok bool) {
	c = s.unparen(c)
	call, _ := c.Node().(ast.Expr)
	switch p := c.Parent().Node().(type) {
	case *ast.ExprStmt, *ast.DeferStmt, *ast.GoStmt:
		return nil, true
	case *ast.AssignStmt:
		return taken(p.Lhs, p.Rhs, call)
	case *ast.ValueSpec:
		lhs = make([]ast.Expr, len(p.Names))
		for i, n := range p.Names {
			lhs[i] = n
		}
		return taken(lhs, p.Values, call)
	}
	return nil, false
}

func taken(lhs, rhs []ast.Expr, call ast.Expr) ([]ast.Expr, bool) {
	if len(rhs) == 1 && rhs[0] == call {
		return lhs, true
	}
	for i, r := range rhs {
		if r == call && i < len(lhs) {
			return lhs[i : i+1], true
		}
	}
	return nil, false
}

func (s *scan) unparen(c inspector.Cursor) inspector.Cursor {
	for {
		if _, ok := c.Parent().Node().(*ast.ParenExpr); !ok {
			return c
		}
		c = c.Parent()
	}
}
