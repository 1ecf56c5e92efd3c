package audit

import (
	"go/ast"
	"go/constant"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/tools/go/ast/inspector"
)

var (
	luaSet    = regexp.MustCompile(`(?i)redis\.p?call\(\s*['"](set|setnx)['"]\s*,`)
	luaNX     = regexp.MustCompile(`(?i)['"]nx['"]`)
	luaEnds   = regexp.MustCompile(`(?i)['"](ex|px|exat|pxat)['"]\s*,\s*([^,)]+)`)
	luaExpire = regexp.MustCompile(`(?i)call\(\s*['"]p?expire(at)?['"]`)
)

// findScripts finds Lua scripts in strings that set a key if it is absent: first in those that are put together, then in
// literals that are part of none.
func (s *scan) findScripts() {
	used := map[ast.Node]bool{}
	for _, f := range s.files {
		for c := range f.Preorder((*ast.BinaryExpr)(nil)) {
			sum := c.Node().(*ast.BinaryExpr)
			if sum.Op != token.ADD || partOfSum(s.unparen(c)) || !s.callsLua(sum) {
				continue
			}
			s.site()
			text, whole := s.text(sum)
			sets := luaSet.FindAllStringSubmatchIndex(text, -1)
			if len(sets) == 0 {
				continue
			}
			s.literals(sum, used)
			for _, m := range sets {
				s.addScript(c, nil, text, m, whole && !s.fragment(c))
			}
		}
	}
	for _, f := range s.files {
		for c := range f.Preorder((*ast.BasicLit)(nil)) {
			lit := c.Node().(*ast.BasicLit)
			if lit.Kind != token.STRING || used[lit] || !strings.Contains(lit.Value, "call") {
				continue
			}
			v := s.info.Types[lit].Value
			if v == nil || v.Kind() != constant.String {
				continue
			}
			text := lit.Value
			if lit.Value[0] == '"' {
				text = constant.StringVal(v)
			}
			for _, m := range luaSet.FindAllStringSubmatchIndex(text, -1) {
				s.addScript(c, lit, text, m, !s.fragment(c))
			}
		}
	}
}

// callsLua tells whether a text or constant in an expression may be part of a script: what other sums add up to is not
// followed.
func (s *scan) callsLua(e ast.Expr) bool {
	found := false
	ast.Inspect(e, func(n ast.Node) bool {
		s.steps++
		if x, ok := n.(ast.Expr); ok && !found {
			if v := s.info.Types[x].Value; v != nil && v.Kind() == constant.String {
				found = strings.Contains(constant.StringVal(v), "call")
				return false
			}
		}
		return !found
	})
	return found
}

// partOfSum tells whether an expression is added to something.
func partOfSum(c inspector.Cursor) bool {
	sum, ok := c.Parent().Node().(*ast.BinaryExpr)
	return ok && sum.Op == token.ADD
}

// fragment tells whether a string is part of a text that is put together elsewhere.
func (s *scan) fragment(c inspector.Cursor) bool {
	c = s.unparen(c)
	switch p := c.Parent().Node().(type) {
	case *ast.BinaryExpr:
		return p.Op == token.ADD
	case *ast.AssignStmt:
		return p.Tok == token.ADD_ASSIGN
	case *ast.CompositeLit: // strings.Join([]string{…}, "")
		call, ok := s.unparen(c.Parent()).Parent().Node().(*ast.CallExpr)
		return ok && s.makesText(call)
	case *ast.CallExpr:
		return s.makesText(p)
	}
	return false
}

func (s *scan) makesText(call *ast.CallExpr) bool {
	fn := s.callee(call)
	if fn == nil || fn.Pkg() == nil {
		return false
	}
	switch fn.Pkg().Path() {
	case "fmt", "strings", "bytes", "text/template", "io":
		return true
	}
	return false
}

var (
	luaComment = regexp.MustCompile(`--[^\n]*`)
	luaOpens   = regexp.MustCompile(`\b(?:if|do|function|repeat)\b`)
	luaCloses  = regexp.MustCompile(`\b(?:end|until)\b`)
)

// closed tells whether a script has as many ends as beginnings, so that it does not go on elsewhere.
func closed(script string) bool {
	script = luaComment.ReplaceAllString(script, "")
	return len(luaOpens.FindAllString(script, -1)) == len(luaCloses.FindAllString(script, -1)) &&
		strings.Count(script, "(") == strings.Count(script, ")")
}

// embed reads the file that a go:embed comment puts into a variable.
func (s *scan) embed(spec *ast.ValueSpec, c inspector.Cursor) {
	doc := spec.Doc
	if decl, ok := c.Parent().Node().(*ast.GenDecl); ok && doc == nil {
		doc = decl.Doc
	}
	if doc == nil || len(spec.Names) != 1 || len(spec.Values) != 0 {
		return
	}
	obj := s.info.Defs[spec.Names[0]]
	for _, line := range doc.List {
		name, ok := strings.CutPrefix(line.Text, "//go:embed ")
		if name = strings.TrimSpace(name); !ok || obj == nil || (filepath.Ext(name) != ".lua" && filepath.Ext(name) != ".sql") {
			continue
		}
		if !filepath.IsLocal(name) {
			continue
		}
		b, err := os.ReadFile(filepath.Join(filepath.Dir(s.pass.Fset.Position(spec.Pos()).Filename), name))
		if err == nil { // else there is nothing to see
			s.embedded[obj] = string(b)
		}
	}
}

// findEmbedded finds scripts in files that are put into variables.
func (s *scan) findEmbedded() {
	for _, f := range s.files {
		for c := range f.Preorder((*ast.ValueSpec)(nil)) {
			spec := c.Node().(*ast.ValueSpec)
			text, ok := s.embedded[s.info.Defs[spec.Names[0]]]
			if !ok {
				continue
			}
			for _, m := range luaSet.FindAllStringSubmatchIndex(text, -1) {
				s.addScript(c, nil, text, m, true)
			}
		}
	}
}

// addScript notes one SET or SETNX of a script; m are its submatches in text. lit is nil if the text stands in a file of
// its own or is put together. whole is false if a part is missing.
func (s *scan) addScript(c inspector.Cursor, lit *ast.BasicLit, text string, m []int, whole bool) {
	args := arguments(text[m[1]:])
	setnx := strings.EqualFold(text[m[2]:m[3]], "setnx")
	if !setnx && !luaNX.MatchString(args) {
		return
	}
	whole = whole && closed(text)
	key, _, _ := strings.Cut(args, ",")
	key = strings.TrimSpace(key)
	l := s.add(c, RedisScript, "redis.call "+strings.ToUpper(text[m[2]:m[3]]), Name{Text: key}, TTL{State: TTLNone})
	given := s.scriptKeys(c, key)
	if len(given) > 0 {
		if name := s.name(given[0]); alike(given, func(k ast.Expr) bool { return s.name(k) == name }) && (name.Constant || strings.Contains(name.Text, "…")) {
			l.Name = name
		}
	}
	if lit != nil && lit.Value[0] == '`' { // a raw string stands in the file as it is
		l.at = lit.Pos() + token.Pos(m[0])
		l.Pos = s.pass.Fset.Position(l.at)
	}
	if e := luaEnds.FindStringSubmatch(args); e != nil {
		unit := time.Second
		if strings.HasPrefix(strings.ToLower(e[1]), "p") {
			unit = time.Millisecond
		}
		l.TTL = TTL{State: TTLUnknown, Expr: strings.TrimSpace(e[2])}
		if d, err := time.ParseDuration(strings.Trim(l.TTL.Expr, `'"`) + "ns"); err == nil && !strings.HasSuffix(strings.ToLower(e[1]), "at") {
			l.TTL = TTL{State: TTLKnown, D: d * time.Duration(unit)}
		}
	} else if luaExpire.MatchString(text) {
		l.TTL = TTL{State: TTLUnknown, Expr: "set in the script"} // in one step with the key: a script is not interrupted
	}
	if l.TTL.State == TTLNone && !whole {
		l.TTL = TTL{State: TTLUnknown, Expr: "…"}
	}
	for _, f := range []Fault{UncheckedRelease, GuessableValue, ReleaseContext, LossIgnored} {
		l.unknown(f, "who runs the script is not followed")
	}
	sign := s.around(s.decl(c))
	for e := range c.Enclosing((*ast.ValueSpec)(nil), (*ast.AssignStmt)(nil)) { // c itself too
		switch n := e.Node().(type) {
		case *ast.ValueSpec:
			for _, id := range n.Names {
				sign = max(sign, signOf(id.Name))
			}
		case *ast.AssignStmt:
			for _, lhs := range n.Lhs {
				sign = max(sign, signOf(show(lhs)))
			}
		}
	}
	if len(given) > 0 && alike(given, func(k ast.Expr) bool { return hasLock(s.identifiers(k)) }) {
		sign = clearSign
	}
	switch {
	case sign == noSign, sign == someSign && l.TTL.State == TTLNone:
		l.Maybe = true
		l.unknown(NoExpiry, "nothing here says whether this is a lock")
	case l.TTL.State == TTLNone:
		s.report(l, NoExpiry, l.at, "the lock that the script sets never expires: a crash of its holder leaves it for ever",
			"set an expiry in the same command: SET key value NX PX ttl")
	case l.TTL.Expr == "…":
		l.unknown(NoExpiry, "the script goes on with what is not in sight")
	case l.TTL.State == TTLKnown || l.TTL.Expr != "":
		l.ok(NoExpiry)
	}
}

// arguments is the text up to the parenthesis that closes the call.
func arguments(text string) string {
	depth := 1
	for i, r := range text {
		switch r {
		case '(':
			depth++
		case ')':
			if depth--; depth == 0 {
				return text[:i]
			}
		}
	}
	return text
}
