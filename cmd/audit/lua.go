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

// findScripts finds Lua scripts in string constants that set a key if it is absent.
func (s *scan) findScripts() {
	for _, f := range s.files {
		for c := range f.Preorder((*ast.BasicLit)(nil)) {
			lit := c.Node().(*ast.BasicLit)
			if lit.Kind != token.STRING || !strings.Contains(lit.Value, "call") {
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
				s.addScript(c, lit, text, m)
			}
		}
	}
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
				s.addScript(c, nil, text, m)
			}
		}
	}
}

// addScript notes one SET or SETNX of a script; m are its submatches in text. lit is nil if the text stands in a file of
// its own.
func (s *scan) addScript(c inspector.Cursor, lit *ast.BasicLit, text string, m []int) {
	args := arguments(text[m[1]:])
	setnx := strings.EqualFold(text[m[2]:m[3]], "setnx")
	if !setnx && !luaNX.MatchString(args) {
		return
	}
	key, _, _ := strings.Cut(args, ",")
	l := s.add(c, RedisScript, "redis.call "+strings.ToUpper(text[m[2]:m[3]]), Name{Text: strings.TrimSpace(key)}, TTL{State: TTLNone})
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
	switch {
	case sign == noSign, sign == someSign && l.TTL.State == TTLNone:
		l.Maybe = true
		l.unknown(NoExpiry, "nothing here says whether this is a lock")
	case l.TTL.State == TTLNone:
		s.report(l, NoExpiry, l.at, "the lock that the script sets never expires: a crash of its holder leaves it for ever",
			"set an expiry in the same command: SET key value NX PX ttl")
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
